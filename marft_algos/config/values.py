"""Tables of settings as TOML: read from files, and written."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from marft_algos.ranges import NONE as NONE
from marft_envs.errors import ConfigError, reading


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
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ConfigError(
            f"The setting '{where}' is {value!a}, which is no UTF-8, as files of settings are. Expected a path in"
            " UTF-8: rename the file or folder, or link to it by another name: ln -s OLD NEW"
        )
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


def templates(setting: str | Mapping[str, str]) -> str | dict[str, str]:
    """Returns chat templates, of all or by policy, as text: of the name of a file, what it holds.

    Raises:
        ConfigError: There is no such file, or it holds no template.
    """
    if not isinstance(setting, str):
        return {policy: str(templates(one)) for policy, one in setting.items()}
    if not setting or "{" in setting:
        return setting
    expected = "Expected a file as --chat-template plain.jinja; docs/models.md has one."
    with reading(f"Cannot read the chat template '{setting}'", expected):
        text = Path(setting).expanduser().read_text(encoding="utf-8")
        if "{" not in text:
            raise ValueError("nothing in it is Jinja's, such as {{ message.content }}")
        return text
