"""Dr. MAS: GRPO whose statistics are each agent's own (arXiv 2602.08847).

    group (start, agent i):  A_{j,i} = (R_j − μ_i)/(σ_i + ε_σ),  loss as GRPO's

μ_i and σ_i run over the episodes in which agent i acted. With a router or an orchestrator those differ from agent to
agent: who is called on hard starts only would otherwise be compared with episodes that never needed it, and its
gradient's size would follow the mismatch.

Departures: one score per (episode, agent that acted), never per turn, so that an agent that acts twice in an episode
does not count it twice. Where an agent acted in fewer than two episodes of a group, it gets the team's statistics, and
``group_alone`` counts how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos.algorithms import groups
from marft_algos.algorithms.base import GroupConfig, register
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.ranges import COUNT, NOT_NEGATIVE
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class DrMASConfig(GRPOConfig):
    """Settings of Dr. MAS; those it shares with GRPO and every algorithm are inherited."""

    group_size: Annotated[int, COUNT] = 8
    """Episodes of each start: the paper's for mathematics (5 for search)."""
    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Off: agents drift apart on purpose."""


@register("dr_mas")
class DrMAS(GRPO):
    """GRPO, agent by agent."""

    Config: ClassVar[type[GroupConfig]] = DrMASConfig

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Standardises scores within (group, agent)."""
        ddof, scores = self.config.std_ddof, self.scores(trajectories, estimates)
        of_team = groups.statistics(scores, [d.group for d in trajectories], ddof)
        acted = [(j, a) for j, d in enumerate(trajectories) for a in sorted({t.agent for t in d.transitions})]
        episodes = [j for j, _ in acted]
        of_agents = groups.statistics(scores[episodes], [(trajectories[j].group, a) for j, a in acted], ddof)
        alone = of_agents.size < 2
        mean, std = (
            np.where(alone, of_team.mean[episodes], of_agents.mean),
            np.where(alone, of_team.std[episodes], of_agents.std),
        )
        advantages = dict(zip(acted, (scores[episodes] - mean) / (std + self.config.std_eps), strict=True))
        for j, d in enumerate(trajectories):
            for t in d.transitions:
                estimates.advantages[t] = np.array([advantages[j, t.agent]], dtype=np.float32)
        return of_agents.log() | {"group_alone": float(alone.sum())}
