"""``route-v0``: the orchestrator's words decide who acts, and the wrong expert cannot answer.

The orchestrator sees a colour; the expert of that colour sees a digit, the others a question mark. The
orchestrator says a number, and that expert acts. The team's reward is 1 if the expert says the digit, else 0. The first
expert to act answers for the team, so letting all of them talk does not help.

| | score |
|---|---|
| best under ``Orchestrator`` | 1 |
| best under ``Independent`` | 7/16: expert 0 knows in one case of four, and guesses in the rest |
| null team (says nothing) | 0 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.routing import Orchestrator
from marft_envs.core.types import AgentSpec, TurnRecord
from marft_envs.families.toy.base import ToyTask, digit

COLOURS = ("red", "blue", "green", "gold")
EXPERTS = tuple(f"expert_{i}" for i in range(4))
AGENTS = (
    AgentSpec("orchestrator_0", "orchestrator", "Say the number, 0 to 3, of the expert who should act."),
    *(AgentSpec(name, "expert", "Find the digit. Say one digit from 0 to 3.", with_answer=True) for name in EXPERTS),
)


class Route(ToyTask):
    """A colour to route by, a digit that one expert can see."""

    name = "route"
    states = tuple((colour, x) for colour in range(4) for x in range(4))
    sizes = dict.fromkeys(("orchestrator_0", *EXPERTS), 4)

    def observe(self, agent: str) -> str:
        """Shows the colour to the orchestrator and the digit to the expert of that colour."""
        if agent == "orchestrator_0":
            return f"colour {COLOURS[self.state[0]]}"
        return f"digit {self.state[1]}" if agent == EXPERTS[self.state[0]] else "digit ?"

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Whether the first expert to act said the digit."""
        answer = next((turn for turn in turns if turn.agent in EXPERTS), None)
        return answer is not None and digit(answer.spoken, 4) == self.state[1]

    def gold_turns(self) -> list[tuple[str, str]]:
        """The right expert, and its digit."""
        colour, x = self.state
        return [("orchestrator_0", str(colour)), (EXPERTS[colour], str(x))]


def parse_number(text: str, workers: Sequence[str]) -> list[str] | None:
    """Returns the worker whose number the text is, or None."""
    number = digit(text, len(workers))
    return None if number is None else [workers[number]]


def make(dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment; ``dependency="independent"`` is the ablation, ``**flex`` are FlexEnv's settings."""
    d = Orchestrator("orchestrator_0", EXPERTS, parse=parse_number) if dependency is None else dependency
    return FlexEnv(AGENTS, Route(), d, **flex)
