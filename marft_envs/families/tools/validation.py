"""Strict validation against a subset of JSON Schema (draft 2020-12), compiled once per tool.

A keyword that is not supported is an error when the schema is compiled, never ignored. ``format`` is an annotation, as
the standard has it; ``nullable`` is OpenAPI's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.families.tools import patterns
from marft_envs.families.tools.values import frozen, plain, too_deep

Problem = tuple[tuple[str | int, ...], str]
"""Where (keys and positions from the top) and what."""
Check = Callable[[Any], list[Problem]]
"""Takes a JSON value, returns what is wrong with it."""

MOST_PROBLEMS = 5
"""An agent is told at most so many."""

DEEPEST = 64
"""Arguments nested deeper than this are refused before their schema is asked, and so are schemas."""

UNDECIDED = "arguments take too long to match against their patterns; send something shorter"
"""What an agent is told where a pattern cannot be decided: a defect of the pattern, which can do with less."""

_ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "format",
    "$schema", "$id", "$comment", "$defs", "definitions", "discriminator",
})  # fmt: skip
_NUMBERS = (int, float)  # by `type`, since a bool is an int to isinstance
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: type(v) is int or (type(v) is float and v.is_integer()),
    "number": lambda v: type(v) in _NUMBERS,
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
}


_CLASSES: dict[str, type] = {"string": str, "integer": int, "number": float, "object": dict, "array": list}


class _Compiler:
    """Turns one document's schemas into checks; references are compiled once."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self.document, self.where = document, where
        self.refs: dict[str, list[Check]] = {}

    def fail(self, path: str, message: str) -> ConfigError:
        return ConfigError(f"{self.where}, schema at '{path}': {message}")

    def compile(self, schema: Any, path: str, in_place: frozenset[str] = frozenset()) -> Check:
        """Returns the check of a schema; ``in_place``: references followed since the last step into the value."""
        if schema is True:
            return lambda value: []
        if schema is False:
            return lambda value: [((), "is not allowed")]
        if not isinstance(schema, Mapping):
            raise self.fail(path, f"expected an object or a boolean, got {type(schema).__name__}.")
        checks: list[Check] = []
        kind: Check | None = None
        for keyword in schema:
            if keyword in _ANNOTATIONS or keyword in ("nullable", "properties", "patternProperties", "prefixItems"):
                continue
            if keyword == "$ref":
                checks.append(self.reference(schema["$ref"], path, in_place))
            elif keyword in _COMBINERS:
                checks.append(self.combined(keyword, schema[keyword], path, in_place))
            elif keyword in _SIMPLE:
                checks.append(self.simple(keyword, schema, path))
                kind = checks[-1] if keyword == "type" else kind
            elif keyword not in ("additionalProperties", "items"):
                known = [*_SIMPLE, *_COMBINERS, "properties", "items", "$ref"]
                raise self.fail(path, f"the keyword '{keyword}' is not supported. {did_you_mean(str(keyword), known)}")
        if any(key in schema for key in ("properties", "additionalProperties", "patternProperties")):
            checks.append(self.members(schema, path))
        if "items" in schema or "prefixItems" in schema:
            checks.append(self.elements(schema, path))
        together = _all(checks) if kind is None else _all(checks, kind, _classes(schema["type"]))
        return _nullable(together) if schema.get("nullable") is True else together

    def reference(self, ref: Any, path: str, in_place: frozenset[str]) -> Check:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise self.fail(path, f"$ref must point into this schema ('#/$defs/…'); got {ref!r}.")
        if ref in in_place:
            raise self.fail(path, f"$ref '{ref}' leads back to itself.")
        if ref not in self.refs:
            target: Any = self.document
            for part in ref.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(target, Mapping) or key not in target:
                    raise self.fail(path, f"$ref '{ref}' leads nowhere.")
                target = target[key]
            checks = self.refs[ref] = []
            checks.append(self.compile(target, ref, in_place | {ref}))
        cell = self.refs[ref]  # filled later where a schema holds itself
        return lambda value: cell[0](value)

    def combined(self, keyword: str, schemas: Any, path: str, in_place: frozenset[str]) -> Check:
        if keyword == "not":
            inner = self.compile(schemas, f"{path}/not", in_place)
            return lambda value: [] if inner(value) else [((), "matches what is excluded")]
        if not isinstance(schemas, Sequence) or isinstance(schemas, str) or not schemas:
            raise self.fail(path, f"'{keyword}' must be a list of schemas.")
        checks = [self.compile(s, f"{path}/{keyword}/{i}", in_place) for i, s in enumerate(schemas)]
        if keyword == "allOf":
            return _all(checks)
        if keyword == "anyOf":
            return lambda value: _any(checks, value)

        def one_of(value: Any) -> list[Problem]:
            fitting = sum(not check(value) for check in checks)
            return [] if fitting == 1 else [((), f"must fit exactly one of {len(checks)} forms, fits {fitting}")]

        return one_of

    def simple(self, keyword: str, schema: Mapping[str, Any], path: str) -> Check:
        operand = schema[keyword]
        try:
            return _SIMPLE[keyword](operand)
        except (TypeError, ValueError) as error:
            raise self.fail(path, f"'{keyword}' cannot be {repr(operand)[:200]}: {error}.") from error

    def members(self, schema: Mapping[str, Any], path: str) -> Check:
        """``properties``, ``patternProperties`` and ``additionalProperties`` together."""
        for keyword in ("properties", "patternProperties"):
            if not isinstance(schema.get(keyword, {}), Mapping):
                raise self.fail(path, f"'{keyword}' must be an object.")
        named = {k: self.compile(s, f"{path}/properties/{k}") for k, s in schema.get("properties", {}).items()}
        matching = []
        for source, sub in schema.get("patternProperties", {}).items():
            try:
                matches = patterns.compiled(source)
            except (TypeError, ValueError) as error:
                raise self.fail(path, f"patternProperties has a bad pattern {repr(source)[:200]}: {error}.") from error
            matching.append((matches, self.compile(sub, f"{path}/patternProperties/{source}")))
        other = schema.get("additionalProperties", True)
        rest = None if other is True or other is False else self.compile(other, f"{path}/additionalProperties")

        def check(value: Any) -> list[Problem]:
            out: list[Problem] = []
            if not isinstance(value, dict):
                return out
            for key, item in value.items():
                property_check = named.get(key)
                if property_check is not None and (wrong := property_check(item)):
                    out += [((key, *where), what) for where, what in wrong]
                matched = property_check is not None
                for matches, sub in matching:
                    if matches(key):
                        matched = True
                        out += [((key, *where), what) for where, what in sub(item)]
                if not matched and rest is not None:
                    out += [((key, *where), what) for where, what in rest(item)]
                elif not matched and other is False:
                    out.append(((key,), f"is not known; known: {', '.join(named) or 'none'}"))
            return out

        return check

    def elements(self, schema: Mapping[str, Any], path: str) -> Check:
        first = schema.get("prefixItems", [])
        if not isinstance(first, Sequence) or isinstance(first, str):
            raise self.fail(path, "'prefixItems' must be a list of schemas.")
        heads = [self.compile(s, f"{path}/prefixItems/{i}") for i, s in enumerate(first)]
        rest = self.compile(schema.get("items", True), f"{path}/items")
        n = len(heads)

        def check(value: Any) -> list[Problem]:
            if not isinstance(value, list):
                return []
            out: list[Problem] = []
            for i, item in enumerate(value):
                if wrong := (heads[i] if i < n else rest)(item):
                    out += [((i, *where), what) for where, what in wrong]
            return out

        return check


