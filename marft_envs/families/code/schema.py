"""The unified JSONL schema of programming problems, literals, and the rule that splits tests into public and hidden."""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, get_args

from marft_envs.errors import DataError, check_known
from marft_envs.families.code import split
from marft_envs.families.code.problem import CodeProblem, Mode, Test
from marft_envs.families.code.setup_code import DecidedInside
from marft_envs.problems.rows import made, pick, stamp, whole

LEVELS = {
    "easy": 1, "introductory": 1, "medium": 2, "interview": 2, "medium_hard": 3, "hard": 3, "competition": 3,
    "very_hard": 4,
}  # fmt: skip
"""Words for difficulty, as levels; level 0 is kept for the embedded model."""

OUTPUT_CHECKS = ("", "tokens", "yesno", "lines", "set", "approx", "exact", "livecodebench", "apps")
VALUE_CHECKS = (*OUTPUT_CHECKS, "equal", "poly_root", "loose")
"""Checks that a test can name: of standard output, and of the value of a call or an expression. ``poly_root``: the
value is a root of the polynomial given as the only argument; ``loose``: lists and tuples are alike, and sets compare
without order or repetition."""

NEEDS = "'mode', 'prompt', 'entry_point' and 'tests'"
"""What a row needs."""

MAX_TIME_S = 3_600.0
"""Most seconds that a row may ask for; the judge gives a test at most ``judge.MAX_CPU_S`` of them."""
MAX_MEMORY_MB = 16_384
"""Most MiB that a row may ask for: the sandbox would hand them out to any program that wants them."""

MAX_LITERAL = 1 << 20
"""Characters of one literal: ``ast`` takes about 100 bytes of memory a character, and more text is no unit test."""

_PUBLIC = 2


def read_literal(text: str, where: str, what: str) -> Any:
    """The value of a Python literal. Nothing is executed.

    Raises:
        DataError: not a literal, too long, or nested too deep; names ``where`` and ``what``.
    """
    if len(text) > MAX_LITERAL:
        raise DataError(f"{where}: {what} has {len(text):,} characters; at most {MAX_LITERAL:,} are read.")
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        shown = text if len(text) <= 60 else text[:60] + "…"
        raise DataError(
            f"{where}: {what} is {shown!r}, which is no Python literal ({type(error).__name__}). "
            "Expected numbers, strings, lists, tuples, dicts, sets, True, False or None."
        ) from error


def content_key(test: Test) -> str:
    """What makes two tests the same: their kind and input, literals without regard to spacing."""
    if test.kind == "call":
        try:
            return f"call {ast.literal_eval(test.input)!r}"
        except ValueError:  # an int of thousands of digits: there is only its own text
            return f"call {test.input.strip()}"
    return f"{test.kind} {test.input.strip()}"


def split_tests(
    problem_id: str, tests: Sequence[Test], visibility: Sequence[str] = ()
) -> tuple[tuple[Test, ...], tuple[Test, ...]]:
    """Splits tests into public and hidden ones; both keep the source's order, and no test is lost.

    Without marks a SHA-256 of problem id and input orders the tests: the first is hidden, then up to two are public,
    the rest are hidden. With marks an unmarked test is hidden. Tests with the same input always share a side, so no
    public test tells a hidden answer: the public side where one of them is marked public and other hidden tests
    remain, else the hidden one.

    Args:
        problem_id: part of the hash, so that equal tests of two problems need not share a side.
        tests: at least one.
        visibility: "" (unmarked), "public" or "hidden" for each test; empty for none.
    """
    keys = [content_key(test) for test in tests]
    if any(visibility):
        public_keys = {key for key, mark in zip(keys, visibility, strict=True) if mark == "public"}
        if public_keys.issuperset(keys):  # every input is shown: what was marked hidden must stay hidden
            public_keys -= {key for key, mark in zip(keys, visibility, strict=True) if mark != "public"}
    else:
        order = sorted(set(keys), key=lambda key: hashlib.sha256(f"{problem_id}\0{key}".encode()).digest())
        public_keys, count = set(), 0
        for key in order[1:]:
            if count + keys.count(key) <= _PUBLIC:
                public_keys.add(key)
                count += keys.count(key)
    public = tuple(test for test, key in zip(tests, keys, strict=True) if key in public_keys)
    return public, tuple(test for test, key in zip(tests, keys, strict=True) if key not in public_keys)


def read_level(value: Any, where: str) -> int | None:
    """A level from 0 to 4, a word such as ``"medium"``, or nothing.

    Raises:
        DataError: anything else; names ``where``.
    """
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 4:
        return value
    word = re.sub(r"[\s-]+", "_", str(value).strip().lower())
    if word not in LEVELS:
        raise DataError(f"{where}: difficulty is {value!r}; expected 0 to 4, or one of {', '.join(LEVELS)}.")
    return LEVELS[word]


