"""The teams that read documents, and how a boss's plan becomes readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marft_envs import tables
from marft_envs.core.dependency import Chain, Layered, View
from marft_envs.core.routing import Router, Spawn
from marft_envs.core.teams import Team, member
from marft_envs.core.tree import Tree, joiners_of
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError
from marft_envs.families.docs.document import plan_of

_PROFILES: dict[str, str] = tables.read(__package__, "teams")
"""Role -> what its profile says."""


def _member(role: str, with_answer: bool, number: int = 0, profile: str = "") -> AgentSpec:
    return member(role, _PROFILES[profile or role], with_answer=with_answer, number=number)


def _memory(readers: int) -> Team:
    # Its note is a part of what the task shows it: D and history show it nothing of earlier pages.
    return Team((_member("memory", True),), Chain, rounds=1, remembers=True)


def _chain(readers: int) -> Team:
    agents = tuple(_member("reader", i == readers - 1, i) for i in range(readers))
    return Team(agents, lambda: Chain(sees="previous"))


def _map(readers: int) -> Team:
    mappers = tuple(_member("mapper", False, i) for i in range(readers))
    layers = [[agent.name for agent in mappers], ["reducer_0"]]
    return Team((*mappers, _member("reducer", True)), lambda: Layered(layers))


def _tree(readers: int, arity: int = 2) -> Team:
    mappers = tuple(_member("mapper", False, i) for i in range(readers))
    inner = joiners_of(readers, arity) - 1
    reducers = tuple(_member("reducer", False, i, "reducer_inside") for i in range(inner))
    leaves = [agent.name for agent in mappers]
    return Team((*mappers, *reducers, _member("reducer", True, inner)), lambda: Tree(*leaves, arity=arity))


def _speaks(view: View) -> list[str]:
    """The writer, a page a round, until all is read."""
    return [] if view.layer else ["answerer_0"] if view.outcome.info.get(ASKED) else ["writer_0"]


def _recall(readers: int) -> Team:
    agents = (_member("writer", False), _member("answerer", True))
    return Team(agents, lambda: Router(_speaks), rounds=1, remembers=True)  # what is kept is the note alone


def _boss(readers: int) -> Team:
    mappers = tuple(_member("mapper", False, i) for i in range(readers))
    return Team((_member("boss", True), *mappers), lambda: Spawn("boss_0", parse=plan_of))


TEAMS: Mapping[str, Callable[..., Team]] = {
    "solo": lambda readers: Team((_member("solo", True),), Chain),
    "memory": _memory,
    "chain": _chain,
    "map": _map,
    "tree": _tree,
    "recall": _recall,
    "boss": _boss,
}
"""Name -> the team with so many readers (for a boss: at most so many); a tree's takes its arity, too."""
ROLES = ("solo", "memory", "reader", "mapper", "reducer", "boss", "writer", "answerer")
READERS = ("reader", "mapper")
"""Roles that read a part each."""
MOST_READERS = 128
ASKED = "asked"
"""In ``Outcome.info``: all is read, and the question is asked."""


def check_readers(readers: int) -> int:
    """Returns the number of readers, or raises a ConfigError."""
    if type(readers) is not int or not 1 <= readers <= MOST_READERS:
        raise ConfigError(f"readers is {readers!r}; expected how many read, a whole number from 1 to {MOST_READERS}.")
    return readers
