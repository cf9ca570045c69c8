"""Teams that search a corpus, read what they find, and answer: ``rag-chain-v0``, ``rag-router-v0`` and others.

>>> env = marft_envs.make("rag-chain-v0", hops=[1, 2], level=1)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.teams import Profiles, named
from marft_envs.errors import ConfigError
from marft_envs.families.rag import data as data_mod
from marft_envs.families.rag import procedural
from marft_envs.families.rag.data import Search, Searcher
from marft_envs.families.rag.task import RagTask
from marft_envs.families.rag.teams import TEAMS
from marft_envs.problems.index import Index, Passage

__all__ = ["TEAMS", "Index", "Passage", "RagTask", "make"]

DATA_SEARCHES = 2
"""Searches for questions that were not made here, unless ``searches`` says otherwise; most of HotpotQA need so many."""
MOST_SEARCHES = 64


def make(
    team_name: str = "chain",
    data: str | Path = "procedural",
    split: str = "train",
    hops: int | Sequence[int] = 2,
    level: int = 0,
    world: int = 0,
    corpus: str | Path | None = None,
    index: str | Path | None = None,
    search: Search | str | None = None,
    search_timeout_s: float = 30.0,
    k: int | None = None,
    searches: int | None = None,
    reward: str = "em",
    recall_reward: float = 0.0,
    limit: int | None = None,
    profiles: Profiles | None = None,
    dependency: Any = None,
    **flex: Any,
) -> FlexEnv:
    """Builds an environment of the family.

    Args:
        team_name: One of :data:`TEAMS`; the environment's id sets it.
        data: ``procedural``, a set's name or the path of a JSONL file, see :func:`marft_envs.families.rag.data.load`.
        split: ``train`` or ``test``.
        hops: Searches that a procedural question takes, 1 to 4; with several, each is equally frequent.
        level: Of procedural questions: 0 (terse, which the embedded model can learn) or 1 (prose).
        world: The number of the procedural corpus; each number has other facts.
        corpus: A JSONL file of passages or a folder of text files; None: the passages that come with the questions.
        index: The folder of the corpus' index; None: a folder in the user's cache.
        search: ``search(query, k)`` in place of BM25, or its name, ``module:function``.
        search_timeout_s: The most seconds of a search.
        k: Passages that a search returns; None: 3, at level 0 of procedural questions 2.
        searches: The number of searches of a team (for a planner: of rounds with searches); None: as many as procedural
            questions take, else 2.
        reward: ``em``, ``f1`` or ``substring``.
        recall_reward: A search's turn reward is this, times the share of the needed documents that it was first to
            find.
        limit: The most questions; None: all.
        profiles: Agent or role -> another profile; at level 0 of procedural questions it is the role's name.
        dependency: Replaces the team's D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        **flex: Settings of :class:`FlexEnv` (``observation``, ``max_chars``, ``on_invalid``, …).

    Raises:
        ConfigError: If the team, profiles, D or a setting cannot work.
        DataError: If the questions or the corpus cannot be loaded.
    """
    made_here = str(data) == "procedural"
    wanted = (hops,) if isinstance(hops, int) else tuple(hops)
    if searches is None:
        searches = max(wanted, default=1) if made_here else DATA_SEARCHES
    if type(searches) is not int or not 1 <= searches <= MOST_SEARCHES:
        raise ConfigError(f"searches is {searches!r}; expected how often a team searches, 1 to {MOST_SEARCHES}.")
    given = None if corpus is None else data_mod.opened(corpus, index)
    if made_here:
        problems = procedural.questions(wanted, level, world, split, limit)
        own: Index | None = procedural.world(level, world, split)[1]
    else:
        problems, own = data_mod.load(data, split, limit, given is not None or search is not None)
    if k is None:
        k = procedural.RESULTS.get(level, 3) if made_here else max(procedural.RESULTS.values())
    team = named("rag", team_name, TEAMS)(searches)
    if made_here and level == 0:
        team = team.changed({agent.role: agent.role for agent in team.agents})
    team = team.changed(profiles, dependency)
    searcher = Searcher(given or own, search, search_timeout_s)
    return team.on(RagTask(problems, searcher, team.agents, k, reward, recall_reward), **flex)
