"""DAPO: GRPO with a higher upper clip, the mean over tokens, groups that teach, and no overlong texts (2503.14476).

    A_j  = (R_j + overlong_j − μ_g)/(σ_g + ε_σ)
    loss = mean over all tokens of −min(ρA, clip(ρ, 1 − .2, 1 + .28)A)

* Dynamic sampling: groups whose scores are all alike (everything right, or everything wrong) are dropped and replaced
  by fresh starts, ``refills`` times at most; what was played counts (``episodes_played``, ``tokens_played``).
* Overlong: a reply loses up to 1 over the last ``overlong`` part of ``max_new_tokens``.
* No KL.

Departures: a text's length is counted without its end token, so that one that just fits is not overlong. In a team the
penalty of a turn goes to the episode's score, as the group compares episodes. When the refills are spent, the iteration
learns from the groups it has (none: no step), where the paper samples on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos import functional as F
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import GroupConfig, register
from marft_algos.algorithms.grpo import GRPO, StandardisedScores
from marft_algos.batching import Batch, has_loss
from marft_algos.lazy import Tensor
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, SHARE
from marft_algos.types import Estimates, StopReason, Trajectory, Transition


@dataclass(frozen=True)
class DAPOConfig(StandardisedScores):
    """Settings of DAPO; those it shares with GRPO and every algorithm are inherited."""

    clip_high: Annotated[float | None, POSITIVE] = 0.28
    """Upper ε: the paper's; leaves room for rare tokens to become likely."""
    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Off: the paper's."""
    group_size: Annotated[int, COUNT] = 8
    """Episodes of each start; 16 in the paper."""
    refills: Annotated[int, NOT_NEGATIVE] = 3
    """How often groups of equal scores are replaced. The paper samples until the batch is full."""
    overlong: Annotated[float, SHARE] = 0.2
    """Last part of ``max_new_tokens`` over which a reply's penalty grows from 0 to 1: 4,096 of 20,480 in the paper.
    0: no penalty."""


@register("dapo")
class DAPO(GRPO):
    """Decoupled clip, dynamic sampling."""

    Config: ClassVar[type[GroupConfig]] = DAPOConfig
    config: DAPOConfig

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Returns whether the group's scores differ."""
        scores = super().scores(group)
        return bool(len(scores)) and bool(scores.min() < scores.max())

    def scores(self, trajectories: Sequence[Trajectory], estimates: Estimates | None = None) -> F.Array:
        """Returns the team's score, less what its overlong turns cost."""
        costs = [sum(self._cost(t) for t in d.transitions) for d in trajectories]
        return super().scores(trajectories, estimates) + np.array(costs)

    def _cost(self, turn: Transition) -> float:
        if not self.config.overlong or not has_loss(turn):
            return 0.0
        limit = self.sampling.max_new_tokens
        length = len(turn.reply.action_ids) - (turn.reply.stop_reason is StopReason.EOS)
        return groups.overlong(length, limit, self.config.overlong * limit)

    def reduce(self, x: Tensor, batch: Batch) -> Tensor:
        """Returns the mean over the minibatch's tokens: long texts weigh more than short ones."""
        return batch.mean(x)
