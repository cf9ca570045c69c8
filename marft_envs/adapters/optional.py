"""Optional packages: imported when they are used, with an answer where they are missing or too old."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from importlib import metadata
from types import ModuleType

from marft_envs.errors import ConfigError, MissingExtraError, did_you_mean


def check_name(package: str, name: str, known: Iterable[str]) -> None:
    """Raises ``ConfigError`` unless a package's registry knows this name."""
    known = list(known)
    if name not in known:
        raise ConfigError(f"{package} has no '{name}'. {did_you_mean(name, known)}")


def require(module: str, extra: str, minimum: str = "0", package: str = "") -> ModuleType:
    """Imports an optional package.

    Args:
        module: What to import.
        extra: The extra of this project that brings it.
        minimum: Oldest version that works; 0: any.
        package: The distribution's name, where it is not the module's.

    Raises:
        MissingExtraError: It is not installed; the message holds the pip command.
        ConfigError: It is older than ``minimum``; the message holds both versions.
    """
    package = package or module.partition(".")[0]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"'{module}' (no package '{error.name}')", extra) from error
    if minimum == "0":
        return found
    have = metadata.version(package)
    if _release(have) < _release(minimum):
        raise ConfigError(
            f"{package} {have} is installed; expected {minimum} or newer. Type: pip install '{package}>={minimum}'"
        )
    return found


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+-]", version)[0]))
