"""Mathematics problems by name or path: ``load("procedural")``, ``load("gsm8k")``, ``load("my.jsonl")``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError
from marft_envs.families.math import hub, procedural
from marft_envs.families.math.hub import HUB, Columns, after_hashes, number, plain, rows_to_problems
from marft_envs.families.math.problem import MathProblem
from marft_envs.problems import rows
from marft_envs.problems import sets as problems

__all__ = ["NAMES", "MathProblem", "ProblemSet", "load", "read_jsonl", "rows_to_problems"]

ProblemSet = problems.ProblemSet[MathProblem]


def load(
    name_or_path: str | Path,
    split: str = "train",
    subjects: str | Sequence[str] | None = None,
    levels: int | Sequence[int] | None = None,
    filter: Callable[[MathProblem], bool] | None = None,
    limit: int | None = None,
) -> ProblemSet:
    """Loads problems.

    Args:
        name_or_path: ``"procedural"`` (built in, offline), the name or hub id of a set in ``hub.HUB``, or the
            path of a JSONL file. A file is used whole, whatever the split; ``{split}`` in a path is replaced.
        split: ``"train"`` or ``"test"``; sets made for evaluation have ``"test"`` only.
        subjects: keep these subjects.
        levels: keep these levels; rows without a level are dropped then.
        filter: keep the problems for which it is true.
        limit: at most so many, evenly spaced over what is left, so that each part of the set is represented.

    Returns:
        A non-empty ``ProblemSet``. The procedural one holds all of level 0 and, of every other generator and level,
        the split's share of ``procedural.LISTED`` distinct problems.

    Raises:
        DataError: unknown name, no file, a bad row, an unreachable hub, or nothing left.
        MissingExtraError: a hub set without the ``data`` extra.
    """
    wanted = problems.Conditions.of(name_or_path, split, subjects, levels, limit)
    again = (wanted.name, split, wanted.kinds, wanted.levels, None, limit)
    return CATALOGUE.select(wanted, filter, (load, again))


def _read(path: Path, split: str | None) -> Sequence[MathProblem]:
    """A file, whole, whatever the split."""
    return read_jsonl(path, *rows.stamp(path))


CATALOGUE = problems.Catalogue[MathProblem](
    generators=procedural.SET,
    hub={name: known.hub_id for name, known in HUB.items()},
    fetch=hub.fetch,
    read=_read,
    row="'problem' and 'answer'",
    kind="subject",
    kinds_of=lambda problem: {problem.subject} if problem.subject else set(),
    kinds=procedural.SUBJECTS,
)
NAMES = CATALOGUE.names
"""Every name that ``load`` knows; anything else is a path."""


@lru_cache(maxsize=8)
def read_jsonl(path: Path, mtime_ns: int = 0, size: int = 0) -> Sequence[MathProblem]:
    """Reads a JSONL file with ``problem`` and ``answer``, or GSM8K's raw ``question`` and ``answer``.

    ``id``, ``solution``, ``subject``, ``level`` and ``source`` are optional. The time and size of the file
    are part of the cache's key: many environments share one reading, and an edited file is read again. A large file's
    problems stay in it (``rows.made``).

    Raises:
        DataError: not UTF-8, not JSON, or a row without statement or gold answer, or with something else than text
            and numbers in its fields; names file, line and field.
    """
    return rows.made(path, f"with {CATALOGUE.row}", partial(_problem, path))


def _problem(path: Path, row: dict[str, Any], line_number: int, where: str) -> MathProblem:
    def optional(column: str) -> str | None:
        return column if row.get(column) is not None else None

    raw_gsm8k = "problem" not in row and "question" in row
    answer = row.get("answer")
    marked = isinstance(answer, str) and "####" in answer
    columns = Columns(
        problem=("question",) if raw_gsm8k else ("problem",),
        gold=after_hashes if marked else (number if isinstance(answer, float) else plain),
        solution=optional("solution") or ("answer" if marked else None),
        subject=optional("subject"),
        level=optional("level"),
    )
    named = {}
    for field, otherwise in (("id", f"{path.stem}/{line_number}"), ("source", path.stem)):
        value = rows.whole(row.get(field))
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise DataError(f"{where}: '{field}' is {rows.short(value)}; expected text or an integer.")
        named[field] = otherwise if value in (None, "") else str(value)
    return hub.read_row(row, columns, where, **named)
