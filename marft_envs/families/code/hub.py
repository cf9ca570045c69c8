"""Public programming sets on the Hugging Face hub: ids, files and splits stand in ``hub.toml``."""

from __future__ import annotations

import fnmatch
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from marft_envs import tables
from marft_envs.errors import ConfigError, DataError
from marft_envs.families.code import hub_functions as functions
from marft_envs.families.code import hub_rows as rows_
from marft_envs.families.code.hub_rows import Context, Reference, Refused
from marft_envs.families.code.problem import CodeProblem
from marft_envs.families.code.schema import NEEDS
from marft_envs.problems.rows import of_hub

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CodeHubSet:
    """One set on the hub."""

    hub_id: str
    read: Callable[[Mapping[str, Any], Context], CodeProblem]
    """Turns a row into a problem; its docstring names the schema, its first line the columns."""
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    """Our split -> the hub's. Sets made for evaluation have ``test`` only."""
    config: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    """Our split -> pattern of file names, for repositories whose loading script ``datasets`` 4 does not run."""
    key: str = ""
    """Column of the row's own id; without one the row's number names the problem."""


_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What a reader raises at a row whose values are of other types than the set's."""

_READERS = {
    read.__name__: read
    for read in (
        functions.humaneval, functions.mbpp, functions.mbpp_plus, rows_.livecodebench, rows_.apps, rows_.code_contests,
        rows_.codeforces,
    )
}  # fmt: skip
HUB: dict[str, CodeHubSet] = {
    name: CodeHubSet(**{**entry, "read": _READERS[entry["read"]]})
    for name, entry in tables.read(__package__, "hub")["sets"].items()
}


def rows_to_problems(
    name: str, rows: Iterable[Any], split: str = "test", reference: Reference | None = None
) -> list[CodeProblem]:
    """Rows in the schema of the hub set ``name``, as problems. No network is involved.

    Problems that cannot be used (interactive, no test left) and tests that were left out (too large, no literal) are
    counted and logged as one warning; see ``last_tally``.

    Args:
        name: a name in ``HUB``.
        rows: in the hub's schema.
        split: part of the ids.
        reference: runs a set's reference program where the set has no expected values; without it such tests are lost.

    Raises:
        DataError: a row without a column, or with a value of another type, by number (from 0); an id twice.
    """
    known, problems, tally = HUB[name], {}, Counter[str]()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            where = f"{known.hub_id} ({split}), row {index}"
            raise DataError(f"{where}: {type(row).__name__}; expected an object of columns.")
        row_id = row.get(known.key) if known.key else None
        problem_id = f"{name}/{split}/{index if row_id is None else str(row_id).replace('/', '-')}"
        context = Context(name, problem_id, f"{known.hub_id} ({split}), row {index}", reference)
        try:
            problem = known.read(row, context)
        except Refused as reason:
            tally[f"problems: {reason}"] += 1
            continue
        except DataError:
            raise
        except _MALFORMED as error:
            raise DataError(
                f"{context.where}: not a row of {known.hub_id} ({type(error).__name__}: {str(error)[:200]}). "
                f"Expected its columns as the set has them; see {known.read.__module__}.{known.read.__name__}."
            ) from error
        finally:
            tally.update(context.lost)
            for named in context.named:
                _LOG.warning("left out, for only the program's own process could decide it: a test of %s", named)
        if problem.id in problems:
            raise DataError(f"{context.where}: the id '{problem.id}' is taken. Ids of a set are unique.")
        problems[problem.id] = problem
    _TALLIES[name, split] = +tally
    if +tally:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in sorted((+tally).items()))
        _LOG.warning("%s (%s): %s problems; left out: %s", name, split, f"{len(problems):,}", reasons)
    return list(problems.values())


_TALLIES: dict[tuple[str, str], Counter[str]] = {}


def last_tally(name: str, split: str) -> Counter[str]:
    """What the last reading of a split left out, by reason; keys that begin with ``problems:`` count problems."""
    return _TALLIES.get((name, split), Counter())


def fetch(name: str, split: str) -> list[CodeProblem]:
    """Downloads (or takes from the cache) one split of a hub set; ``"all"`` takes every split.

    Raises:
        DataError: no such split, nothing usable, or the hub cannot be reached; the message names the ways to give data.
        MissingExtraError: ``datasets`` is not installed.
    """
    known = HUB[name]
    if split == "all":
        return [problem for each in known.splits for problem in fetch(name, each)]

    def load(datasets: Any) -> Iterable[Mapping[str, Any]]:
        if known.files:
            return _read_files(_download(known.hub_id, known.files[split]))
        return cast("Iterable[Any]", datasets.load_dataset(known.hub_id, known.config, split=known.splits[split]))

    rows = of_hub(name, known.hub_id, {**known.splits, "all": ""}, split, NEEDS, load)
    if not (problems := rows_to_problems(name, rows, split, in_sandbox)):
        raise DataError(f"No row of '{name}' ({split}) could be used: {dict(last_tally(name, split))}.")
    return problems


def _download(hub_id: str, pattern: str) -> list[str]:
    """Local paths of a data repository's files that match, in the order of their names."""
    from huggingface_hub import HfApi, hf_hub_download

    names = [f for f in HfApi().list_repo_files(hub_id, repo_type="dataset") if fnmatch.fnmatchcase(f, pattern)]
    if not names:
        raise FileNotFoundError(f"no file {pattern} in {hub_id}")
    return [hf_hub_download(hub_id, f, repo_type="dataset") for f in sorted(names, key=lambda f: (len(f), f))]


def _read_files(paths: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Rows of JSONL and Parquet files, one at a time: single files have gigabytes."""
    for path in paths:
        if path.endswith(".parquet"):
            import pyarrow.parquet as parquet  # type: ignore[import-untyped]

            for batch in parquet.ParquetFile(path).iter_batches(batch_size=64):
                yield from batch.to_pylist()
        else:
            with open(path, encoding="utf-8") as file:
                yield from (json.loads(line) for line in file if line.strip())


def in_sandbox(program: str, entry_point: str, arguments: Sequence[str]) -> list[str | None]:
    """Runs a set's reference program in the sandbox; None for each call that fails, and for all without a sandbox."""
    from marft_envs.families.code.hub_asserts import NotLiteral, to_text
    from marft_envs.sandbox import Call, shared

    try:
        results = shared("auto").run_calls(program, entry_point, [Call("call", text) for text in arguments])
    except ConfigError as error:
        _LOG.warning("No sandbox for a reference program, so its tests are left out: %s", error)
        return [None] * len(arguments)
    texts: list[str | None] = []
    for result in results:
        try:
            texts.append(to_text(result.value) if result.status == "ok" else None)
        except NotLiteral:
            texts.append(None)
    return texts
