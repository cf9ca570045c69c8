"""Tables of the families (dialects, notation, teams), which are TOML files beside the code that reads them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from marft_envs.core.teams import load_profiles
from marft_envs.core.types import AgentSpec


@cache
def read(package: str, name: str) -> dict[str, Any]:
    """Returns the table ``name.toml`` of a package; not to be changed."""
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def members(package: str) -> dict[str, tuple[AgentSpec, ...]]:
    """Returns team -> its agents, of a package's ``teams.toml``: profiles by name, and the names of each team's."""
    table = read(package, "teams")
    return {team: load_profiles([table["profiles"][name] for name in names]) for team, names in table["teams"].items()}