def check_entry_point(name: Any, where: str) -> str:
    """The entry point of function mode, ``f`` or ``Solution.f``.

    Raises:
        DataError: absent or no identifier.
    """
    if not name:
        raise DataError(f"{where}: no 'entry_point'. Function mode needs the name of the function, e.g. \"f\".")
    parts = str(name).split(".")
    if len(parts) > 2 or not all(part.isidentifier() for part in parts):
        raise DataError(f"{where}: entry_point is {name!r}; expected the name of a function, or Class.method.")
    return str(name)


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    """A string, or "" for an absent or null one."""
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: '{column}' is {type(value).__name__}; expected a string.")
    return value or ""


def _amount(
    value: Any, column: str, where: str, expected: str, holds: Callable[[float], bool] = lambda value: True
) -> float:
    """A finite number of which something holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (_finite(value) and holds(value)):
        raise DataError(f"{where}: '{column}' is {_shown(value)}; expected {expected}.")
    return float(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False  # an int beyond the floats


def _shown(value: Any) -> str:
    """A value of the data in an error: short, and Python refuses to write ints of thousands of digits."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"of type {type(value).__name__} and too long to write"
    return text if len(text) <= 60 else text[:60] + "…"


def read_limit(row: Mapping[str, Any], column: str, where: str, ceiling: float) -> float | None:
    """A limit on time or memory, or None where the row sets none.

    Raises:
        DataError: no number above 0 and up to the ceiling; names ``where`` and the column.
    """
    if row.get(column) is None:
        return None
    expected = f"a positive number up to {ceiling:,.0f}, or nothing"
    return _amount(row[column], column, where, expected, lambda value: 0 < value <= ceiling)


def check_tolerances(atol: Any, rtol: Any, where: str) -> None:
    """Checks the tolerances of a test.

    Raises:
        DataError: one is no finite number from 0 on; names ``where``.
    """
    for column, value in (("atol", atol), ("rtol", rtol)):
        _amount(value, column, where, "a number that is not negative", lambda value: value >= 0)


def coefficients(arguments: Any, where: str) -> list[float]:
    """The coefficients of a ``poly_root`` test, which are its only argument.

    Raises:
        DataError: the arguments are something else; names ``where``.
    """
    if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], list | tuple):
        values = arguments[0]
        if values and all(isinstance(c, int | float) and _finite(c) for c in values):
            return list(values)
    raise DataError(f"{where}: the check 'poly_root' needs one argument, a list of numbers: \"[[1, 2]]\" for 1 + 2x.")


_INPUT = {"call": "args", "expr": "expr", "stdio": "input"}


def read_test(row: Any, mode: str, where: str) -> tuple[Test, str]:
    """One test and its mark: "", "public" or "hidden".

    Raises:
        DataError: a malformed test; names ``where``.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: a test is {type(row).__name__}; expected an object with 'kind', 'expected' ….")
    kind: Any = row.get("kind")
    allowed = ("stdio",) if mode == "stdio" else ("call", "expr")
    if kind not in allowed:
        raise DataError(f"{where}: kind is {kind!r}; mode '{mode}' has tests of kind {' or '.join(allowed)}.")
    for column in (_INPUT[kind], "expected"):
        if not isinstance(row.get(column), str):
            raise DataError(f"{where}: a {kind} test needs a string '{column}'. It has: {', '.join(row)}.")
    source, expected = row[_INPUT[kind]], row["expected"]
    if kind == "call" and not isinstance(read_literal(source, where, "'args'"), list):
        raise DataError(f"{where}: 'args' is {source[:60]!r}; expected a list of the arguments: \"[1, 2]\".")
    if kind == "expr":
        try:
            ast.parse(source, mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise DataError(f"{where}: 'expr' is {source[:60]!r}, which is no Python expression ({error}).") from error
    if kind != "stdio":
        read_literal(expected, where, "'expected'")
    check, known = _text(row, "check", where), OUTPUT_CHECKS if kind == "stdio" else VALUE_CHECKS
    check_known([check] * bool(check), known[1:], f"{where}: no checker '{{}}' for a {kind} test.", DataError)
    visibility = _text(row, "visibility", where)
    if visibility not in ("", "public", "hidden"):
        raise DataError(f'{where}: visibility is {visibility!r}; expected "public" or "hidden", or no such key.')
    atol, rtol = (0.0 if row.get(column) is None else row[column] for column in ("atol", "rtol"))
    check_tolerances(atol, rtol, where)
    if check == "poly_root":
        if kind != "call":
            raise DataError(f"{where}: the check 'poly_root' needs a test of kind 'call', whose argument it reads.")
        coefficients(read_literal(source, where, "'args'"), where)
    return Test(kind, source, expected, check, float(atol), float(rtol)), visibility


def read_row(row: Any, where: str, *, fallback_id: str, source: str) -> CodeProblem:
    """One row of the unified schema as a ``CodeProblem``.

    Raises:
        DataError: a missing or malformed field, no test that could be hidden, or an expression that would be decided
            where the program lives; names ``where``.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: expected a JSON object with 'mode', 'prompt' and 'tests', got {type(row).__name__}.")
    mode: Any = row.get("mode")
    if mode not in get_args(Mode):
        raise DataError(f'{where}: mode is {mode!r}; expected "function" or "stdio".')
    if not _text(row, "prompt", where).strip():
        raise DataError(f"{where}: the prompt is empty. Expected the statement in 'prompt'.")
    tests = row.get("tests")
    if not isinstance(tests, list) or not tests:
        raise DataError(f"{where}: the problem has no tests. Expected at least one in 'tests', for the reward.")
    entry_point = check_entry_point(row.get("entry_point"), where) if mode == "function" else ""
    read = [read_test(test, mode, f"{where}, test {number}") for number, test in enumerate(tests)]
    if not isinstance(row.get("id"), str | int | float | None):
        raise DataError(f"{where}: 'id' is {type(row['id']).__name__}; expected a string or a number.")
    problem_id = str(whole(row["id"])) if row.get("id") not in (None, "") else fallback_id
    public, hidden = split_tests(problem_id, [test for test, _ in read], [mark for _, mark in read])
    if not hidden:
        raise DataError(f'{where}: every test is public. Mark one "hidden": the reward comes from hidden tests.')
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise DataError(f"{where}: 'metadata' is {type(metadata).__name__}; expected an object.")
    memory = read_limit(row, "memory_limit_mb", where, MAX_MEMORY_MB)
    problem = CodeProblem(
        id=problem_id,
        mode=mode,
        prompt=row["prompt"],
        public=public,
        hidden=hidden,
        starter_code=_text(row, "starter_code", where),
        entry_point=entry_point,
        setup=_text(metadata, "test_setup_code", where),
        solution=_text(row, "canonical_solution", where),
        checker=_text(row, "checker", where),
        level=read_level(row.get("difficulty"), where),
        source=row["dataset"] if isinstance(row.get("dataset"), str) else source,
        cpu_s=read_limit(row, "time_limit_s", where, MAX_TIME_S),
        memory_mb=None if memory is None else max(1, round(memory)),
    )
    for number, (test, _) in enumerate(read):
        try:
            if test.kind == "expr":
                split.of_test(problem, test)
        except DecidedInside as reason:
            raise split.refusal(f"{where}, test {number}", reason) from None
    return problem


