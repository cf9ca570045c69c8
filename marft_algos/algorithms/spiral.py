"""SPIRAL's role-conditioned baselines: REINFORCE whose baseline is each role's own (arXiv 2506.24119).

    b_role ← .95·b_role + .05·R per episode,   A = R − b_role,   loss = −(1/E) Σ_episodes Σ_k Σ_t log π(y_{k,t}) · A

R is the agent's own score of the episode: the team's rewards, its own, and its turns'. In a game the first mover may
win more often; a baseline for both players would credit it for moving first.

Departures: an iteration's N episodes move the baseline at once, by .95^N to their mean: as fast as one by one, but in
no order. With 64 of them the past weighs .04. They are in the baseline that is taken off them, as in the paper's
algorithm; the authors' code reads it before. ``decay`` is a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from marft_algos import credit
from marft_algos.algorithms import groups
from marft_algos.algorithms.base import PolicyGradient, UpdateConfig, register
from marft_algos.batching import Level
from marft_algos.ranges import SHARE
from marft_algos.types import Estimates, SamplingParams, Trajectory


@dataclass(frozen=True)
class SPIRALConfig(UpdateConfig):
    """Settings of SPIRAL; those it shares with every algorithm are inherited."""

    one_step = True

    decay: Annotated[float, SHARE] = 0.95
    """Weight of the past in a role's baseline, per episode: the paper's."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` leaves rewards where they
    fall due, ``last`` (released code) at a round's last layer."""


@register("spiral")
class SPIRAL(PolicyGradient):
    """REINFORCE with a baseline for each role."""

    Config = SPIRALConfig
    config: SPIRALConfig
    level: Level = "action"
    chain: credit.Relation = "episode"

    def __init__(self, config: SPIRALConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.baselines: dict[str, float] = {}

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Takes a role's baseline, which these episodes have moved already (as in the paper), off its scores."""
        scores: dict[tuple[int, str], float] = {}
        by_role: dict[str, list[float]] = {}
        for j, d in enumerate(trajectories):
            rewards = self.rule(d)
            for agent, role in sorted({(t.agent, t.turn.role) for t in d.transitions}):
                scores[j, agent] = credit.agent_score(d, rewards, agent, estimates)
                by_role.setdefault(role, []).append(scores[j, agent])
        for role, role_scores in by_role.items():
            self.baselines[role] = groups.decayed(self.baselines.get(role, 0.0), role_scores, self.config.decay)
        for j, d in enumerate(trajectories):
            for t in d.transitions:
                estimates.advantages[t] = np.array([scores[j, t.agent] - self.baselines[t.turn.role]], dtype=np.float32)
        return {f"baseline/{role}": b for role, b in sorted(self.baselines.items())}

    def state_dict(self) -> dict[str, Any]:
        """Returns the baselines."""
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.baselines = dict(state["baselines"])
