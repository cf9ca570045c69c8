"""Strict validation of arguments by jsonschema (draft 2020-12), compiled once per tool.

A keyword that is not supported is an error when the schema is compiled, never ignored. ``format`` is an annotation, as
the standard has it; ``nullable`` is OpenAPI's. Patterns are matched by :mod:`marft_envs.families.tools.patterns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators

from marft_envs import tables
from marft_envs.call_formats.call import too_deep
from marft_envs.errors import ConfigError, did_you_mean
from marft_envs.families.tools import patterns

Problem = tuple[tuple[str | int, ...], str]
"""Where (keys and positions from the top) and what."""
Errors = Iterator[ValidationError]

MOST_PROBLEMS = 5
"""Most problems that the message to an agent names."""

DEEPEST = 64
"""Arguments nested deeper than this are refused before their schema is asked, and so are schemas."""

UNDECIDED = "arguments take too long to match against their patterns; send something shorter"
"""The message to an agent where a pattern cannot be decided: a defect of the pattern, which can do with less."""

_TABLE = tables.read(__package__, "validation")
_ANNOTATIONS = frozenset(_TABLE["annotations"])
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords that hold schemas by name."""
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("not", "items", "additionalProperties")
_MESSAGES: dict[str, str] = _TABLE["messages"]
"""What an agent reads, by keyword; the library's own words repeat the value, which may be long."""
_KNOWN = [*_MESSAGES, "type", "enum", "required", "nullable", "$ref", *_LISTS, *_NAMED, *_SINGLE]
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: type(v) is int or (type(v) is float and v.is_integer()),
    "number": lambda v: type(v) is int or type(v) is float,
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
"""The library's own table takes as long as all else."""


class _Reader:
    """Reads one document's schemas: refuses what is not supported, and leaves annotations out."""

    def __init__(self, document: Any, where: str) -> None:
        self.document, self.where = document, where

    def fail(self, path: str, message: str) -> ConfigError:
        return ConfigError(f"{self.where}, schema at '{path}': {message}")

    def read(self, schema: Any, path: str = "#") -> Any:
        if not isinstance(schema, Mapping):
            return schema
        out: dict[str, Any] = {}
        for keyword, value in schema.items():
            below = f"{path}/{keyword}"
            if keyword in _ANNOTATIONS:
                continue
            if keyword not in _KNOWN:
                raise self.fail(path, f"the keyword '{keyword}' is not supported. {did_you_mean(str(keyword), _KNOWN)}")
            elif keyword == "$ref":
                self.follow(schema, path, ())
            elif keyword == "enum" and value == []:
                raise self.fail(path, "'enum' cannot be []: expected a list of values.")
            elif keyword in _NAMED and isinstance(value, Mapping):
                value = {name: self.read(sub, f"{below}/{name}") for name, sub in value.items()}
            elif keyword in _LISTS and isinstance(value, list):
                value = [self.read(sub, f"{below}/{i}") for i, sub in enumerate(value)]
            elif keyword in _SINGLE:
                value = self.read(value, below)
            for pattern in [value] if keyword == "pattern" else value if keyword == "patternProperties" else ():
                try:
                    _matcher(pattern)
                except (TypeError, ValueError) as error:
                    shown = repr(pattern)[:200]
                    raise self.fail(path, f"'{keyword}' has a bad pattern {shown}: {error}.") from error
            out[keyword] = value
        return out

    def follow(self, schema: Any, path: str, followed: tuple[str, ...]) -> None:
        """Checks that a reference leads somewhere, and not back to itself before the next step into the value."""
        if not isinstance(schema, Mapping):
            return
        if (ref := schema.get("$ref")) is not None:
            if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
                raise self.fail(path, f"$ref must point into this schema ('#/$defs/…'); got {ref!r}.")
            if ref in followed:
                raise self.fail(path, f"$ref '{ref}' leads back to itself.")
            target: Any = self.document
            for part in ref.split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(target, Mapping) or key not in target:
                    raise self.fail(path, f"$ref '{ref}' leads nowhere.")
                target = target[key]
            self.follow(target, path, (*followed, ref))
        if followed:
            inside = [sub for keyword in ("anyOf", "oneOf", "allOf") for sub in schema.get(keyword, ())]
            for sub in [*inside, schema.get("not")]:
                self.follow(sub, path, followed)


_matcher = lru_cache(maxsize=4096)(patterns.compiled)


# Keywords -----------------------------------------------------------------------------------------------


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, str) and not _matcher(pattern)(instance):
        yield ValidationError("")


