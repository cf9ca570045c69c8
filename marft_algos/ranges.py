"""What a setting may be, declared with the field, and checked wherever settings are made.

    clip: Annotated[float, Range(0.0, 1.0, open_low=True)] = 0.2

A dataclass of settings inherits ``Checked``: whoever makes one (the command line, a TOML file, Python, a grid) gets a
``ConfigError`` that names field, value and what is allowed. Numbers are finite in any case; a range on a table or a
tuple is that of every number in it; choices are a ``Literal``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from marft_envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Range:
    """An interval of numbers; None: no bound on that side.

    Attributes:
        low: Smallest value.
        high: Largest value.
        open_low: ``low`` itself is outside.
        open_high: ``high`` itself is outside.
        endless: Infinity is inside: it stands for no limit.
        hint: What to do for what lies outside, if anything can be done.
    """

    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    endless: bool = False
    hint: str = ""

    def __contains__(self, value: float) -> bool:
        if math.isnan(value) or (math.isinf(value) and not self.endless):
            return False
        above = self.low is None or value > self.low or (value == self.low and not self.open_low)
        below = self.high is None or value < self.high or (value == self.high and not self.open_high)
        return above and below

    def __str__(self) -> str:
        low = "" if self.low is None else f"{'more than' if self.open_low else 'at least'} {self.low:.10g}"
        high = "" if self.high is None else f"{'less than' if self.open_high else 'at most'} {self.high:.10g}"
        if low and high:
            both = self.open_low or self.open_high
            return f"{low} and {high}" if both else f"between {self.low:.10g} and {self.high:.10g}"
        if self.low == 0 and not self.open_low and not high:
            return "0 or more"
        return low or high or "a finite number"


FINITE = Range()
POSITIVE = Range(0.0, open_low=True)
NOT_NEGATIVE = Range(0)
COUNT = Range(1)
SHARE = Range(0.0, 1.0)
RATE = Range(0.0, 1.0)
"""Learning rates. 0: nothing moves. Steps of Adam above 1 are no training of anything."""


class Checked:
    """Base class of dataclasses of settings."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a value outside what its field declares."""
        check(self)


def check(settings: Any) -> None:
    """Checks every field of a dataclass against its annotation.

    Raises:
        ConfigError: The first that is not what it may be.
    """
    kind: Any = type(settings)
    for name, hint in hints(kind).items():
        _check(name, getattr(settings, name), hint, None)


@functools.cache
def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass's fields, what is declared in them included."""
    annotations = typing.get_type_hints(kind, include_extras=True)
    return {f.name: annotations[f.name] for f in dataclasses.fields(kind) if f.init}


def range_of(hint: Any) -> Range | None:
    """The range in an annotation, if there is one."""
    return next((x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Range)), None)


def _read(hint: Any, limits: Range | None) -> tuple[Range | None, tuple[Any, ...]]:
    """The range that holds for an annotation, and the kinds of value that it allows."""
    limits = range_of(hint) or limits
    plain = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    union = typing.get_origin(plain) in (typing.Union, types.UnionType)
    return limits, typing.get_args(plain) if union else (plain,)


def _check(name: str, value: Any, hint: Any, limits: Range | None) -> None:
    limits, parts = _read(hint, limits)
    part = next((part for part in parts if _is_of(value, part)), None)
    if part is None:
        raise ConfigError(f"{name} is {shown(value)}; expected {_kinds(limits, parts)}.")
    args = typing.get_args(part)
    if part in (int, float) and not _is_float(value):
        allowed = limits or FINITE
        raise ConfigError(f"{name} is {shown(value)}; expected {allowed}{_or_none(parts)}, with fewer digits.")
    if part in (int, float) and float(value) not in (limits or FINITE):
        allowed = limits or FINITE
        raise ConfigError(f"{name} is {value!r}; expected {allowed}{_or_none(parts)}. {allowed.hint}".rstrip())
    if isinstance(value, Mapping) and args:
        for key, inner in value.items():
            _check(f"{name}'s key", key, args[0], None)
            _check(f"{name}[{key}]", inner, args[1], limits)
    if isinstance(value, list | tuple) and args:
        for i, inner in enumerate(value):
            _check(f"{name}[{i}]", inner, args[min(i, len(args) - 1)] if args[-1] is not ... else args[0], limits)


def _is_of(value: Any, part: Any) -> bool:
    """Whether a value is of one kind that an annotation allows; numbers in it are looked at apart."""
    origin = typing.get_origin(part) or part
    if origin is Any:
        return True
    if origin is Literal:
        return value in typing.get_args(part)
    if origin in (int, float):
        return isinstance(value, Integral if origin is int else Real) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping if origin is dict else origin)


def _is_float(value: Any) -> bool:
    """Whether a number is one that arithmetic can go on with: whole numbers have no largest one."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def shown(value: Any) -> str:
    """A value as a message has it; of a whole number too long to read, or for Python to print, how long it is."""
    if not isinstance(value, int) or _is_float(value):
        return repr(value)
    digits = int((value.bit_length() - 1) * math.log10(2))
    while 10**digits <= abs(value):
        digits += 1
    return f"a number of {digits} digits"


def _or_none(parts: tuple[Any, ...]) -> str:
    return ", or none" if type(None) in parts else ""


def _choices(parts: tuple[Any, ...]) -> list[Any]:
    return [c for part in parts if typing.get_origin(part) is Literal for c in typing.get_args(part)]


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    dict: "a table",
    tuple: "a list",
}


def _kinds(limits: Range | None, parts: tuple[Any, ...]) -> str:
    """What was expected of a value of the wrong kind."""
    kinds = [f"one of {', '.join(map(repr, choices))}"] if (choices := _choices(parts)) else []
    for part in parts:
        origin = typing.get_origin(part) or part
        if origin in _WORDS:
            kinds.append(_WORDS[origin] + (f" ({limits})" if limits is not None and origin in (int, float) else ""))
    return " or ".join(kinds) + _or_none(parts)
