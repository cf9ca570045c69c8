"""Optional packages: imported when they are used, with an answer where they are missing, too old or too new."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from importlib import metadata
from types import ModuleType

from marft_envs.errors import ConfigError, MissingExtraError, check_known


def check_name(package: str, name: str, known: Iterable[str]) -> None:
    """Raises ``ConfigError`` unless a package's registry knows this name."""
    check_known([name], list(known), f"{package} has no '{{}}'.")


def require(module: str, extra: str, minimum: str = "0", package: str = "", below: str = "") -> ModuleType:
    """Imports an optional package.

    Args:
        module: What to import.
        extra: The extra of this project that brings it.
        minimum: Oldest version that works; 0: any.
        package: The distribution's name, where it is not the module's.
        below: First version that was not tried; none: "".

    Raises:
        MissingExtraError: It is not installed; the message holds the pip command.
        ConfigError: It is older than ``minimum``, or not older than ``below``; the message holds both versions.
    """
    package = package or module.partition(".")[0]
    # The version first: a package that does not fit may fail to import, with a message that does not say why.
    if minimum != "0" or below:
        try:
            _check_version(package, metadata.version(package), minimum, below)
        except metadata.PackageNotFoundError as error:
            raise MissingExtraError(f"'{module}' (no package '{package}')", extra) from error
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"'{module}' (no package '{error.name}')", extra) from error


def _check_version(package: str, have: str, minimum: str, below: str) -> None:
    if _release(have) >= _release(minimum) and (not below or _release(have) < _release(below)):
        return
    wanted = f"{minimum} or newer" + (f", but older than {below}" if below else "")
    pinned = f"{package}>={minimum}" + (f",<{below}" if below else "")
    raise ConfigError(f"{package} {have} is installed; expected {wanted}. Type: pip install '{pinned}'")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[a-z+-]", version)[0]))
