"""Records as plain data and as text: what JSON can hold, and a description in the place of what it cannot."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

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


class Shown:
    """An episode as text, as a cell of a notebook, and as plain data."""

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
