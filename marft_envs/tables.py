"""Tables (ids, teams, sets, notation, call formats), which are TOML files beside the code that they belong to."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from marft_envs.core.teams import load_profiles
from marft_envs.core.types import AgentSpec


@cache
def read(package: str, name: str) -> dict[str, Any]:
    """Returns the table ``name.toml`` of a package; not to be changed."""
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def beside(package: str, name: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields each entry of the tables ``name.toml`` in a package's folders, none of which is imported for it.

    A folder that is taken away takes its entries with it.

    Returns:
        The entry's key, the folder as a package, and what stands there.
    """
    for folder in sorted(resources.files(package).iterdir(), key=lambda folder: folder.name):
        if (table := folder / f"{name}.toml").is_file():
            for key, entry in tomllib.loads(table.read_text(encoding="utf-8")).items():
                yield key, f"{package}.{folder.name}", entry


def members(package: str) -> dict[str, tuple[AgentSpec, ...]]:
    """Returns team -> its agents, of a package's ``teams.toml``: profiles by name, and the names of each team's."""
    table = read(package, "teams")
    return {team: load_profiles([table["profiles"][name] for name in names]) for team, names in table["teams"].items()}
