"""RLOO: REINFORCE against the mean of the other episodes of the same prompt (arXiv 2402.14740).

    A_j = R_j − 1/(k−1) Σ_{l≠j} R_l,   loss = −(1/E) Σ_episodes Σ_k Σ_t log π(y_{k,t}) · A_j

With k = 2 the advantage is the difference of the two scores. R is the episode's one score, the team's; an agent's
"sequence" is all it says in the episode.

Departures: the paper samples one text from one model; here the score belongs to a team, and each agent's log-prob is
multiplied by it. The KL of the paper's reward is ``kl_reward_coef``, off by default. No ratio: one epoch, one
minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from marft_algos import credit
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import GroupConfig, Need, PolicyGradient, register
from marft_algos.batching import Level
from marft_algos.ranges import COUNT
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class RLOOConfig(GroupConfig):
    """Settings of RLOO; those it shares with every algorithm are inherited."""

    one_step = True

    group_size: Annotated[int, COUNT] = 4
    """k, episodes of each start: 2 and 4 in the paper."""


@register("rloo")
class RLOO(PolicyGradient):
    """REINFORCE, leave one out."""

    Config = RLOOConfig
    config: RLOOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"groups"})
    level: Level = "action"

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Takes the mean of the group's other scores off each."""
        scores = [credit.team_score(d, credit.broadcast(d), estimates) for d in trajectories]
        stats = groups.statistics(scores, [d.group for d in trajectories])
        estimates.advantages |= credit.spread(trajectories, groups.leave_one_out(scores, stats))
        return stats.log()
