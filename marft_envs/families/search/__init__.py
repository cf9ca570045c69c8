"""Search teams: ``search-solo-v0``, ``search-pick-v0``, … on puzzles that are harder to solve than to check, or not.

>>> env = marft_envs.make("search-pick-v0", puzzle="sum", split="test")
"""

from __future__ import annotations

from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.teams import Profiles, Team, named
from marft_envs.errors import ConfigError
from marft_envs.families.search.puzzles import KINDS, Puzzle, kind_of, puzzles
from marft_envs.families.search.task import SearchTask
from marft_envs.families.search.teams import TEAMS, TRIES

__all__ = ["KINDS", "TEAMS", "Puzzle", "SearchTask", "Team", "make"]


def make(
    team_name: str = "pick",
    puzzle: str = "sum",
    split: str = "train",
    limit: int | None = None,
    tries: int = TRIES,
    profiles: Profiles | None = None,
    dependency: Any = None,
    **flex: Any,
) -> FlexEnv:
    """Builds a search environment.

    Args:
        team_name: One of :data:`TEAMS`; which one is the id's business.
        puzzle: ``sum`` or ``colour``, whose answers are checked in one pass; ``count``, whose answers are not.
        split: ``train`` or ``test``.
        limit: At most so many puzzles, spread evenly.
        tries: Proposers of ``pick``, proposals of ``check``, answers that an expert of ``trial`` tries.
        profiles: Agent or role -> another profile.
        dependency: Replaces the team's D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        **flex: Settings of :class:`FlexEnv` (``observation``, ``attribution``, …).

    Raises:
        ConfigError: If the team, the puzzle, profiles or D cannot work.
        DataError: If ``limit`` is below 1.
    """
    if isinstance(tries, bool) or not isinstance(tries, int) or tries < 1:
        raise ConfigError(f"tries is {tries!r}; expected how many answers are proposed, 1 or more.")
    team = named("searching", team_name, TEAMS)(tries).changed(profiles, dependency)
    trying = {agent.name: tries for agent in team.agents if agent.role == "trier"}
    task = SearchTask(kind_of(puzzle), puzzles(puzzle, split, limit), team.agents, trying)
    return team.on(task, **flex)
