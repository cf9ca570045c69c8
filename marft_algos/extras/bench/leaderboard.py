"""``marft bench leaderboard``: the scores of packed benchmarks, one table for each environment.

A file may be anybody's. Nothing of it is executed, only the fields that are named here are read, each of its type, and
its text is escaped where it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from marft_algos.extras.bench import packed, tables
from marft_algos.extras.bench.folder import SCORES
from marft_algos.terminal import clean
from marft_envs.errors import DataError

TITLE = "Leaderboard"
COLUMNS = ("file", "setting", "algorithm", "score, %", "to its baseline", "seeds", "sampled", "processed")
ABOUT = (
    "Each table holds the results of packed benchmarks in one environment, the best mean first. The score is the mean "
    "of seeds in percent, with its 95 % interval over seeds and problems. “To its baseline” is the paired difference "
    "to the row that the grid of the same file names as its baseline. “Sampled” and “processed” are the tokens of "
    "training, mean of seeds.",
    "Rows of one file and one setting have the same budget, base model and problems. Other rows may have others, so "
    "the order of such rows is no result. A file holds its grid (grid.toml), which says what its settings are. No file "
    "can show that its outcomes come from the training that it describes: whoever doubts a row can run its grid.",
)
"""What a reader must know."""


_Model = TypeVar("_Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Cell(_Strict):
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    env: str
    algorithm: str
    credit: str
    seed: int
    hidden: bool
    skipped: str


class _Bench(_Strict):
    baseline: Annotated[str, Field(validation_alias=AliasPath("grid", "baseline"))] = "reinforce"
    cells: Annotated[list[_Cell], Field(validation_alias=AliasPath("stages", "main"))]


class _Job(_Strict):
    env: Annotated[str, Field(validation_alias=AliasPath("config", "env"))]


class _Result(_Strict):
    problems: list[str]
    outcomes: list[FiniteFloat | None]
    tokens: NonNegativeInt
    seconds: FiniteFloat
    peak_memory: FiniteFloat
    infra: NonNegativeInt = 0
    processed: NonNegativeInt | None = None
    votes: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _as_many(self) -> _Result:
        if len(self.problems) != len(self.outcomes):
            raise ValueError(f"{len(self.outcomes)} outcomes of {len(self.problems)} problems")
        return self


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """An algorithm's runs in one setting of a packed benchmark."""

    file: str
    env: str
    """Id of the environment that it was trained in; ``line.env`` is the grid's name of the setting."""
    line: tables.Line

    @property
    def cells(self) -> list[str]:
        """What the table shows, in the order of ``COLUMNS``."""
        line = self.line
        score = line.note if line.mean is None else tables.points(line.mean)
        numbers = (str(line.seeds), tables.count(line.tokens), tables.count(line.processed))
        shown = (self.file, line.env, line.algorithm, score, tables.points(line.difference, signed=True), *numbers)
        return [clean(cell, line=True) for cell in shown]


@dataclass(frozen=True, slots=True)
class Pack:
    """The results of one packed benchmark."""

    name: str
    sha256: str
    results: int
    entries: tuple[BoardEntry, ...]


def read(paths: Sequence[Path]) -> list[Pack]:
    """Reads packed benchmarks; see :func:`marft_algos.extras.bench.packed.files` for what a folder stands for.

    Raises:
        DataError: A file is damaged, or holds what no packed benchmark does.
        ConfigError: Its scores are another version's, or of different problems.
    """
    packs = []
    for path in packed.files(list(paths)):
        with packed.unpacked(path) as opened:
            packs.append(_read(opened))
    return packs


def _read(opened: packed.PackedBenchmark) -> Pack:
    folder = opened.folder
    folder.described()  # says so if it is another version's
    bench = _loaded(_Bench, folder.bench_file, opened.file)
    rows, envs = [], dict[tuple[str, str], str]()
    for cell in bench.cells:
        row = cell.model_dump() | {"status": "skipped" if cell.skipped else "failed", "error": cell.skipped}
        if not cell.skipped and (file := folder.result_file(cell.key)).is_file():
            result = _loaded(_Result, file, opened.file)
            row |= {"status": "skipped" if result.votes == 1 else "done"} | result.model_dump(exclude_none=True)
            envs[cell.env, tables.label(row)] = _loaded(_Job, folder.job_file(cell.key), opened.file).env
        rows.append(row)
    lines = [line for line in tables.lines(rows, bench.baseline) if line.seeds]
    entries = tuple(
        BoardEntry(opened.name, envs[line.env, line.algorithm], line) for line in lines if line.env != tables.EVERYTHING
    )
    return Pack(opened.name, opened.sha256, sum(row["status"] == "done" for row in rows), entries)


def _loaded(kind: type[_Model], file: Path, pack: Path) -> _Model:
    try:
        return kind.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        where, why = "its content", str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            where, why = ".".join(map(str, first["loc"])) or where, first["msg"]
        raise DataError(f"'{pack}': {file.parent.name}/{file.name}: {where}: {why.lower()}. {packed.AGAIN}") from error


def sheets(packs: Sequence[Pack]) -> dict[str, list[list[str]]]:
    """Makes a table for each environment, its head first, and one of the files."""
    entries = [entry for pack in packs for entry in pack.entries]
    out = {}
    for env in sorted({entry.env for entry in entries}):
        here = [entry for entry in entries if entry.env == env]
        here.sort(key=lambda e: (-round(e.line.mean.mean, 9) if e.line.mean else math.inf, e.line.algorithm))
        out[clean(env, line=True)] = [list(COLUMNS), *(entry.cells for entry in here)]
    files = [[clean(pack.name, line=True), SCORES, str(pack.results), pack.sha256] for pack in packs]
    return out | {"The files": [["file", "version of scores", "results", "sha256"], *files]}


def markdown(packs: Sequence[Pack]) -> str:
    """Writes the page as Markdown."""
    parts = [f"# {TITLE}", *map(tables.in_markdown, ABOUT)]
    for title, sheet in sheets(packs).items():
        parts += [f"## {tables.in_markdown(title)}", tables.markdown(sheet).rstrip()]
    return "\n\n".join(parts) + "\n"


def webpage(packs: Sequence[Pack]) -> str:
    """Writes the page as HTML that needs nothing else."""
    return tables.webpage(TITLE, about=ABOUT, sheets=sheets(packs))
