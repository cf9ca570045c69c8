"""GRPO: advantages from groups of episodes of one start, PPO's clip on tokens (DeepSeekMath, arXiv 2402.03300).

    A_j  = (R_j − μ_g)/(σ_g + ε_σ)
    loss = mean over turns, over tokens of −min(ρA, clip(ρ, 1 − ε, 1 + ε)A) + β·k3

A group is G episodes of one task and seed. R is the episode's one score, the team's, and all of its turns carry the
same advantage, those of every agent. k3 is the estimate of KL(π‖π_ref) per token (``kl_coef``).

Departures: the paper's sequence is a turn here, and the mean over sequences a mean over the turns of a policy
(``turn_mean``). ε_σ and the degrees of freedom of σ differ between implementations and are fields. A group of equal
scores gives zeros, and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import Algorithm, ClipConfig, GroupConfig, Need, register
from marft_algos.batching import Batch, Level
from marft_algos.lazy import Tensor
from marft_algos.ranges import NOT_NEGATIVE, Range
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class StandardisedScores(ClipConfig, GroupConfig):
    """Settings of algorithms that divide a group's scores by σ."""

    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.04
    """β, the weight of the KL to the weights that the run began with: the paper's. Later work sets 0."""
    std_eps: Annotated[float, NOT_NEGATIVE] = 1e-6
    """ε_σ, added to a group's σ. TRL: 1e-4."""
    std_ddof: Annotated[int, Range(0, 1)] = 1
    """What σ's denominator is less than the group size: 1 in released code, 0 in the formula of the paper."""


@dataclass(frozen=True)
class GRPOConfig(StandardisedScores):
    """Settings of GRPO; those it shares with every algorithm are inherited."""

    turn_mean: Literal["batch", "episode"] = "batch"
    """Mean over all turns of a minibatch, or first over an agent's turns of an episode. ``episode`` weighs a turn by
    1/T in an episode with T turns of its agent, which biases the update where policies choose T (docs/audit.md)."""


@register("grpo")
class GRPO(Algorithm):
    """Group-relative policy optimisation."""

    Config: ClassVar[type[GroupConfig]] = GRPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})
    level: Level = "action"

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Standardises scores within their group."""
        scores = self.scores(trajectories, estimates)
        stats = groups.statistics(scores, [d.group for d in trajectories], self.config.std_ddof)
        estimates.advantages |= credit.spread(trajectories, (scores - stats.mean) / (stats.std + self.config.std_eps))
        return stats.log()

    def scores(self, trajectories: Sequence[Trajectory], estimates: Estimates | None = None) -> F.Array:
        """Returns one score an episode."""
        return np.array([credit.team_score(d, credit.broadcast(d), estimates) for d in trajectories])

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate on tokens, averaged as ``reduce`` says."""
        return self.clipped(F.ratio(logprobs, batch.old_logprobs), batch.advantages[:, None], batch)

    def reduce(self, x: Tensor, batch: Batch) -> Tensor:
        """Returns the mean over a turn's tokens, then over turns."""
        return self.mean_turns(batch.row_mean(x), batch)

    def mean_turns(self, x: Tensor, batch: Batch) -> Tensor:
        """Averages [B] over turns, as ``turn_mean`` says."""
        return batch.mean(x) if self.config.turn_mean == "batch" else batch.episode_mean(x)

    def length_bias(self) -> str:
        """Names the mean over an agent's turns, where it is set."""
        per_episode = getattr(self.config, "turn_mean", "") == "episode"
        return "turn_mean='episode' weighs a turn by 1/T in an episode with T turns of its agent" if per_episode else ""