def _all(checks: list[Check], kind: Check | None = None, usual: frozenset[type] = frozenset()) -> Check:
    """All of these, but for ``kind`` where the value's class is a ``usual`` one, which says that it fits."""
    if len(checks) == 1:
        return checks[0]
    others = [check for check in checks if check is not kind]

    def check(value: Any) -> list[Problem]:
        out: list[Problem] = []
        for one in others if type(value) in usual else checks:
            if wrong := one(value):
                out += wrong
        return out

    return check


def _any(checks: list[Check], value: Any) -> list[Problem]:
    nearest: list[Problem] | None = None
    for check in checks:
        wrong = check(value)
        if not wrong:
            return wrong
        # The form that got furthest into the value is most likely the one that was meant.
        if nearest is None or len(wrong[0][0]) > len(nearest[0][0]):
            nearest = wrong
    return nearest or []


def _nullable(check: Check) -> Check:
    return lambda value: [] if value is None else check(value)


# Keywords that need only their own operand --------------------------------------------------------------


def _type(operand: Any) -> Check:
    names = [operand] if isinstance(operand, str) else operand
    if not isinstance(names, Sequence) or not names or any(name not in _TYPES for name in names):
        raise ValueError(f"expected one or several of {', '.join(_TYPES)}")
    tests = [_TYPES[name] for name in names]
    expected = " or ".join(names)
    if len(tests) == 1:
        test = tests[0]
        return lambda value: [] if test(value) else [((), f"must be {expected}, is {json_type(value)}")]
    return lambda v: [] if any(test(v) for test in tests) else [((), f"must be {expected}, is {json_type(v)}")]


def _classes(operand: Any) -> frozenset[type]:
    """Classes whose values have a type of JSON whatever they are; floats are integers at times only."""
    names = [operand] if isinstance(operand, str) else operand
    return frozenset(_CLASSES[name] for name in names if name in _CLASSES)


def json_type(value: Any) -> str:
    """Returns the JSON name of a value's type."""
    order = ("null", "boolean", "integer", "number", "string", "array", "object")
    return next((name for name in order if _TYPES[name](value)), type(value).__name__)


def _enum(operand: Any) -> Check:
    if not isinstance(operand, Sequence) or isinstance(operand, str) or not operand:
        raise ValueError("expected a list of values")
    allowed = {frozen(value) for value in operand}
    shown = ", ".join(repr(value) for value in operand[:12]) + (", …" if len(operand) > 12 else "")
    return lambda value: [] if frozen(value) in allowed else [((), f"must be one of {shown}")]


