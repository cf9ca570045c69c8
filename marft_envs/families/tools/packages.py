"""Packages of others whose code runs as a world, from where they are installed or from a folder that is named."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from marft_envs.errors import ConfigError


def imported(
    package: str | Path | None, top: str, names: Sequence[str], missing: Callable[[str], Exception]
) -> tuple[Path, list[ModuleType]]:
    """Imports modules of a package.

    Args:
        package: The folder that holds ``top`` (a ``--target`` folder, a checkout), or that folder itself; None for the
            installed package.
        top: The package's name.
        names: Modules, with their full names.
        missing: Makes the error that says what to install, of a sentence that says why.

    Returns:
        The package's folder, and the modules.

    Raises:
        MissingExtraError: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already; one process can hold one.
    """
    wanted = None if package is None else _holder(Path(package).expanduser().resolve(), top, missing)
    if wanted is not None:
        sys.path.insert(0, str(wanted))
    try:
        importlib.invalidate_caches()
        if importlib.util.find_spec(top) is None:
            raise missing("it is not installed.")
        try:
            whole, *modules = [importlib.import_module(name) for name in (top, *names)]
        except ImportError as error:
            raise missing(f"its import failed ({error}).") from error
    finally:
        if wanted is not None:
            sys.path.remove(str(wanted))
    root = Path(next(iter(whole.__path__))).resolve()
    if wanted is not None and root.parent != wanted:
        raise ConfigError(f"{top} is loaded from {root.parent} already, not from {wanted}. Start a new process.")
    return root, modules


def _holder(folder: Path, top: str, missing: Callable[[str], Exception]) -> Path:
    """The folder to import from."""
    for candidate in (folder, folder.parent):
        if (candidate / top / "__init__.py").is_file():
            return candidate
    raise missing(f"there is no {top} in {folder}.")
