"""Values as text: JSON in which everything that JSON has no word for carries its exact built-in type.

The writer runs in the sandbox and never calls a method that a program may have defined; the reader runs in the
host and trusts nothing. Neither uses pickle.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

DEPTH = 100
"""Deepest nesting of containers that is written or read."""
_SMALL = 1 << 63
_COLLISIONS = 64
"""Most members of one set or dict that may share a hash: more is an attempt to make the reader slow."""
_dumps = json.JSONEncoder(separators=(",", ":")).encode


class BadValue(Exception):
    """A value, or a text, that is not made of exact built-in types, or is cyclic or too deep."""


class TooLarge(Exception):
    """The encoding would be longer than allowed."""


class _Writer:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.path: set[int] = set()

    def spend(self, count: int) -> None:
        self.budget -= count
        if self.budget < 0:
            raise TooLarge

    def write(self, value: Any) -> Any:
        kind = type(value)
        self.spend(1)
        if value is None or kind is bool:
            return value
        if kind is int:
            if -_SMALL <= value < _SMALL:
                return value
            self.spend(value.bit_length() >> 2)
            return {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is str:
            self.spend(len(value))
            return value
        if kind is complex:
            return {"complex": [repr(value.real), repr(value.imag)]}
        if kind is bytes:
            self.spend(2 * len(value))
            return {"bytes": value.hex()}
        return self.container(kind, value)

    def container(self, kind: type, value: Any) -> Any:
        if id(value) in self.path:
            raise BadValue("the value contains itself")
        if len(self.path) >= DEPTH:
            raise BadValue(f"the value is nested deeper than {DEPTH}")
        self.path.add(id(value))
        if kind is list:
            written: Any = [self.write(item) for item in value]
        elif kind is tuple:
            written = {"tuple": [self.write(item) for item in value]}
        elif kind is set:
            written = {"set": [self.write(item) for item in value]}
        elif kind is frozenset:
            written = {"frozenset": [self.write(item) for item in value]}
        elif type.__subclasscheck__(dict, kind):
            written = {"dict": [self.write(part) for pair in dict.items(value) for part in pair]}
        else:
            name = type.__dict__["__name__"].__get__(kind)
            raise BadValue(f"a value of type {name} is not made of built-in types")
        self.path.discard(id(value))
        return written


def encode(value: Any, limit: int) -> str:
    """Writes ``value``, at most ``limit`` characters of ASCII.

    Raises:
        BadValue: It is not made of exact built-in types (subclasses of dict count as dict), is cyclic or too deep.
        TooLarge: It is too long; found out while writing, so that no more than ``limit`` is ever built.
    """
    text = _dumps(_Writer(limit).write(value))
    if len(text) > limit:
        raise TooLarge
    return text


def decode(text: str) -> Any:
    """Reads what ``encode`` wrote. Whatever the text, nothing but a value or ``BadValue`` comes out.

    Raises:
        BadValue: The text is something else.
    """
    try:
        return _read(json.loads(text), 0)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise BadValue(f"not an encoded value: {type(error).__name__}") from None


def _read(node: Any, depth: int) -> Any:
    if depth > DEPTH:
        raise BadValue(f"the value is nested deeper than {DEPTH}")
    if isinstance(node, list):
        return [_read(item, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) != 1:
        raise BadValue("a tag is missing or double")
    ((tag, content),) = node.items()
    if tag in ("int", "float", "bytes"):
        if not isinstance(content, str):
            raise BadValue(f"the content of {tag} is no text")
        return int(content, 16) if tag == "int" else float(content) if tag == "float" else bytes.fromhex(content)
    if not isinstance(content, list):
        raise BadValue(f"the content of {tag} is no list")
    if tag == "complex":
        real, imaginary = content
        return complex(float(real), float(imaginary))
    return _container(tag, [_read(item, depth + 1) for item in content])


def _container(tag: str, items: list[Any]) -> Any:
    if tag == "tuple":
        return tuple(items)
    if tag == "set":
        return set(_spread(items))
    if tag == "frozenset":
        return frozenset(_spread(items))
    if tag == "dict" and len(items) % 2 == 0:
        return dict(zip(_spread(items[::2]), items[1::2], strict=True))
    raise BadValue("an unknown tag")


def _spread(items: list[Any]) -> list[Any]:
    """The items, if their hashes differ enough for a set of them to be built quickly."""
    if len(items) > _COLLISIONS and max(Counter(hash(item) for item in items).values()) > _COLLISIONS:
        raise BadValue("too many equal hashes")
    return items
