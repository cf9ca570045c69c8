"""Teams that read documents longer than a window: ``docs-solo-v0``, ``docs-chain-v0`` and others.

>>> env = marft_envs.make("docs-chain-v0", kinds=["total", "count"], lengths=[1, 2])
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.teams import Profiles, Team, named
from marft_envs.core.tree import Tree
from marft_envs.errors import ConfigError
from marft_envs.families.docs import data as data_mod
from marft_envs.families.docs.document import Document
from marft_envs.families.docs.procedural import PAGES_PER_WINDOW, WINDOW
from marft_envs.families.docs.task import DocsTask
from marft_envs.families.docs.teams import TEAMS, check_readers

__all__ = ["TEAMS", "DocsTask", "Document", "make"]

DATA_READERS = 8
"""Readers of documents that were not made here, unless ``readers`` says otherwise."""


def make(
    team_name: str = "chain",
    data: str | Path = "procedural",
    split: str = "train",
    kinds: str | Sequence[str] | None = None,
    lengths: int | Sequence[int] = 1,
    level: int = 0,
    window: int | None = None,
    readers: int | None = None,
    arity: int | None = None,
    terse: bool = False,
    note_chars: int | None = None,
    limit: int | None = None,
    profiles: Profiles | None = None,
    dependency: Any = None,
    **flex: Any,
) -> FlexEnv:
    """Builds an environment of the family.

    Args:
        team_name: One of :data:`TEAMS`; the environment's id sets it.
        data: ``procedural``, a set's name or the path of a JSONL file, see :func:`marft_envs.families.docs.data.load`.
        split: ``train`` or ``test``.
        kinds: Only these kinds of documents. None: ``total`` of procedural documents, all kinds of another set.
        lengths: The length of procedural documents, in windows; with several, each is equally frequent.
        level: Of procedural documents: 0 (terse, which the embedded model can learn) or 1 (prose).
        window: Most characters of task and contributions that an agent sees, each one alike; what is longer is cut, and
            recorded (``episode.cuts``). None: what the level says, or 8,000; 0: no limit. ``max_chars`` is the same.
        readers: The number of readers (for a boss: the most). None: one a page of the longest procedural document, else
            8. For one agent with a memory, the number of parts in which it reads; None: page by page.
        arity: Most notes that a joiner of a tree reads; None: two.
        terse: Experts say the note alone, without the working, as under a limit on latency.
        note_chars: For ``docs-recall-v0``, the most characters of the writer's note that are kept; None: all.
        limit: The most documents; None: all.
        profiles: Agent or role -> another profile.
        dependency: Replaces the team's D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        **flex: Settings of :class:`FlexEnv` (``observation``, ``attribution``, ``on_invalid``, …).

    Raises:
        ConfigError: If the team, profiles or D cannot work.
        DataError: If the data cannot be loaded.
    """
    if "max_chars" in flex:
        if window is not None:
            raise ConfigError("window and max_chars are the same setting. Next: window=… alone.")
        window = 0 if (limit_chars := flex.pop("max_chars")) is None else limit_chars
    if window is not None and (type(window) is not int or window < 0):
        raise ConfigError(f"window is {window!r}; expected how many characters an agent sees, or 0 for no limit.")
    made_here = str(data) == "procedural"
    kinds = "total" if made_here and kinds is None else kinds
    if window is None:
        window = WINDOW.get(level, 0) if made_here else data_mod.WINDOW
    wanted = (lengths,) if isinstance(lengths, int) else tuple(lengths)
    problems = data_mod.load(data, split, kinds, wanted, level, window, limit)
    parts = readers if team_name == "memory" else None
    if readers is None:
        readers = PAGES_PER_WINDOW * max(wanted) if made_here else DATA_READERS
    if arity is not None and team_name != "tree":
        raise ConfigError(f"docs-{team_name}-v0 has no arity: it is how many notes a joiner of docs-tree-v0 reads.")
    if note_chars is not None and (team_name != "recall" or type(note_chars) is not int or note_chars < 1):
        raise ConfigError(
            f"note_chars is {note_chars!r} of docs-{team_name}-v0; docs-recall-v0 keeps a note of 1 or more."
        )
    shape = {} if arity is None else {"arity": arity}
    team = named("docs", team_name, TEAMS)(check_readers(readers), **shape).changed(profiles, dependency)
    task = DocsTask(problems, team.agents, _sources(team), parts, terse, note_chars)
    if team_name == "memory":
        flex.setdefault("max_rounds", parts or data_mod.most_pages(problems))
    if team_name == "recall":
        flex.setdefault("max_rounds", data_mod.most_pages(problems) + 1)
    return team.on(task, max_chars=window or None, **flex)


def _sources(team: Team) -> dict[str, tuple[str, ...]]:
    """Returns the agents whose notes each joiner of a tree reads; nothing for a team with another D."""
    tree = team.dependency()
    if not isinstance(tree, Tree):
        return {}
    names = [agent.name for agent in team.agents]
    tree.bind(names)
    return {name: tree.children(name) for name in names if tree.children(name)}
