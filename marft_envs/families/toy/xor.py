"""``xor-v0``: two agents act in parallel, a third joins what they say.

Left and right each see a bit of their own; the joiner sees neither, only their words. The team's reward is 1 if the
joiner says the exclusive or of the bits (the score), else 0. Left and right each have a turn reward of a quarter for
saying their own bit. Without it the task is a saddle: until two of the three agree on a code, no change of the third
gains anything, which is a fact about exploration and not about D.

| | score |
|---|---|
| best under ``Layered([[left, right], [joiner]])`` | 1 |
| best under ``Independent`` | 1/2: the joiner guesses |
| null team (says nothing) | 0 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft_envs.core.dependency import Layered
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.families.toy.base import ToyTask, digit

AGENTS = (
    AgentSpec("left_0", "left", "Pass your bit on. Say 0 or 1."),
    AgentSpec("right_0", "right", "Pass your bit on. Say 0 or 1."),
    AgentSpec("joiner_0", "joiner", "Say 1 if the two bits differ, else 0.", with_answer=True),
)


class Xor(ToyTask):
    """Two bits, one exclusive or."""

    name = "xor"
    states = tuple((a, b) for a in range(2) for b in range(2))
    sizes = {"left_0": 2, "right_0": 2, "joiner_0": 2}  # noqa: RUF012

    def observe(self, agent: str) -> str:
        """Shows each bit to one agent."""
        shown = {"left_0": str(self.state[0]), "right_0": str(self.state[1])}
        return f"bit {shown.get(agent, '?')}"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Gives a turn reward of a quarter to each of left and right that said its bit."""
        super().on_layer(turns)
        bits = {"left_0": self.state[0], "right_0": self.state[1]}
        faithful = [turn.index for turn in turns if digit(turn.spoken, 2) == bits.get(turn.agent, -1)]
        return Outcome(turn_rewards=dict.fromkeys(faithful, 0.25))

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Whether the joiner said the exclusive or."""
        wanted = self.state[0] ^ self.state[1]
        return any(turn.agent == "joiner_0" and digit(turn.spoken, 2) == wanted for turn in turns)

    def gold_turns(self) -> list[tuple[str, str]]:
        """Each bit as its own message."""
        a, b = self.state
        return [("left_0", str(a)), ("right_0", str(b)), ("joiner_0", str(a ^ b))]


def make(dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment; ``dependency="independent"`` is the ablation, ``**flex`` are FlexEnv's settings."""
    d = Layered([["left_0", "right_0"], ["joiner_0"]]) if dependency is None else dependency
    return FlexEnv(AGENTS, Xor(), d, **flex)
