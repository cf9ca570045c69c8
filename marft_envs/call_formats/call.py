"""A call of a tool, and how deep its arguments may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ToolCall(NamedTuple):
    """A call as an agent asked for it."""

    name: str
    arguments: Mapping[str, Any]


def too_deep(value: Any, levels: int) -> bool:
    """Returns whether lists and objects are nested deeper than ``levels``; does not recurse."""
    level = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for box in level:
            if isinstance(box, dict):
                inner.extend(box.values())
            elif isinstance(box, list):
                inner.extend(box)
        if not inner:
            return False
        level = inner
    return True
