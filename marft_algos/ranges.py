"""What a setting may be, declared with the field, and checked wherever settings are made.

    clip: Annotated[float, Range(0.0, 1.0, open_low=True)] = 0.2

A dataclass of settings inherits ``Settings``: its maker (the command line, a TOML file, Python, a grid) gets a
``ConfigError`` that names field, value and what is allowed. pydantic decides whether a value is of the annotation's
kind: in Python strictly, in a table with what TOML and JSON write otherwise (``checked``). Numbers are finite in any
case; a range on a table or a tuple is that of every number in it; choices are a ``Literal``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from decimal import Decimal
from numbers import Real
from typing import Annotated, Any, Literal, Self

from pydantic import TypeAdapter, ValidationError

from marft_envs.errors import ConfigError, check_known, did_you_mean

NONE = "none"
"""TOML has no null; a setting that is off is written as this word."""


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
SEED = Range(0, 2**32 - 1)
"""Of a run: one word of numpy's generators, so that no two seeds start from the same words."""
RATE = Range(0.0, 1.0)
"""Learning rates. 0: nothing moves. Steps of Adam above 1 are no training of anything."""


class Settings:
    """Base class of dataclasses of settings."""

    __slots__ = ()

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Raises ``ConfigError`` for a name that is no field's."""
        check_names(cls, values)
        return super().__new__(cls)

    @classmethod
    def elsewhere(cls, name: str) -> str:
        """Returns what to write instead of a name that is no field's, where more is known than which is near."""
        return ""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` for a value outside what its field declares."""
        check(self)


def check(settings: Any) -> None:
    """Checks every field of a dataclass against its annotation.

    Raises:
        ConfigError: The first that is not what it may be.
    """
    kind: Any = type(settings)
    for name, hint, adapter, limits in _checks(kind):
        value = getattr(settings, name)
        try:
            adapter.validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
        except ValidationError as error:
            raise ConfigError(_refusal(name, value, hint, error)) from error
        if limits is not None:
            _check_range(name, value, hint, limits)


def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass's fields, what is declared in them included."""
    return _hints(kind)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    annotations = typing.get_type_hints(kind, include_extras=True)
    return {f.name: annotations[f.name] for f in dataclasses.fields(kind) if f.init}


@functools.cache
def _checks(kind: Any) -> list[tuple[str, Any, TypeAdapter[Any], Range | None]]:
    """Of each field its name, its annotation, what validates it, and the range of its numbers, if it may hold any."""
    return [(name, hint, _adapter(hint), _limits(hint)) for name, hint in hints(kind).items()]


def defaults(kind: Any) -> dict[str, Any]:
    """The values of a dataclass's fields that need not be given."""
    fields = [f for f in dataclasses.fields(kind) if f.init]
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not MISSING}
    return made | {f.name: f.default for f in fields if f.default is not MISSING}


def range_of(hint: Any) -> Range | None:
    """The range in an annotation, if there is one."""
    return next((x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Range)), None)


def bare(hint: Any) -> Any:
    """An annotation without what is declared in it."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(bare(hint))


def _or_none(hint: Any) -> str:
    return ", or none" if type(None) in typing.get_args(bare(hint)) else ""


# Numbers --------------------------------------------------------------------------------------------


@functools.cache
def _limits(hint: Any) -> Range | None:
    """The range of the numbers in values of an annotation; None: there are none."""
    return range_of(hint) or FINITE if _has_number(hint) else None


def _check_range(name: str, value: Any, hint: Any, limits: Range) -> None:
    for place, number in _numbers(value):
        if (huge := _is_huge(number)) or float(number) not in limits:
            none, fewer = _or_none(hint) * (not place), ", with fewer digits" * huge
            raise ConfigError(
                f"{name}{place} is {shown(number)}; expected {limits}{none}{fewer}. {limits.hint}".rstrip()
            )


def _has_number(hint: Any) -> bool:
    return hint in (int, float) or (
        typing.get_origin(hint) is not Literal and any(map(_has_number, typing.get_args(hint)))
    )


def _numbers(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every number in a value, and where in it."""
    if isinstance(value, Real) and value is not True and value is not False:
        yield place, value
    elif isinstance(value, Mapping | list | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _numbers(inner, f"{place}[{key}]")


def _is_huge(value: Any) -> bool:
    """Whether arithmetic cannot go on with a number: whole numbers have no largest one."""
    return isinstance(value, int) and abs(value) > sys.float_info.max


def shown(value: Any) -> str:
    """A value as a message has it; of a whole number too long to read, or for Python to print, how long it is."""
    return f"a number of {Decimal(value).adjusted() + 1} digits" if _is_huge(value) else repr(value)


# Kinds of value -------------------------------------------------------------------------------------

_WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
    "tuple_type": "a list",
}
"""pydantic's name of an error -> what was expected."""


def _refusal(name: str, value: Any, hint: Any, error: ValidationError) -> str:
    """Says of a value made in Python, or typed, where in it something has the wrong kind, and what was expected."""
    places = [(_place(value, each["loc"]), each) for each in error.errors()]
    innermost = max((place for place, _ in places), key=len)
    limits = f" ({range_of(hint)})" if range_of(hint) else ""
    kinds, wrong = [], [each for place, each in places if place == innermost]
    for each in wrong:
        word = _WORDS.get(each["type"], each["msg"]) + limits * (each["type"] in ("int_type", "float_type"))
        choices = each.get("ctx", {}).get("expected", "").replace(" or ", ", ")
        kinds.append(f"one of {choices}" if choices else word)
    none = _or_none(hint) * (not innermost)
    return f"{name}{innermost} is {shown(wrong[0]['input'])}; expected {' or '.join(kinds)}{none}."


def _place(value: Any, steps: Sequence[int | str]) -> str:
    """Writes pydantic's way into a value without its names for the parts of a union."""
    place = ""
    for step in steps:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            value, place = value[step], f"{place}[{step}]"
    return place


# Tables ---------------------------------------------------------------------------------------------


def checked(kind: Any, table: Any, *, where: str = "") -> Any:
    """Makes an instance of a dataclass from a table, over the defaults.

    Args:
        kind: The dataclass.
        table: Values by name, as TOML, JSON or Python give them; an instance is returned as it is.
        where: What the table is, for the error.

    Raises:
        ConfigError: An unknown name (the message suggests one), a value of the wrong type, or none where one is needed.
    """
    if isinstance(table, kind):
        return table
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table; got {table!r}.")
    try:
        values = given(kind, table)
        if missing := [name for name in hints(kind) if name not in defaults(kind) | values]:
            raise ConfigError(f"'{missing[0]}' is not there, and has no default.")
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"In {where}: {error}" if where else str(error)) from error


def given(kind: Any, table: Mapping[str, Any], help_: str = "") -> dict[str, Any]:
    """Returns a table's values in the types of a dataclass's fields.

    Args:
        kind: The dataclass.
        table: See ``checked``.
        help_: Where all settings are listed, for the error.

    Raises:
        ConfigError: See ``checked``.
    """
    check_names(kind, table, help_)
    return {name: converted(name, value, hints(kind)[name]) for name, value in table.items()}


def check_names(kind: Any, names: Iterable[str], help_: str = "") -> None:
    """Checks that a dataclass has fields of these names; see ``given``."""
    hint = kind.elsewhere if issubclass(kind, Settings) else Settings.elsewhere
    check_known(names, hints(kind), "There is no setting '{}'.", hint=hint, after=help_)


def converted(name: str, value: Any, hint: Any) -> Any:
    """Puts a table's value into its type; a table becomes the dataclass that the hint names, alone or by label.

    Raises:
        ConfigError: It cannot be, or is outside its range.
    """
    kind = bare(hint)
    inner = next((part for part in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(part)), None)
    if inner is not None and typing.get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"[{name}] must hold tables such as [{name}.LABEL]; got {value!r}.")
        return {label: checked(inner, table, where=f"[{name}.{label}]") for label, table in value.items()}
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if value is None or (value == NONE and _or_none(hint)):
        value, inner = None, None
    if inner is not None:
        return checked(inner, value, where=f"[{name}]")
    try:
        value = _adapter(hint).validate_python(value)
    except ValidationError as error:
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        advice = f" {did_you_mean(str(value), map(str, choices))}" if choices else ""
        if typing.get_origin(kind) is tuple and isinstance(value, str | int | float):
            advice = f" Write: {name} = [{json.dumps(value)}]"
        what = error.errors()[0]["msg"]
        raise ConfigError(f"The setting '{name}' cannot be {shown(value)}: {what}.{advice}") from error
    if (limits := _limits(hint)) is not None:
        _check_range(name, value, hint, limits)
    return value
