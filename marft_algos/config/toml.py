"""Settings on disk: a writer for the part of TOML that settings need (``tomllib`` reads it)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from marft_envs.errors import ConfigError

NONE = "none"
"""TOML has no null; a setting that is off is written as this word."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dumps(table: Mapping[str, Any]) -> str:
    """Writes nested mappings as TOML; mappings on the first level become ``[sections]``."""
    lines = [f"{_key(k)} = {_value(v, k)}" for k, v in table.items() if not isinstance(v, Mapping)]
    for name, section in table.items():
        if isinstance(section, Mapping):
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(k)} = {_value(v, f'{name}.{k}')}" for k, v in section.items()]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON escapes are TOML escapes, but for DEL, which TOML wants escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, where: str) -> str:
    if value is None:
        return _string(NONE)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v, where) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v, where)}" for k, v in value.items()) + "}"
    raise ConfigError(
        f"The setting '{where}' is a {type(value).__name__}, which cannot be written to a file. Expected text, "
        "numbers, true/false, lists or tables: register an environment that builds the object, and name its id."
    )
