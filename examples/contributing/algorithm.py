"""An algorithm of your own, complete in one file: the policy gradient on ranks instead of scores.

Train with it: ``marft train examples.contributing.algorithm:Ranks --env relay-v0``.

    A = scale · (2·rank/(n − 1) − 1),   loss = −mean over turns of A · Σ_t log π(y_t)

An episode's rank is its place among the n of the iteration, 0 the worst; equal scores share their mean place. So an
advantage is the same whatever the unit of the reward is, and an iteration of equal scores changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from marft_algos import Algorithm, UpdateConfig, register
from marft_algos.batching import Batch, Level
from marft_algos.ranges import POSITIVE
from marft_algos.types import Estimates, Trajectory

if TYPE_CHECKING:
    from torch import Tensor  # settings are read without torch: what stands in hints only is imported here


@dataclass(frozen=True)
class RanksConfig(UpdateConfig):
    """Settings: the text under a field is its help, what stands beside its type is its range."""

    one_step = True  # no ratio corrects a second step on the same episodes

    scale: Annotated[float, POSITIVE] = 1.0
    """Advantage of the best episode; the worst has its negative."""


@register("example-ranks")
class Ranks(Algorithm):
    """REINFORCE on centred ranks; no critic, no ratio."""

    Config = RanksConfig
    config: RanksConfig
    level: Level = "action"

    def credit(
        self,
        trajectories: Sequence[Trajectory],
        estimates: Estimates,
    ) -> dict[str, float]:
        """Hook 2: every turn gets its episode's rank. What is found out goes into ``estimates``, by turn."""
        scores = np.array([trajectory.score for trajectory in trajectories])
        below = (scores[:, None] > scores).sum(1)
        above = (scores[:, None] < scores).sum(1)
        ranks = self.config.scale * (below - above) / max(len(scores) - 1, 1)
        for trajectory, rank in zip(trajectories, ranks, strict=True):
            for turn in trajectory.transitions:
                estimates.advantages[turn] = np.full(1, rank, np.float32)
        return {"rank_spread": float(ranks.std())}

    def surrogate(
        self,
        logprobs: Tensor,
        batch: Batch,
    ) -> tuple[Tensor, dict[str, float]]:
        """Hook 4: the loss of some turns of one policy, and numbers to log (none here)."""
        return -batch.mean(batch.advantages * batch.row_sum(logprobs)), {}
