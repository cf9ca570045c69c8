"""The teams that read documents, and how a boss's plan becomes readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marft_envs.core.dependency import Chain, Layered
from marft_envs.core.routing import Spawn
from marft_envs.core.teams import Team, member
from marft_envs.errors import ConfigError
from marft_envs.families.docs.document import plan_of

ANSWER = r" End with the answer in \boxed{}."
SOLO = "You read a document and answer a question about it." + ANSWER
MEMORY = (
    r"You read a document page by page. Go on from your note. End with your next note in \boxed{}."
    " After the last page end with the answer in it."
)
READER = (
    r"You read a part of a document. Go on from the note of the reader before you. End with your note in \boxed{}."
    " After the last part end with the answer in it."
)
MAPPER = r"You read a part of a document. End with what it says to the question in \boxed{}."
REDUCER = "Others have read a part of a document each. Answer the question from their notes." + ANSWER
BOSS = (
    r"You send readers to the pages of a document. End with the pages of each, as in \boxed{1-2; 3}."
    r" Later answer the question from their notes. End with the answer in \boxed{}."
)


def _solo(readers: int) -> Team:
    return Team((member("solo", SOLO, True),), Chain)


def _memory(readers: int) -> Team:
    # Its note is a part of what the task shows it: D and history show it nothing of earlier pages.
    return Team((member("memory", MEMORY, True),), Chain, rounds=1, remembers=True)


def _chain(readers: int) -> Team:
    agents = tuple(member("reader", READER, i == readers - 1, i) for i in range(readers))
    return Team(agents, lambda: Chain(sees="previous"))


def _map(readers: int) -> Team:
    mappers = tuple(member("mapper", MAPPER, False, i) for i in range(readers))
    layers = [[agent.name for agent in mappers], ["reducer_0"]]
    return Team((*mappers, member("reducer", REDUCER, True)), lambda: Layered(layers))


def _boss(readers: int) -> Team:
    mappers = tuple(member("mapper", MAPPER, False, i) for i in range(readers))
    return Team((member("boss", BOSS, True), *mappers), lambda: Spawn("boss_0", parse=plan_of))


TEAMS: Mapping[str, Callable[[int], Team]] = {
    "solo": _solo,
    "memory": _memory,
    "chain": _chain,
    "map": _map,
    "boss": _boss,
}
"""Name -> the team with so many readers (for a boss: at most so many)."""
ROLES = ("solo", "memory", "reader", "mapper", "reducer", "boss")
READERS = ("reader", "mapper")
"""Roles that read a part each."""
MOST_READERS = 128


def check_readers(readers: int) -> int:
    """Returns the number of readers, or raises a ConfigError."""
    if type(readers) is not int or not 1 <= readers <= MOST_READERS:
        raise ConfigError(f"readers is {readers!r}; expected how many read, a whole number from 1 to {MOST_READERS}.")
    return readers
