"""Packages of others whose code runs as a world, from where they are installed or from a folder that is named."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from unittest import mock

from marft_envs.errors import ConfigError, MissingExtraError


class MissingPackageError(MissingExtraError):
    """A package is not there, or something it imports; the message holds the pip command."""

    def __init__(self, package: Package, why: str) -> None:
        says = f"{package.uses}: {why} Install it without its dependencies, which pin old versions: {package.install}"
        ImportError.__init__(self, f"{says} (or into a folder with --target, and give that as package=…).")


@dataclass(frozen=True)
class Package:
    """One such package; a table beside the code that runs on it has these."""

    name: str
    """As it is imported."""
    uses: str
    """A clause of who runs on it, for errors."""
    install: str
    """The pip command."""

    def imported(self, folder: str | Path | None, names: Iterable[str] = ()) -> tuple[Path, list[ModuleType]]:
        """Imports modules of the package.

        Args:
            folder: The folder that holds the package (a ``--target`` folder, a checkout), or the package's own; None:
                it is installed.
            names: Modules, with their full names; others that lie in the folder may be among them.

        Returns:
            The package's own folder, and the modules.

        Raises:
            MissingPackageError: The package is not there, or something it imports.
            ConfigError: Another copy is loaded already; one process can hold one.
        """
        place = None if folder is None else Path(folder).expanduser().resolve()
        near = [] if place is None else [place, place.parent]
        wanted = [one for one in near if (one / self.name / "__init__.py").is_file()][:1]
        if place is not None and not wanted:
            raise MissingPackageError(self, f"there is no {self.name} in {place}.")
        importlib.invalidate_caches()
        try:
            with mock.patch.object(sys, "path", [*map(str, wanted), *sys.path]):
                whole, *modules = [importlib.import_module(name) for name in (self.name, *names)]
        except ImportError as error:
            why = "it is not installed." if error.name == self.name else f"its import failed ({error})."
            raise MissingPackageError(self, why) from error
        root = Path(next(iter(whole.__path__))).resolve()
        if wanted and root.parent != wanted[0]:
            loaded = f"{self.name} is loaded from {root.parent} already, not from {wanted[0]}."
            raise ConfigError(f"{loaded} Start a new process.")
        return root, modules


class Pickled:
    """A world of objects of a package: a fresh episode, a snapshot and a fork share none of them."""

    parts: tuple[str, ...]
    """Names of the attributes that are its state."""
    _hash: str

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = copy.copy(self)
        other.restore(self.snapshot())
        return other

    def snapshot(self) -> bytes:
        """Returns a pickle of the state."""
        return pickle.dumps(tuple(getattr(self, name) for name in self.parts), pickle.HIGHEST_PROTOCOL)

    def restore(self, snapshot: bytes) -> None:
        """Goes back to a snapshot."""
        self.__dict__.update(zip(self.parts, pickle.loads(snapshot), strict=True))
        self._hash = ""

    def close(self) -> None:
        """Nothing is held."""
