"""REINFORCE with a running mean as its baseline: the control that every other method has to beat.

    b ← m·b + (1 − m)·mean G,   A_k = G_k − b,   loss = −(1/E) Σ_episodes Σ_k Σ_t log π(y_{k,t}) · A_k

(Williams 1992.) G_k is the sum of rewards from turn k to the end: over the team's layers, every agent's turns carry the
outcome of all that follows; over an agent's own turns, the agent's. An episode's gradient is the sum over a policy's
turns, those of all agents, as the policy gradient theorem has it, and the loss divides by all E episodes.

Departures: b starts as the first iteration's mean instead of 0, which would make the first step one on raw rewards; it
is otherwise that of the iterations before, so that no episode is in its own baseline. No ratio and no clip: more than
one epoch or minibatch would be off-policy without a correction, so both are 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from marft_algos import credit
from marft_algos.algorithms.base import PolicyGradient, UpdateConfig, register
from marft_algos.batching import Level
from marft_algos.ranges import SHARE
from marft_algos.types import Estimates, SamplingParams, Trajectory


@dataclass(frozen=True)
class REINFORCEConfig(UpdateConfig):
    """Settings of REINFORCE; those it shares with every algorithm are inherited."""

    one_step = True

    momentum: Annotated[float, SHARE] = 0.9
    """Weight of the past in the running mean: about the last ten iterations."""
    gamma_turn: Annotated[float, SHARE] = 1.0
    """Discount from a turn to its successors; 1: who spoke first is responsible for all of the outcome."""
    chain: Literal["team", "agent"] = "team"
    """Whose rewards a turn is credited with: all later rewards of the team, or those of its own agent."""
    credit: str | dict[str, Any] = "broadcast"
    """Credit rule, or a table of a rule and its arguments (docs/credit.md). ``broadcast`` leaves rewards where they
    fall due, ``last`` (released code) at a round's last layer."""


@register("reinforce")
class REINFORCE(PolicyGradient):
    """The score-function gradient with a running mean."""

    Config = REINFORCEConfig
    config: REINFORCEConfig
    level: Level = "action"

    def __init__(self, config: REINFORCEConfig | None = None, sampling: SamplingParams | None = None) -> None:
        super().__init__(config, sampling)
        self.baseline: float | None = None

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Assigns the return to go minus the running mean."""
        returns = [
            (t, g)
            for d in trajectories
            for t, g in zip(
                d.transitions, credit.returns_to_go(d, self.chain_of(d, estimates), self.config.gamma_turn), strict=True
            )
        ]
        if not returns:
            return {}
        mean = float(np.mean([g for _, g in returns]))
        baseline = mean if self.baseline is None else self.baseline
        for t, g in returns:
            estimates.advantages[t] = np.array([g - baseline], np.float32)
            estimates.returns[t] = np.array([g], np.float32)
        self.baseline = self.config.momentum * baseline + (1.0 - self.config.momentum) * mean
        return {"baseline": baseline}

    def state_dict(self) -> dict[str, Any]:
        """Returns the running mean."""
        return {"baseline": self.baseline}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.baseline = state["baseline"]
