"""Rejection-sampling fine-tuning: supervised steps on the team's own successful episodes. A control.

    loss = −(1/T) Σ log π(y)  over the tokens of successful episodes; the others are thrown away

(RFT, arXiv 2308.01825; the policy-gradient view: REINFORCE with A ∈ {0, 1} and no baseline.) What a method with
advantages gains over it is what it learns from failures.

Departures: on-line, one step per iteration on fresh samples, where the paper collects once and trains on the union.
Every turn of a successful episode is imitated, whoever spoke. Where a task does not say what success is, an episode
with a score of at least ``least_score`` is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from marft_algos import credit
from marft_algos.algorithms.base import GroupConfig, register
from marft_algos.algorithms.sft import SFT
from marft_algos.ranges import COUNT, FINITE
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class RFTConfig(GroupConfig):
    """Settings of rejection-sampling fine-tuning; those it shares with every algorithm are inherited."""

    group_size: Annotated[int, COUNT] = 1
    """Episodes of each start; success is judged one by one."""
    least_score: Annotated[float, FINITE] = 1.0
    """Score that counts as success where the task does not say."""


@register("rft")
class RFT(SFT):
    """Imitates what worked of its own: SFT's loss, on episodes that the team has just played."""

    Config = RFTConfig
    config: RFTConfig
    imitates = False

    def wanted(self, group: Sequence[Trajectory]) -> bool:
        """Returns whether an episode succeeded."""
        return any(self._succeeded(d) for d in group)

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns 1 to successful episodes, 0 to others that came along in a group."""
        estimates.advantages |= credit.spread(trajectories, [float(self._succeeded(d)) for d in trajectories])
        return {}

    def _succeeded(self, trajectory: Trajectory) -> bool:
        if trajectory.success is not None:
            return trajectory.success
        return trajectory.score >= self.config.least_score
