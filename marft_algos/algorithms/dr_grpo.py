"""Dr. GRPO: GRPO without its two divisions, by σ and by length (arXiv 2503.20783).

    A_j  = R_j − μ_g
    loss = mean over episodes of Σ_k Σ_t −min(ρA, clip(ρ, 1 − ε, 1 + ε)A) / constant

Dividing by σ weighs starts that are almost always or almost never solved more than others; dividing by a text's own
length makes long wrong texts cheaper than short ones. The constant is the longest reply, ``max_new_tokens``.

Departures: a policy's turns of an episode are summed, not averaged, since a division by the number of turns is a
length bias, too; the loss divides by all episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marft_algos import credit
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import ClipConfig, GroupConfig, register
from marft_algos.algorithms.grpo import GRPO
from marft_algos.batching import Batch
from marft_algos.lazy import Tensor
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class DrGRPOConfig(ClipConfig, GroupConfig):
    """Settings of Dr. GRPO; those it shares with every algorithm are inherited."""


@register("dr_grpo")
class DrGRPO(GRPO):
    """GRPO done right: centred scores, sums over tokens."""

    Config: ClassVar[type[GroupConfig]] = DrGRPOConfig

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Takes the group's mean off the scores."""
        scores = self.scores(trajectories, estimates)
        stats = groups.statistics(scores, [d.group for d in trajectories])
        estimates.advantages |= credit.spread(trajectories, scores - stats.mean)
        return stats.log()

    def reduce(self, x: Tensor, batch: Batch) -> Tensor:
        """Returns the sum over the policy's tokens of an episode by a constant, mean over all episodes."""
        return batch.episode_sum(batch.row_sum(x)) / self.sampling.max_new_tokens
