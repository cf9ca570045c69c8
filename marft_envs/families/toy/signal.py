"""``signal-v0``: speaker and listener agree on a code over two rounds.

The speaker sees a digit from 0 to 3 but can only say 0 or 1, once a round, so that a code for four digits needs both
rounds. The listener receives every message. The team's reward is 1 if the listener says the digit in the second round,
else 0. Like every signalling game it has pooling equilibria: two digits share a code, and no agent gains by changing
its own messages alone.

| | score |
|---|---|
| best under ``Chain`` (speaker, then listener) with public history | 1 |
| best under ``Independent`` | 1/4: the listener guesses |
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
    AgentSpec("speaker_0", "speaker", "Signal the digit. Say 0 or 1."),
    AgentSpec("listener_0", "listener", "Find the digit. Say one digit from 0 to 3.", with_answer=True),
)


class Signal(ToyTask):
    """One digit of four through two bits."""

    name = "signal"
    rounds = 2
    states = tuple((x,) for x in range(4))
    sizes = {"speaker_0": 2, "listener_0": 4}  # noqa: RUF012

    def observe(self, agent: str) -> str:
        """Shows the digit to the speaker only."""
        return f"digit {self.state[0]}" if agent == "speaker_0" else "digit ?"

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Whether the listener's last word, in the second round, is the digit."""
        answers = [turn for turn in turns if turn.agent == "listener_0" and turn.round == self.rounds - 1]
        return bool(answers) and digit(answers[-1].spoken, 4) == self.state[0]

    def gold_turns(self) -> list[tuple[str, str]]:
        """The digit in binary, high bit first."""
        x = self.state[0]
        return [("speaker_0", str(x // 2)), ("listener_0", "0"), ("speaker_0", str(x % 2)), ("listener_0", str(x))]


def make(dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment; ``dependency="independent"`` is the ablation, ``**flex`` are FlexEnv's settings.

    Public history carries the first round's bit into the second. Under D = 0 it would pass messages to the listener
    after all, so there the default is each agent's own history (``history="team"``).
    """
    # The tag is as the embedded model has learnt it.
    flex = {"history": "team", "tag_first_round": True, "max_rounds": Signal.rounds, **flex}
    return FlexEnv(AGENTS, Signal(), Chain() if dependency is None else dependency, **flex)
