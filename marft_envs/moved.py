"""Imports modules that have moved by their old names, for one release, with a ``DeprecationWarning``.

A package says in its ``__init__``, before anything else of it is imported, what has moved::

    from marft_envs.moved import moved

    moved({"marft_algos.native": "marft_algos.engines.native", "marft_algos.bench": "marft_algos.tools.bench"})

Then ``import marft_algos.native``, ``from marft_algos.native import NativeEngine``, ``from marft_algos import native``,
``importlib.import_module``, pickles that hold the old name, and ``python -m marft_algos.native`` work as before. The
module itself stands under both names, so its classes and its state exist once. It is imported when the old name is
first asked for, and the warning names the new one. A module in a package that has moved needs no line of its own. The
old name must be free: a module that became a package of the same name says there where its names are (:func:`inside`).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

_new_names: dict[str, str] = {}


def moved(table: Mapping[str, str]) -> None:
    """Lets modules be imported under names that they had.

    Args:
        table: ``{old name: new name}``, both dotted and in full.
    """
    _new_names.update(table)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First: the folder of a package that has moved would be searched for its modules, and hold a second copy.
        sys.meta_path.insert(0, _Finder())


def inside(package: str, table: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package that was a module: its names are in modules of the package now.

    Args:
        package: Its name.
        table: ``{name: module of the package}``.
    """

    def look(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        new = f"{package}.{table[name]}"
        warnings.warn(
            f"{package}.{name} has moved: import it from {new}. The old name works for one more release.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(new), name)

    return look


class _Finder(MetaPathFinder):
    """Finds a module under its old name, or in a package under the package's old name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        old, rest = fullname, ""
        while old not in _new_names:
            old, dot, last = old.rpartition(".")
            if not dot:
                return None
            rest = f".{last}{rest}"
        spec = importlib.util.find_spec(_new_names[old] + rest)
        if spec is None:
            return None
        return ModuleSpec(fullname, _Moved(spec), is_package=spec.submodule_search_locations is not None)


class _Moved(Loader):
    """Puts the module that stands under the new name under the old one too."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        old = module.__spec__.name
        # Level 2 is the import statement: frames of the import system are not counted.
        warnings.warn(self._message(old), DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(self.spec.name)

    def get_code(self, fullname: str) -> CodeType | None:
        """Returns the new module's code, for ``python -m``."""
        warnings.warn(self._message(fullname), DeprecationWarning, stacklevel=2)
        loader: Any = self.spec.loader
        return loader.get_code(self.spec.name)

    def _message(self, old: str) -> str:
        return f"{old} has moved: import {self.spec.name}. The old name works for one more release."
