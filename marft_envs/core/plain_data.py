"""Records as plain data and as text: what JSON can hold, and a description in the place of what it cannot."""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from marft_envs.errors import ConfigError

CRITICAL_PATH = "critical_path"
"""Key of a number that is written for readers of the file, and worked out again from the turns when it is read."""
UNWRITABLE = "__repr__"
"""Key under which a value that JSON cannot hold is described."""
# What ends a line, or turns its direction, without being an escape in JSON.
_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def plain(value: Any) -> Any:
    """Returns what ``json.dumps`` writes of an object: its argument ``default``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}
        return fields | {name: getattr(value, name) for name in (CRITICAL_PATH,) if hasattr(value, name)}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return {UNWRITABLE: repr(value)}


def one_line(text: str) -> str:
    """Returns text without anything that a reader could take for a line's end."""
    return escaped(" ".join(text.split()))


def escaped(text: str) -> str:
    """Returns JSON, in which nothing is left that a reader could take for a line's end."""
    return text if text.isascii() else _LINE_ENDS.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


def _records() -> Any:
    """Returns the module that reads, writes and replays records; it imports this one."""
    return importlib.import_module("marft_envs.records.trajectory")


class Prompted:
    """A turn as its agent saw it."""

    __slots__ = ()

    @property
    def messages(self: Any) -> list[dict[str, str]]:
        """Returns what its agent was prompted with, as its driver recorded it; else ``Episode.messages`` finds it."""
        if self.extras is None or "messages" not in self.extras:
            raise ConfigError(f"The record of turn {self.index} has no prompt. Next: episode.messages[{self.index}].")
        return list(self.extras["messages"])


class Shown:
    """An episode as text, in a notebook, as data and as a line of a file; and what its agents were prompted with."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        """Names the episode by environment, problem and outcome; ``str`` is its transcript."""
        how = f"return {self.team_return:g}, success {self.success}, {self.stop_reason or 'not over'}"
        return f"<Episode {self.env_id} {self.task_id!r}: {len(self.turns)} turns, {how}>"

    def __str__(self: Any) -> str:
        """Returns the transcript: every turn with what it was shown, results and the end."""
        lines = [f"{self.env_id} · task {self.task_id}"]
        for turn in self.turns:
            seen = f" (sees {', '.join(map(str, turn.sees))})" if turn.sees else ""
            lines.append(f"#{turn.index} round {turn.round + 1} {turn.agent}{seen}: {turn.text}")
        if self.stop_reason:
            lines.append(f"ended: {self.stop_reason}, success: {self.success}")
        return "\n".join(line.encode("utf-8", "replace").decode() for line in lines)

    def _repr_html_(self: Any) -> str:
        return f'<pre style="white-space: pre-wrap">{html.escape(str(self))}</pre>'

    def to_json(self: Any) -> str:
        """Returns the record as one line of JSON, as ``marft_envs.records.trajectory`` writes and reads it."""
        return json.dumps(self, default=plain)

    def to_dict(self: Any) -> dict[str, Any]:
        """Returns the same as plain data; what JSON cannot hold is described in its place."""
        return json.loads(self.to_json())

    @property
    def reward(self: Any) -> float:
        """Returns all that the team was rewarded with: ``team_return``."""
        return float(self.team_return)

    @property
    def score(self: Any) -> float:
        """Returns what an evaluation counts: 1 or 0 where the task says whether it was solved, else ``team_return``."""
        return float(self.team_return if self.success is None else self.success)

    @property
    def answer(self: Any) -> str:
        """Returns what the team's program answered, where it is one; else the last words of the agent that answers.

        That is the agent with ``AgentSpec.with_answer``; where none has it, any but a judge.
        """
        if isinstance(answer := self.info.get("answer"), str):
            return answer
        known = {agent.name for agent in self.agents if agent.with_answer}
        known = known or {agent.name for agent in self.agents} - self.judges
        return next((str(turn.spoken) for turn in reversed(self.turns) if turn.agent in known), "")

    @property
    def judges(self: Any) -> frozenset[str]:
        """Returns the names of judges (``marft_envs.core.judge``), whose words are no part of an answer."""
        return frozenset(a.name for a in self.agents if a.role == "judge" and not (a.trained or a.with_answer))

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Any:
        """Returns the episode that ``to_dict`` wrote.

        Raises:
            DataError: A field is missing, unknown or of a wrong type.
        """
        return _records().from_dict(data)

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Appends the record to a JSONL file, which ``marft_envs.records.trajectory.read`` reads."""
        _records().write(path, self)

    @property
    def messages(self: Any) -> list[list[dict[str, str]]]:
        """Returns what the agent of each turn was prompted with: as recorded, else by playing the record again.

        Raises:
            ConfigError: The record does not say how to play it again.
            ReplayError: It cannot be reproduced.
            TrustError: Its environment would execute or send something; see ``trajectory.to_samples``.
        """
        if all("messages" in (turn.extras or {}) for turn in self.turns):
            return [turn.messages for turn in self.turns]
        return [sample["messages"] for sample in _records().to_samples(self)]

    @property
    def problem(self: Any) -> str:
        """Returns what the agent that acts first was asked: the last message of its prompt (see ``messages``)."""
        return self.messages[0][-1]["content"] if self.turns else ""
