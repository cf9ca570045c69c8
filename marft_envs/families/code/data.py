"""Programming problems by name or path: ``load("procedural")``, ``load("humaneval")``, ``load("my.jsonl")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from marft_envs.families.code import hub, procedural
from marft_envs.families.code.hub import HUB, rows_to_problems
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.schema import NEEDS, read_jsonl
from marft_envs.problems import sets as problems

__all__ = ["NAMES", "CodeProblem", "ProblemSet", "Test", "load", "read_jsonl", "rows_to_problems"]

ProblemSet = problems.ProblemSet[CodeProblem]


def load(
    name_or_path: str | Path = "procedural",
    split: str = "train",
    levels: int | Sequence[int] | None = None,
    tags: str | Sequence[str] | None = None,
    filter: Callable[[CodeProblem], bool] | None = None,
    limit: int | None = None,
) -> ProblemSet:
    """Loads problems.

    Args:
        name_or_path: ``"procedural"`` (built in, offline), the name or hub id of a set in ``hub.HUB``, or the path of
            a JSONL file in the unified schema (see ``schema.read_jsonl``). ``{split}`` in a path is replaced; a file
            whose rows name splits gives the rows of the split asked for, any other file is used whole.
        split: ``"train"``, ``"test"``, where the set has them ``"validation"`` and ``"prompt"``, or ``"all"``.
        levels: keep these levels (0 to 4); problems without a level are dropped then.
        tags: keep problems of these kinds: the mode (``"function"``, ``"stdio"``) or, in the procedural set, the
            generator's name.
        filter: keep the problems for which it is true.
        limit: at most so many, evenly spaced over what is left, so that each part of the set is represented.

    Returns:
        A non-empty ``ProblemSet``; every problem in it has a hidden test.

    Raises:
        DataError: unknown name, no file, a bad row, an unreachable hub, or nothing left.
        MissingExtraError: a hub set without the ``data`` extra.
    """
    wanted = problems.Conditions.of(name_or_path, split, tags, levels, limit)
    again = (wanted.name, split, wanted.levels, wanted.kinds, None, limit)
    return CATALOGUE.select(wanted, filter, (load, again))


def _tags(problem: CodeProblem) -> set[str]:
    """What ``load(tags=)`` can name: the mode, and the generator of a procedural problem."""
    parts = problem.id.split("/")
    return {problem.mode, parts[1]} if parts[0] == "procedural" else {problem.mode}


CATALOGUE = problems.Catalogue[CodeProblem](
    generators=procedural.SET,
    hub={name: known.hub_id for name, known in HUB.items()},
    fetch=hub.fetch,
    read=read_jsonl,
    row=NEEDS,
    kind="tag",
    kinds_of=_tags,
    kinds=("function", "stdio", *procedural.GENERATORS),
    check=lambda problem: "" if problem.hidden else "has no hidden test. Mark one: the reward comes from those.",
)
NAMES = CATALOGUE.names
"""Every name that ``load`` knows; anything else is a path."""
