"""Tables of settings: read from TOML, checked against a dataclass, and written as TOML again."""

from __future__ import annotations

import dataclasses
import datetime
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import ConfigDict, TypeAdapter, ValidationError

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
    """The value in the types that TOML has."""
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
    except ValueError as error:  # of TOML, of UTF-8, and of numbers that are too long for Python to read
        raise ConfigError(f"'{path}' is not TOML: {error}. Expected lines such as: lr = 1e-4") from error


def checked(
    kind: Any, table: Mapping[str, Any], base: Any = None, *, skip: tuple[str, ...] = (), help_: str = ""
) -> Any:
    """Makes an instance of a dataclass: the table's values over those of ``base`` over the defaults.

    Args:
        kind: The dataclass.
        table: Values by name, as TOML, JSON or Python give them.
        base: An instance of it, or None.
        skip: Fields that the table cannot set.
        help_: Where all settings are listed, for the error.

    Raises:
        ConfigError: An unknown name (the message suggests one) or a value of the wrong type.
    """
    hints = typing.get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind) if f.init and f.name not in skip]
    values = {name: getattr(base, name) for name in names} if base is not None else {}
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"There is no setting '{key}'. {did_you_mean(key, names)} {help_}".rstrip())
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        allows_none = type(None) in typing.get_args(hints[key])
        values[key] = _coerced(key, None if allows_none and value == NONE else value, hints[key])
    return kind(**values)


def _coerced(key: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=False)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        hint_text = f" {did_you_mean(str(value), map(str, choices))}" if choices else ""
        raise ConfigError(f"The setting '{key}' cannot be {shown(value)}: {first['msg']}.{hint_text}") from error
