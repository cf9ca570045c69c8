"""Finds the ``bfcl-eval`` package at run time and loads its executable back ends.

Its full dependencies pin old versions of packages that this project uses, so it is no extra: it is installed without
them. The back ends need the standard library and ``mpmath`` only.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from marft_envs.errors import ConfigError, DataError, MissingExtraError
from marft_envs.families import tables
from marft_envs.families.tools.types import Shared

INSTALL = "pip install --no-deps bfcl-eval mpmath"
SOURCES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
CLASSES: Mapping[str, str] = tables.read(__package__, "bfcl")["modules"]
"""Class -> its module, which is also the name of the file that describes its tools."""
STATELESS = frozenset({"MathAPI"})
"""Classes without a loader of initial states."""


class MissingBfclError(MissingExtraError):
    """The ``bfcl-eval`` package is not installed; the message holds the pip command."""

    def __init__(self, why: str) -> None:
        ImportError.__init__(
            self,
            f"The bfcl tools run on the back ends of the bfcl-eval package: {why} Install it without its dependencies, "
            f"which pin old versions: {INSTALL} (or into a folder with --target, and give that as package=…).",
        )


@dataclass(frozen=True, eq=False)
class Backends(Shared):
    """The classes that the tools are methods of, and where upstream's data lies."""

    root: Path
    """The folder ``bfcl_eval``."""
    classes: Mapping[str, type[Any]] = field(repr=False)


@lru_cache(maxsize=4)
def load(package: str | Path | None = None) -> Backends:
    """Imports the back ends.

    Args:
        package: The folder that holds ``bfcl_eval`` (a ``--target`` folder, a checkout), or that folder itself; None
            for the installed package.

    Raises:
        MissingBfclError: The package is not there, or something it imports.
        ConfigError: Another copy is loaded already; one process can hold one.
        DataError: The package has not the classes that its tasks use.
    """
    wanted = None if package is None else _holder(Path(package).expanduser().resolve())
    if wanted is not None:
        sys.path.insert(0, str(wanted))
    try:
        importlib.invalidate_caches()
        if importlib.util.find_spec("bfcl_eval") is None:
            raise MissingBfclError("it is not installed.")
        try:
            top = importlib.import_module("bfcl_eval")
            modules = {name: importlib.import_module(f"{SOURCES}.{module}") for name, module in CLASSES.items()}
        except ImportError as error:
            raise MissingBfclError(f"its import failed ({error}).") from error
    finally:
        if wanted is not None:
            sys.path.remove(str(wanted))
    root = Path(next(iter(top.__path__))).resolve()
    if wanted is not None and root.parent != wanted:
        raise ConfigError(f"bfcl_eval is loaded from {root.parent} already, not from {wanted}. Start a new process.")
    lacks = [name for name, module in modules.items() if not hasattr(module, name)]
    if lacks:
        raise DataError(f"{root} has no {', '.join(lacks)}. Expected the back ends of bfcl-eval 2025 or later.")
    return Backends(root, {name: getattr(module, name) for name, module in modules.items()})


def _holder(folder: Path) -> Path:
    """The folder to import from."""
    for candidate in (folder, folder.parent):
        if (candidate / "bfcl_eval" / "__init__.py").is_file():
            return candidate
    raise MissingBfclError(f"there is no bfcl_eval in {folder}.")
