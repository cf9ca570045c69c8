"""Public mathematics sets on the Hugging Face hub: ids, splits and columns stand in ``hub.toml``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marft_envs import tables
from marft_envs.errors import DataError
from marft_envs.families.math.grader import MAX_ANSWER, check_gold, extract_boxed
from marft_envs.families.math.problem import MathProblem
from marft_envs.problems.rows import of_hub, short, whole


def last_boxed(text: str) -> str:
    r"""Content of the last closed box, which the grader would read (MATH also writes ``\boxed 9``); "" if none."""
    return (extract_boxed(text) or "").strip()


def after_hashes(text: str) -> str:
    """What follows the last ``####`` (GSM8K), without thousands commas; "" if there is no ``####``."""
    _, marker, tail = text.rpartition("####")
    return tail.strip().replace(",", "") if marker else ""


def several(value: Any) -> str:
    """As ``plain``, for sets that keep the parts of an answer in a list: joined by commas."""
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else plain(value)


def plain(value: Any) -> str:
    """The value as text, one pair of surrounding dollars removed.

    Raises:
        ValueError: It is neither text nor a finite number.
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected text or a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    text = str(value).strip()
    if len(text) > 1 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def number(value: Any) -> str:
    """As ``plain``, and whole numbers lose leading zeros and an empty fraction: 033 -> 33, 145.0 -> 145."""
    text = plain(value)
    return str(int(text.split(".")[0])) if re.fullmatch(r"-?\d+(\.0*)?", text) else text


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a set keeps what a ``MathProblem`` needs. A column is named, or None where the set has none."""

    problem: tuple[str, ...] = ("problem",)
    """Joined by a space; empty ones are left out."""
    answer: str = "answer"
    gold: Callable[[Any], str] = plain
    """Reads the gold answer from the ``answer`` column; "" means that there is none."""
    solution: str | None = None
    subject: str | None = None
    level: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class MathHubSet:
    """One set on the hub."""

    hub_id: str
    columns: Columns
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    """Our split -> the hub's. Sets made for evaluation are ``test`` here whatever the hub calls them."""
    configs: tuple[str | None, ...] = (None,)
    subject: str = ""
    """Subject of every row, for sets without such a column."""


_GOLD = {read.__name__: read for read in (after_hashes, last_boxed, number, plain, several)}


def _made(columns: dict[str, Any], configs: Sequence[str | None] = (None,), **fields: Any) -> MathHubSet:
    """The set of an entry in ``hub.toml``."""
    read = {"problem": tuple(columns.get("problem", ("problem",))), "gold": _GOLD[columns.get("gold", "plain")]}
    return MathHubSet(columns=Columns(**{**columns, **read}), configs=tuple(configs), **fields)


HUB: dict[str, MathHubSet] = {name: _made(**entry) for name, entry in tables.read(__package__, "hub").items()}


def read_level(value: Any, where: str) -> int | None:
    """An integer (5.0 is one), ``"Level 3"`` or ``"3"``; None for an absent one and for MATH's ``"Level ?"``."""
    value = whole(value)
    if value is None or value == "Level ?":
        return None
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    match = re.fullmatch(r"(?:Level\s*)?([0-9]{1,3})", text)
    if not match:
        raise DataError(f"{where}: level is {short(value)}; expected an integer below 1000, 'Level 3', or nothing.")
    return int(match[1])


def read_row(
    row: Mapping[str, Any], columns: Columns, where: str, *, id: str, source: str, subject: str = ""
) -> MathProblem:
    """One row as a ``MathProblem``; ``subject`` is for rows without one.

    Raises:
        DataError: a column is missing, a value is not of its kind, or the row has no statement or no gold answer that
            an agent could give; names ``where`` and the column.
    """

    def held(column: str | None) -> Any:
        if column is None:
            return None
        if column not in row:
            raise DataError(f"{where}: no column '{column}'. The row has: {', '.join(row)}.")
        return row[column]

    def text(column: str | None, *, lists: bool = False) -> str:
        value = held(column)
        if value is None:
            return ""
        parts = list(value) if lists and isinstance(value, list | tuple) else [value]
        if not all(isinstance(part, str) for part in parts):
            raise DataError(f"{where}: '{column}' is {short(value)}; expected text.")
        return "\n\n".join(part.strip() for part in parts)

    statement = " ".join(part for part in map(text, columns.problem) if part)
    if not statement:
        raise DataError(f"{where}: the problem is empty. Expected text in {' + '.join(columns.problem)}.")
    try:
        answer = columns.gold(held(columns.answer)).strip()
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: '{columns.answer}' is {short(held(columns.answer))}; expected text or a finite number."
        ) from error
    if not answer:
        raise DataError(
            f"{where}: no gold answer in '{columns.answer}'. Every row needs one: fill it in or drop the row."
        )
    if len(answer) > MAX_ANSWER:
        raise DataError(
            f"{where}: the gold answer in '{columns.answer}' has {len(answer):,} characters; answers of more than"
            f" {MAX_ANSWER:,} are not graded. Shorten it or drop the row."
        )
    try:
        check_gold(answer)
    except DataError as error:
        raise DataError(f"{where}: '{columns.answer}': {error}") from error
    return MathProblem(
        id=id,
        problem=statement,
        solution=text(columns.solution, lists=True),
        answer=answer,
        subject=text(columns.subject) or subject,
        level=read_level(held(columns.level), where),
        source=source,
    )


def rows_to_problems(name: str, rows: Iterable[Mapping[str, Any]], split: str = "test") -> list[MathProblem]:
    """Rows in the schema of the hub set ``name``, as problems. No network is involved.

    Raises:
        DataError: a row without a column, a statement or a gold answer, by number (from 0).
    """
    known, problems = HUB[name], []
    for index, row in enumerate(rows):
        row_id = whole(row.get(known.columns.id)) if known.columns.id else None
        problem_id = f"{name}/{split}/{index if row_id is None else row_id}"
        where = f"{known.hub_id} ({split}), row {index}"
        problems.append(read_row(row, known.columns, where, id=problem_id, source=name, subject=known.subject))
    return problems


def fetch(name: str, split: str) -> list[MathProblem]:
    """Downloads (or takes from the cache of ``datasets``) one split of a hub set.

    Raises:
        DataError: no such split, or the hub cannot be reached; the message names the ways to give data.
        MissingExtraError: ``datasets`` is not installed.
    """
    known = HUB[name]

    def load(datasets: Any) -> list[Mapping[str, Any]]:
        parts = (datasets.load_dataset(known.hub_id, config, split=known.splits[split]) for config in known.configs)
        return [row for part in parts for row in part]

    rows = of_hub(name, known.hub_id, known.splits, split, "'problem' and 'answer'", load)
    return rows_to_problems(name, rows, split)