def _pattern_properties(validator: Any, named: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for pattern, sub in named.items():
            for key, value in instance.items():
                if _matcher(pattern)(key):
                    yield from validator.descend(value, sub, path=key)


def _additional_properties(validator: Any, other: Any, instance: Any, schema: Any) -> Errors:
    if not isinstance(instance, dict):
        return
    named, matching = schema.get("properties", {}), schema.get("patternProperties", ())
    for key, value in instance.items():
        if key in named or any(_matcher(pattern)(key) for pattern in matching):
            continue
        if other is False:
            yield ValidationError(f"is not known; known: {', '.join(named) or 'none'}", path=(key,), validator="")
        else:
            yield from validator.descend(value, other, path=key)


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Errors:
    if isinstance(instance, dict):
        for name in dict.fromkeys(names):
            if name not in instance:
                yield ValidationError("is missing", path=(name,), validator="")


def _nothing(*_: Any) -> None:
    """Says nothing about a value: definitions and annotations."""


def _descend(self: Any, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, **_: Any) -> Errors:
    """As the library's, within one document: no validator and no resolver are made for each part of a value."""
    errors: list[Any] = [ValidationError("is not allowed", validator="")] if schema is False else []
    if isinstance(schema, dict) and not (instance is None and schema.get("nullable") is True):
        for keyword, value in schema.items():
            for error in _KEYWORDS.get(keyword, _nothing)(self, value, instance, schema) or ():
                error._set(validator=keyword, validator_value=value, instance=instance)
                errors.append(error)
    for error in errors:
        if path is not None:
            error.path.appendleft(path)
        if schema_path is not None:
            error.schema_path.appendleft(schema_path)
    return iter(errors)


_KEYWORDS: dict[str, Any] = {
    **Draft202012Validator.VALIDATORS,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "required": _required,
}
_Validator: Any = validators.extend(Draft202012Validator, _KEYWORDS)
_Validator.descend, _Validator.is_type = _descend, lambda self, value, name: _TYPES[name](value)
_Validator.iter_errors = lambda self, instance: self.descend(instance, self.schema)


# Messages to agents -------------------------------------------------------------------------------------


def _problems(error: Any) -> list[Problem]:
    path, value = tuple(error.path), error.validator_value
    if not error.validator:
        what = error.message
    elif error.validator == "type":
        what = f"must be {value if isinstance(value, str) else ' or '.join(value)}, is {_type(error.instance)}"
    elif error.validator == "enum":
        what = "must be one of " + ", ".join(map(repr, value[:12])) + (", …" if len(value) > 12 else "")
    elif error.validator == "anyOf":
        return [((*path, *where), what) for where, what in _nearest(error.context)]
    elif error.validator == "oneOf":
        what = f"must fit exactly one of {len(value)} forms, fits {'none' if error.context else 'several'}"
    elif error.validator == "items":
        what = "has more elements than are allowed"
    else:
        what = _MESSAGES[error.validator].format(value)
    return [(path, what)]


def _nearest(errors: list[Any]) -> list[Problem]:
    """The form that got furthest into the value is most likely the one that was meant."""
    forms: dict[int, list[Problem]] = {}
    for error in errors:
        forms.setdefault(error.schema_path[0], []).extend(_problems(error))
    return max(forms.values(), key=lambda problems: len(problems[0][0]))


def _type(value: Any) -> str:
    return next((name for name, fits in _TYPES.items() if fits(value)), type(value).__name__)


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
    reader = _Reader(schema, where)
    read = reader.read(schema)
    try:
        _Validator.check_schema(read)
    except SchemaError as error:
        path, shown = "/".join(map(str, ["#", *error.path])), repr(error.instance)[:200]
        raise reader.fail(path, f"it cannot be {shown}: {error.message[:200]}.") from error
    validator = _Validator(read)

    def problems(value: Any) -> list[str]:
        if too_deep(value, DEEPEST):
            return [f"arguments are nested deeper than {DEEPEST} levels"]
        try:
            with patterns.budget():
                errors = list(validator.descend(value, read))
        except patterns.UndecidedError:
            return [UNDECIDED]
        if not errors:
            return []
        wrong = [problem for error in errors for problem in _problems(error)]
        order = {key: i for i, key in enumerate(value)} if isinstance(value, dict) else {}
        wrong.sort(key=lambda problem: order.get(problem[0][0] if problem[0] else None, len(order)))
        # An agent chose the keys, so what is shown of each is short.
        places = [".".join(str(part)[:60] for part in path) or "arguments" for path, _ in wrong[:MOST_PROBLEMS]]
        return [f"{place} {what}" for place, (_, what) in zip(places, wrong, strict=False)]

    return problems
