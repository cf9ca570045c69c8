"""REINFORCE++: no critic and no groups; rewards to go with a KL in them, whitened over the whole batch (2501.03262).

    A_{k,t} = G_k − β·Σ_{s≥t} (log π_old − log π_ref)_s,  whitened over all trained tokens
    loss    = −min(ρA, clip(ρ, 1 − ε, 1 + ε)A),  mean over tokens

G_k is the sum of rewards from turn k on, over the team's layers or the agent's own turns. The KL of the tokens still to
come is in a token's advantage, that of the tokens before it is not.

Departures: β stands under its common name ``kl_reward_coef``, where every algorithm has it. A sequence is a turn: over
the team's layers, the KL of later turns is in the return of earlier ones like any other reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from marft_algos import credit
from marft_algos import functional as F
from marft_algos.algorithms.base import Algorithm, ClipConfig, register
from marft_algos.batching import Batch, Level, decision_points, has_loss
from marft_algos.lazy import Tensor
from marft_algos.ranges import NOT_NEGATIVE, SHARE
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class REINFORCEPPConfig(ClipConfig):
    """Settings of REINFORCE++; those it shares with every algorithm are inherited."""

    kl_reward_coef: Annotated[float, NOT_NEGATIVE] = 0.01
    """β, the weight of the KL in the reward: .001 to .01 in the paper and its code."""
    gamma_turn: Annotated[float, SHARE] = 1.0
    """Discount from a turn to its successors."""
    std_floor: Annotated[float, NOT_NEGATIVE] = 0.0
    """Least σ that whitening divides by (docs/training.md). 0: σ as it is, as in the paper."""
    chain: Literal["team", "agent"] = "team"
    """Whose rewards a turn is credited with: all later rewards of the team, or those of its own agent."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` leaves rewards where they
    fall due, ``last`` (released code) at a round's last layer."""


@register("reinforce_pp")
class REINFORCEPP(Algorithm):
    """Whitened rewards to go, token by token."""

    Config = REINFORCEPPConfig
    config: REINFORCEPPConfig
    level: Level = "token"

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns rewards to go from each token, whitened over what is trained."""
        for d in trajectories:
            chain, lengths = self.chain_of(d, estimates), [decision_points(t, self.level) for t in d.transitions]
            returns, tokens = credit.returns_to_go(d, chain, self.config.gamma_turn), chain.token_rewards(lengths)
            for t, g, n, x in zip(d.transitions, returns, lengths, tokens, strict=True):
                to_go = np.full(n, g, dtype=np.float32)
                if x is not None:  # the rewards of the turn's tokens are in its return; those in the past go
                    to_go[1:] -= np.cumsum(x)[:-1]
                estimates.advantages[t] = estimates.returns[t] = to_go
        trained = [t for d in trajectories for t in d.transitions if has_loss(t)]
        parts = [estimates.returns[t] for t in trained]
        if not parts:
            return {}
        flat = np.concatenate(parts)
        whitened = np.split(F.whiten(flat, floor=self.config.std_floor), np.cumsum([len(p) for p in parts])[:-1])
        for t, part in zip(trained, whitened, strict=True):
            estimates.advantages[t] = part.astype(np.float32)
        return {"return_std": float(flat.std())}

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate on tokens."""
        return self.clipped(F.ratio(logprobs, batch.old_logprobs), batch.advantages, batch)
