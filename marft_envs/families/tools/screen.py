"""Tool results that screened agents never read, and what their readers may pass on.

A screened agent sees of each of its calls whether it worked. Its readers, agents without tools, see what the call
returned, and answer. An answer of one word or one number stands in the screened agent's observation. Any other answer
is replaced by a name, ``$answer_3``. The agent can write the name in an argument (in a list, it stands for the answer's
lines) and in its messages to the user, and never reads what it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marft_envs.call_formats import ToolReply
from marft_envs.core.teams import Team
from marft_envs.core.types import TurnRecord
from marft_envs.families.tools.session import CallEntry, shown

_NAME = re.compile(r"\$answer_(\d+)")
_FROM_WORLD = frozenset({"tool_error", "timeout", "crashed", "too_large"})
"""Errors whose words are the world's."""


def name(turn: TurnRecord) -> str:
    """Returns by which name a screened agent passes an answer on."""
    return f"$answer_{turn.index}"


@dataclass
class Screen:
    """What stands between the results of an episode and a team's screened agents; nothing, where there are none."""

    team: Team
    answers: dict[str, str] = field(default_factory=dict)
    """Name -> what a reader said."""

    @property
    def readers(self) -> frozenset[str]:
        """Who reads results for others, whenever these have acted: it is no handover."""
        return (self.team.readers or frozenset()) if self.team.screened else frozenset()

    def receive(self, turn: TurnRecord) -> bool:
        """Keeps what an agent without tools says; returns whether it answers something new."""
        text = turn.spoken
        if turn.agent not in self.readers or not text.strip():
            return False
        new = text not in self.answers.values()
        self.answers[name(turn)] = text
        return new

    def returned(self, agent: str, log: Sequence[CallEntry]) -> list[str]:
        """Returns a paragraph with all results for those who read them for others."""
        lines = [entry.line for entry in log] if agent in self.readers else []
        return ["\n".join(["What the calls returned:", *lines])] if lines else []

    def line(self, agent: str, entry: CallEntry) -> str:
        """Returns what an agent reads of its call."""
        result = entry.result
        if agent not in self.team.screened or (result.error and result.error not in _FROM_WORLD):
            return entry.line
        return shown(result._replace(value="ok", message="")).rstrip(": ")

    def filled(self, agent: str, reply: ToolReply) -> ToolReply:
        """Returns a screened agent's reply with the answers that it names."""
        if agent not in self.team.screened or reply.error:
            return reply
        calls = tuple(call._replace(arguments=self._in(call.arguments)) for call in reply.calls)
        return reply._replace(calls=calls, words=self._in(reply.words))

    def _in(self, value: Any) -> Any:
        if isinstance(value, str):
            return _NAME.sub(lambda found: self.answers.get(found[0], found[0]), value)
        if isinstance(value, Mapping):
            return {key: self._in(item) for key, item in value.items()}
        if isinstance(value, list):
            named = [self.answers.get(item) if isinstance(item, str) else None for item in value]
            filled = (
                [self._in(item)] if text is None else text.splitlines() for item, text in zip(value, named, strict=True)
            )
            return [part for parts in filled for part in parts]
        return value
