"""MAGRPO: groups of joint episodes, turn by turn, and a plain policy gradient (arXiv 2508.04652).

    A_t^g = R_t^g − mean_g R_t,   loss = −(1/E) Σ_episodes Σ_t log π(a_t^g) · A_t^g

R_t is the return from turn t on, the joint one; a turn is compared with the same turn (the agent's n-th) of the group's
other episodes. No σ, no ratio, no clip: one epoch, one minibatch.

Departures: episodes of unequal length are compared with those that got as far. Under a router, an agent's n-th turn
answers different questions in different episodes; their mean is a baseline that does not depend on the turn's action,
so it adds variance and no bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from marft_algos import credit
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import GroupConfig, Need, PolicyGradient, register
from marft_algos.batching import Level
from marft_algos.ranges import COUNT, SHARE
from marft_algos.types import Estimates, Trajectory, Transition


@dataclass(frozen=True)
class MAGRPOConfig(GroupConfig):
    """Settings of MAGRPO; those it shares with every algorithm are inherited."""

    one_step = True

    group_size: Annotated[int, COUNT] = 4
    """Episodes of each start: the paper's."""
    gamma_turn: Annotated[float, SHARE] = 1.0
    """Discount from a layer to the next."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` leaves rewards where they
    fall due, ``last`` (released code) at a round's last layer."""


@register("magrpo")
class MAGRPO(PolicyGradient):
    """Group-relative returns, turn by turn."""

    Config = MAGRPOConfig
    config: MAGRPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})
    level: Level = "action"

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns returns to go minus the mean of the same turn's in the group."""
        turns: list[Transition] = []
        returns: list[float] = []
        keys: list[tuple[int, str, int]] = []
        for d in trajectories:
            turns += d.transitions
            returns += credit.returns_to_go(d, self.chain_of(d, estimates), self.config.gamma_turn)
            keys += [(d.group, *position) for position in groups.positions(d)]
        stats = groups.statistics(returns, keys)
        for t, g, mean in zip(turns, returns, stats.mean, strict=True):
            estimates.advantages[t] = np.array([g - mean], np.float32)
            estimates.returns[t] = np.array([g], np.float32)
        return stats.log()
