"""JSON values as agents pass them: copies, hashable stand-ins, and how deep they are nested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLAIN = frozenset((str, int, float, type(None)))
"""Types of values that hold no others and equal what JSON calls equal. Nearly all arguments are such, so that an
object's members need not be looked at one by one."""


def plain(value: Any) -> bool:
    """Returns whether a value is an object that holds only :data:`PLAIN` ones."""
    return type(value) is dict and PLAIN.issuperset(map(type, value.values()))


def copied(value: Any) -> Any:
    """Returns a copy of a JSON value."""
    if plain(value):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return value


def frozen(value: Any) -> Any:
    """Returns a hashable stand-in: equal for equal JSON values (1 and 1.0 are equal, 1 and true are not)."""
    if type(value) in PLAIN:
        return value
    if plain(value):
        return ("dict", frozenset(value.items()))
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
