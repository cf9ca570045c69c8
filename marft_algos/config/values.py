"""Tables of settings: read from TOML, checked against a dataclass, and written as TOML again."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import TypeAdapter, ValidationError

from marft_algos.ranges import shown
from marft_envs.errors import ConfigError, did_you_mean

NONE = "none"
"""TOML has no null; a setting that is off is written as this word."""


def dumps(table: Mapping[str, Any]) -> str:
    """Writes nested mappings as TOML, ``None`` as the word ``none``.

    Raises:
        ConfigError: A value that TOML cannot hold.
    """
    return tomli_w.dumps({key: _plain(value, key) for key, value in table.items()})


def _plain(value: Any, where: str) -> Any:
    """Returns the value in the types that TOML has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where) for inner in value]
    if isinstance(value, str | int | float | datetime.date | datetime.time | None):
        return NONE if value is None else value
    raise ConfigError(
        f"The setting '{where}' is a {type(value).__name__}, which cannot be written to a file. Expected text, "
        "numbers, true/false, lists or tables: register an environment that builds the object, and name its id."
    )


def read(path: Path | str) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        ConfigError: No such file, or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # with or without Notepad's mark
    except OSError as error:
        raise ConfigError(f"Cannot read the settings in '{path}': {error.strerror}. Expected a TOML file.") from error
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of too long numbers, of lists in lists
        raise ConfigError(f"'{path}' is not TOML: {error}. Expected lines such as: lr = 1e-4") from error


def checked(
    kind: Any, table: Any, base: Any = None, *, skip: tuple[str, ...] = (), where: str = "", help_: str = ""
) -> Any:
    """Makes an instance of a dataclass: the table's values over those of ``base`` over the defaults.

    Args:
        kind: The dataclass.
        table: Values by name, as TOML, JSON or Python give them; an instance is returned as it is.
        base: An instance of it, or None.
        skip: Fields that the table cannot set.
        where: What the table is, for the error.
        help_: Where all settings are listed, for the error.

    Raises:
        ConfigError: An unknown name (the message suggests one), a value of the wrong type, or none where one is needed.
    """
    if isinstance(table, kind):
        return table
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table; got {table!r}.")
    hints = typing.get_type_hints(kind)
    fields = [f for f in dataclasses.fields(kind) if f.init and f.name not in skip]
    values = {f.name: getattr(base, f.name) for f in fields} if base is not None else {}
    try:
        for key, value in table.items():
            if key not in (names := [f.name for f in fields]):
                raise ConfigError(f"There is no setting '{key}'. {did_you_mean(key, names)} {help_}".rstrip())
            values[key] = converted(key, value, hints[key])
        missing = dataclasses.MISSING
        for f in fields:
            if f.name not in values and f.default is missing and f.default_factory is missing:
                raise ConfigError(f"'{f.name}' is not there, and has no default.")
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"In {where}: {error}" if where else str(error)) from error


def converted(key: str, value: Any, hint: Any) -> Any:
    """Puts a setting's value into its type; a table becomes the dataclass that the hint names, alone or by label.

    Raises:
        ConfigError: It cannot be.
    """
    inner = next((a for a in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(a)), None)
    if inner is not None and typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"[{key}] must hold tables such as [{key}.LABEL]; got {value!r}.")
        return {label: checked(inner, table, where=f"[{key}.{label}]") for label, table in value.items()}
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if value is None or (value == NONE and type(None) in typing.get_args(hint)):
        value, inner = None, None
    if inner is not None:
        return checked(inner, value, where=f"[{key}]")
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        advice = f" {did_you_mean(str(value), map(str, choices))}" if choices else ""
        if typing.get_origin(hint) is tuple and isinstance(value, str | int | float):
            advice = f" Write: {key} = [{json.dumps(value)}]"
        what = error.errors()[0]["msg"]
        raise ConfigError(f"The setting '{key}' cannot be {shown(value)}: {what}.{advice}") from error


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)
