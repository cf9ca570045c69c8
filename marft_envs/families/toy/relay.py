"""``relay-v0``: the solver can only know what the planner passes on.

The planner sees a digit from 0 to 3, the solver a question mark. The team's reward is 1 if the solver says the digit,
else 0. The agents learn which message stands for which digit.

| | score |
|---|---|
| best under ``Chain`` (planner, then solver) | 1 |
| best under ``Independent`` | 1/4: the solver guesses |
| null team (says nothing) | 0 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft_envs.core.dependency import Chain
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import AgentSpec, TurnRecord
from marft_envs.families.toy.base import ToyTask, digit

AGENTS = (
    AgentSpec("planner_0", "planner", "Pass the digit on. Say one digit from 0 to 3."),
    AgentSpec("solver_0", "solver", "Find the digit. Say one digit from 0 to 3.", with_answer=True),
)


class Relay(ToyTask):
    """One digit to pass on."""

    name = "relay"
    states = tuple((x,) for x in range(4))
    sizes = {"planner_0": 4, "solver_0": 4}  # noqa: RUF012

    def observe(self, agent: str) -> str:
        """Shows the digit to the planner only."""
        return f"digit {self.state[0]}" if agent == "planner_0" else "digit ?"

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Whether the solver said the digit."""
        return any(turn.agent == "solver_0" and digit(turn.spoken, 4) == self.state[0] for turn in turns)

    def gold_turns(self) -> list[tuple[str, str]]:
        """The digit as its own message."""
        return [("planner_0", str(self.state[0])), ("solver_0", str(self.state[0]))]


def make(dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment; ``dependency="independent"`` is the ablation, ``**flex`` are FlexEnv's settings."""
    return FlexEnv(AGENTS, Relay(), Chain() if dependency is None else dependency, **flex)
