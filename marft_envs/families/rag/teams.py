"""The teams that retrieve: who searches, reads, plans and answers, and their D."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from marft_envs import tables
from marft_envs.core.dependency import Chain, View
from marft_envs.core.routing import Orchestrator, Router, Spawn, parse_assignments
from marft_envs.core.teams import Team, member
from marft_envs.core.types import AgentSpec, Turn

SEARCHERS = 3
"""Most searchers that a planner can send out side by side."""
ROLES = ("solo", "searcher", "reader", "answerer", "planner", "checker", "router")
_PROFILES: dict[str, str] = tables.read(__package__, "teams")


def _member(role: str, number: int = 0) -> AgentSpec:
    return member(role, _PROFILES[role], with_answer=role in ("solo", "answerer", "checker"), number=number)


def hopping(view: View, searches: int) -> list[str | Turn]:
    """D of a chain: searcher and reader in turn, so many times, then the answerer.

    The reader sees the search that it reads and its own notes; searcher and answerer see the notes.
    """
    notes = tuple(turn.index for turn in view.this_round if turn.agent == "reader_0")
    if view.layer % 2 and view.layer < 2 * searches:
        return [Turn("reader_0", (*notes, view.history[-1].index))]
    if view.layer > 2 * searches:
        return []
    return [Turn("searcher_0" if view.layer < 2 * searches else "answerer_0", notes)]


def _solo(searches: int) -> Team:
    return Team((_member("solo"),), Chain, rounds=searches + 1)


def _chain(searches: int) -> Team:
    agents = (_member("searcher"), _member("reader"), _member("answerer"))
    return Team(agents, partial(Router, partial(hopping, searches=searches)))


def _planner(searches: int) -> Team:
    searchers = tuple(_member("searcher", i) for i in range(SEARCHERS))
    team = (_member("planner"), *searchers, _member("checker"))
    return Team(team, lambda: Spawn("planner_0", joiner="checker_0", parse=parse_assignments), rounds=searches)


def _router(searches: int) -> Team:
    agents = (_member("router"), _member("searcher"), _member("reader"), _member("answerer"))
    return Team(agents, lambda: Orchestrator("router_0", hops=2 * searches + 1, default="searcher_0"))


TEAMS: Mapping[str, Callable[[int], Team]] = {"solo": _solo, "chain": _chain, "planner": _planner, "router": _router}
"""Name -> the team that searches so many times (a planner: so many rounds)."""