def _const(operand: Any) -> Check:
    wanted = frozen(operand)
    return lambda value: [] if frozen(value) == wanted else [((), f"must be {operand!r}")]


def _required(operand: Any) -> Check:
    if not isinstance(operand, Sequence) or isinstance(operand, str) or not all(isinstance(k, str) for k in operand):
        raise ValueError("expected a list of names")
    names = dict.fromkeys(operand).keys()

    def check(value: Any) -> list[Problem]:
        if not isinstance(value, dict) or names <= value.keys():
            return []
        return [((name,), "is missing") for name in names if name not in value]

    return check


def _bound(fits: Callable[[Any, Any], bool], words: str) -> Callable[[Any], Check]:
    def build(operand: Any) -> Check:
        _number(operand)
        return lambda v: [((), f"must be {words} {operand}")] if type(v) in _NUMBERS and not fits(v, operand) else []

    return build


def _size(
    kind: type[str] | type[list] | type[dict], fits: Callable[[int, int], bool], words: str
) -> Callable[[Any], Check]:
    def build(operand: Any) -> Check:
        if not _TYPES["integer"](operand) or operand < 0:
            raise ValueError("expected a whole number of at least 0")

        def check(value: Any) -> list[Problem]:
            wrong = isinstance(value, kind) and not fits(len(value), operand)
            return [((), f"must have {words} {operand}")] if wrong else []

        return check

    return build


def _number(operand: Any) -> None:
    if not _TYPES["number"](operand) or not math.isfinite(operand):
        raise ValueError("expected a number")


def _multiple(operand: Any) -> Check:
    _number(operand)
    if operand <= 0:
        raise ValueError("expected a number above 0")

    def fits(value: Any) -> bool:
        if isinstance(operand, int) or (isinstance(value, int) and abs(value) > 2**53):
            return Fraction(value) % Fraction(operand) == 0
        quotient = value / operand  # as floats, so that 0.3 is a multiple of 0.1 as far as floats can tell
        return quotient.is_integer() if math.isfinite(quotient) else Fraction(value) % Fraction(operand) == 0

    is_number = _TYPES["number"]
    return lambda v: [((), f"must be a multiple of {operand}")] if is_number(v) and not fits(v) else []


def _pattern(operand: Any) -> Check:
    matches = patterns.compiled(operand)
    return lambda v: [((), f"must match {operand}")] if isinstance(v, str) and not matches(v) else []


def _unique(operand: Any) -> Check:
    if not isinstance(operand, bool):
        raise ValueError("expected true or false")

    def check(value: Any) -> list[Problem]:
        if not operand or not isinstance(value, list) or len({frozen(item) for item in value}) == len(value):
            return []
        return [((), "must not hold the same element twice")]

    return check


_COMBINERS = ("anyOf", "oneOf", "allOf", "not")
_SIMPLE: dict[str, Callable[[Any], Check]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    "minimum": _bound(operator.ge, "at least"),
    "maximum": _bound(operator.le, "at most"),
    "exclusiveMinimum": _bound(operator.gt, "above"),
    "exclusiveMaximum": _bound(operator.lt, "below"),
    "multipleOf": _multiple,
    "minLength": _size(str, operator.ge, "a length of at least"),
    "maxLength": _size(str, operator.le, "a length of at most"),
    "minItems": _size(list, operator.ge, "an element count of at least"),
    "maxItems": _size(list, operator.le, "an element count of at most"),
    "minProperties": _size(dict, operator.ge, "a member count of at least"),
    "maxProperties": _size(dict, operator.le, "a member count of at most"),
    "pattern": _pattern,
    "uniqueItems": _unique,
}


def compiled(schema: Mapping[str, Any], where: str) -> Callable[[Any], list[str]]:
    """Returns a function that says what is wrong with a JSON value, in at most :data:`MOST_PROBLEMS` sentences.

    Args:
        schema: JSON Schema; ``$ref`` may point into it.
        where: What errors call it.

    Raises:
        ConfigError: If the schema uses what is not supported, or is no schema.
    """
    if too_deep(schema, 3 * DEEPEST):  # three levels of a schema are one of the value at most
        raise ConfigError(f"{where}: the schema is nested deeper than {3 * DEEPEST} levels.")
    check = _Compiler(schema, where).compile(schema, "#")

    def problems(value: Any) -> list[str]:
        if not plain(value) and too_deep(value, DEEPEST):
            return [f"arguments are nested deeper than {DEEPEST} levels"]
        try:
            with patterns.budget():
                wrong = check(value)
        except patterns.UndecidedError:
            return [UNDECIDED]
        return [f"{_place(path)} {what}" for path, what in wrong[:MOST_PROBLEMS]] if wrong else []

    return problems


def _place(path: tuple[str | int, ...]) -> str:
    """An agent chose the keys, so what is shown of each is short."""
    return ".".join(str(part)[:60] for part in path) or "arguments"
