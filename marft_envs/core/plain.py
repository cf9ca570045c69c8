"""Records as plain data: what JSON can hold, and a description in the place of what it cannot."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

CRITICAL_PATH = "critical_path"
"""Key of a number that is written for readers of the file, and worked out again from the turns when it is read."""
UNWRITABLE = "__repr__"
"""Key under which a value that JSON cannot hold is described."""


def plain(value: Any) -> Any:
    """Returns what ``json.dumps`` writes of an object: its argument ``default``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.compare}
        return fields | {name: getattr(value, name) for name in (CRITICAL_PATH,) if hasattr(value, name)}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return {UNWRITABLE: repr(value)}
