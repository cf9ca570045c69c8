"""JSON values as agents pass them and tools return them: copies, hashable stand-ins, depth, and text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_PLAIN = frozenset((str, int, float, type(None)))


def copied(value: Any) -> Any:
    """Returns a copy of a JSON value."""
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def frozen(value: Any) -> Any:
    """Returns a hashable stand-in: equal for equal JSON values (1 and 1.0 are equal, 1 and true are not)."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, Mapping):
        return ("dict", frozenset([(key, frozen(item)) for key, item in value.items()]))
    if isinstance(value, list | tuple):
        return ("list", tuple(map(frozen, value)))
    return value


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


encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False).encode
"""Returns a value as strict JSON text; raises TypeError, ValueError or RecursionError for what is none."""
