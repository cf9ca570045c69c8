"""AT-GRPO: groups of candidates at one state, for each agent and turn; the best goes on (arXiv 2510.11062).

    group (episode, agent, turn): K replies to one prompt,  r_j = α·team_j + local_j,  A_j = (r_j − μ)/(σ + ε_σ)
    loss as GRPO's, over all candidates

Whole episodes of one start are no group for a team: after the first turn their prompts differ, and their mean is no
baseline for a turn. Here every state that the team comes to is a group of its own: K replies are drawn there, each is
tried in a copy of the environment, all are learnt from, and the best one is what the episode goes on with.

team_j and local_j are the rewards of the team and of the turn (with its agent's own share) for the candidate: at once,
or, where there is no reward yet, by the end of the round, which the team plays on from the candidate.

Departures. Most tasks here reward at a round's end, so a candidate without a reward yet is played on to the
round's end, with common random numbers; those tokens are counted. The agents of one layer are tried one by one, with
the first candidate of the others, and the best of each go on together. σ has GRPO's degrees of freedom, and the
mean over candidates is GRPO's over turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from marft_algos.algorithms import groups
from marft_algos.algorithms.base import GroupConfig, Need, register
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.ranges import COUNT, NOT_NEGATIVE, Range
from marft_algos.types import Estimates, SamplingParams, Trajectory


@dataclass(frozen=True)
class ATGRPOConfig(GRPOConfig):
    """Settings of AT-GRPO; those it shares with GRPO and every algorithm are inherited."""

    candidates: Annotated[int, Range(2)] = 4
    """K: replies at every turn; each but the last turn's costs the rest of its round."""
    alpha: Annotated[float, NOT_NEGATIVE] = 1.0
    """α: weight of the team's reward beside the agent's own."""
    group_size: Annotated[int, COUNT] = 1
    """Episodes of each start; the groups that are compared are the candidates at one state."""
    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Weight of the KL to the weights that the run began with. Off, as in later work on GRPO."""


@register("at_grpo")
class ATGRPO(GRPO):
    """Agent- and turn-wise groups, by tree sampling."""

    Config: ClassVar[type[GroupConfig]] = ATGRPOConfig
    config: ATGRPOConfig
    needs: ClassVar[frozenset[Need]] = frozenset({"branches"})

    def __init__(self, config: ATGRPOConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.candidates = self.config.candidates

    def worth(self, branch: Trajectory, index: int) -> float:
        """Returns α·team + local of the rewards from the candidate's layer on."""
        t = branch.transitions[index]
        paid = branch.layers[t.layer :]
        team = sum(layer.team_reward for layer in paid)
        return float(
            self.config.alpha * team + t.turn.reward + sum(layer.agent_rewards.get(t.agent, 0.0) for layer in paid)
        )

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Standardises worths among the candidates of a turn; a turn without candidates teaches nothing."""
        turns = [(d.number, t) for d in trajectories for t in (*d.transitions, *d.candidates)]
        for _, t in turns:
            estimates.advantages[t] = np.zeros(1, dtype=np.float32)
        tried = [(number, t) for number, t in turns if t.worth is not None]
        if not tried:
            return {}
        worths = np.array([(t.worth or 0.0) + np.sum(estimates.penalties.get(t, 0.0)) for _, t in tried])
        stats = groups.statistics(worths, [(number, t.index) for number, t in tried], self.config.std_ddof)
        for (_, t), a in zip(tried, (worths - stats.mean) / (stats.std + self.config.std_eps), strict=True):
            estimates.advantages[t] = np.array([a], dtype=np.float32)
        return stats.log() | {"candidate_worth": float(worths.mean())}