def read_jsonl(path: Path, split: str | None = None) -> Sequence[CodeProblem]:
    """Reads a JSONL file in the unified schema: one problem per line.

    Needed: ``mode`` (``function`` or ``stdio``), ``prompt``, ``tests``, and in function mode ``entry_point``.
    Optional: ``id``, ``split``, ``starter_code``, ``canonical_solution``, ``checker``, ``difficulty``,
    ``time_limit_s``, ``memory_limit_mb``, ``metadata.test_setup_code``, ``dataset``; other keys are ignored.
    A test has ``kind`` (``call``, ``expr``, ``stdio``), its input (``args``, ``expr``, ``input``), ``expected``, and
    optionally ``check``, ``atol``, ``rtol`` and ``visibility``.

    Args:
        path: the file.
        split: keep the rows that name this split or none; None and ``"all"`` keep every row.

    Raises:
        DataError: a bad row (names file and line), an id twice, or no rows; rows outside the split are checked too.
    """
    return _split(path, *stamp(path), split)


@lru_cache(maxsize=16)
def _split(path: Path, mtime_ns: int, size: int, split: str | None) -> Sequence[CodeProblem]:
    """The rows of a split: the same object for all environments that ask for them."""
    problems, names = _read(path, mtime_ns, size)
    if not (chosen := [i for i, name in enumerate(names) if split in (None, "all", name) or not name]):
        raise DataError(
            f"{path} has no row of the split '{split}'. It has: {', '.join(sorted(set(names)))}. "
            'Ask for one of these, or for all rows with split="all".'
        )
    return pick(problems, chosen)


@lru_cache(maxsize=8)  # many environments share one reading; an edited file has another time or size
def _read(path: Path, mtime_ns: int, size: int) -> tuple[Sequence[CodeProblem], tuple[str, ...]]:
    """Every row of a file, and the splits that they name."""
    names: list[str] = []
    lines: dict[str, str] = {}

    def note(row: dict[str, Any], where: str, problem: CodeProblem) -> None:
        names.append(_text(row, "split", where))
        line = where.rpartition("line ")[2]
        if problem.id in lines:
            raise DataError(f"{where}: the id '{problem.id}' is that of line {lines[problem.id]} too. Change one.")
        lines[problem.id] = line

    problems = made(path, f"with {NEEDS}", partial(_problem, path), note)
    return problems, tuple(names)


def _problem(path: Path, row: dict[str, Any], number: int, where: str) -> CodeProblem:
    return read_row(row, where, fallback_id=f"{path.stem}/{number}", source=path.stem)
