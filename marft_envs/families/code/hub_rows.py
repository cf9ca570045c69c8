"""Rows of the hub's programming sets as problems: one reader a schema. ``hub_functions`` has the other sets."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marft_envs import tables
from marft_envs.errors import DataError
from marft_envs.families.code import hub_asserts as asserts
from marft_envs.families.code import split
from marft_envs.families.code.hub_asserts import NotLiteral
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.schema import LEVELS, MAX_MEMORY_MB, MAX_TIME_S, split_tests
from marft_envs.families.code.setup_code import DecidedInside

MAX_TEST = 1 << 18
"""Characters of one test's input and expected output together; some outputs in these sets are gigabytes."""
MAX_STDIO_TESTS = 40
"""Tests of a stdio problem: each is a process. Which stay is decided by hash, so a set stays the same."""
MAX_UNPACKED = 1 << 27
"""Bytes that LiveCodeBench's packed tests may grow to."""

Reference = Callable[[str, str, Sequence[str]], Sequence[str | None]]
"""(program, entry point, literal texts of arguments) -> literal texts of the values, None for failures; for the sets
that keep a reference program in place of expected values. It runs in the sandbox."""


class Refused(Exception):
    """A row that is well formed and cannot be used; the reason is counted."""


@dataclass(slots=True)
class Context:
    """The arguments of a reader, and what it reports."""

    name: str
    id: str
    where: str
    reference: Reference | None = None
    lost: Counter[str] = field(default_factory=Counter)
    """Tests left out, by reason."""
    named: list[str] = field(default_factory=list)
    """Problems with tests that only the program's own process could decide, and why."""


Row = Mapping[str, Any]


def finish(
    context: Context,
    tests: Sequence[Test | None],
    visibility: Sequence[str] = (),
    *,
    mode: Any = "function",
    **fields: Any,
) -> CodeProblem:
    """A problem from its tests (None: lost): drops huge ones, limits those of stdio mode, splits public from hidden.

    Raises:
        Refused: no test is left, none could be hidden, or the limits are beyond those of ``schema``.
    """
    if (fields.get("cpu_s") or 0) > MAX_TIME_S or (fields.get("memory_mb") or 0) > MAX_MEMORY_MB:
        raise Refused(f"a limit beyond {MAX_TIME_S:,.0f} s or {MAX_MEMORY_MB:,} MiB")
    read = [(t, m) for t, m in zip(tests, visibility or [""] * len(tests), strict=True) if t is not None]
    kept = [(t, m) for t, m in read if len(t.input) + len(t.expected) <= MAX_TEST]
    context.lost["tests too large"] += len(read) - len(kept)
    if mode == "stdio" and len(kept) > MAX_STDIO_TESTS:
        order = sorted(
            range(len(kept)), key=lambda i: (kept[i][1] != "public", zlib.crc32(kept[i][0].input.encode()), i)
        )
        chosen = set(order[:MAX_STDIO_TESTS])
        context.lost["tests beyond the limit"] += len(kept) - len(chosen)
        kept = [pair for i, pair in enumerate(kept) if i in chosen]
    problem = CodeProblem(id=context.id, mode=mode, public=(), hidden=(), source=context.name, **fields)
    kept = [(test, mark) for test, mark in kept if test.kind != "expr" or _outside(problem, test, context)]
    if not kept:
        raise Refused("no usable test")
    public, hidden = split_tests(context.id, [t for t, _ in kept], [m for _, m in kept])
    if not hidden:  # all marks say public: tests that the statement shows cannot decide the reward
        public, hidden = split_tests(context.id, [t for t, _ in kept])
    return replace(problem, public=public, hidden=hidden)


def _outside(problem: CodeProblem, test: Test, context: Context) -> bool:
    """Whether an expression can be decided outside the program's process; one that cannot be is counted and named."""
    try:
        split.of_test(problem, test)
    except DecidedInside as reason:
        context.lost["tests decided inside the program's process"] += 1
        context.named.append(f"{problem.id} ({reason})")
        return False
    return True


def need(row: Row, context: Context, *columns: str) -> list[Any]:
    """The values of columns that must be there.

    Raises:
        DataError: a column is missing.
    """
    for column in columns:
        if column not in row:
            raise DataError(f"{context.where}: no column '{column}'. The row has: {', '.join(row)}.")
    return [row[column] for column in columns]


def loads(text: Any, what: str) -> Any:
    """JSON in a column.

    Raises:
        Refused: it is none.
    """
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"{what} is no JSON") from error


# --- LiveCodeBench, APPS, TACO ----------------------------------------------------------------------------------------


class _NoClasses(pickle.Unpickler):
    """Unpickles plain text only: a pickle that names any class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("the pickle asks for an outside object")


def unpack(text: str) -> list[Any]:
    """LiveCodeBench's private tests: JSON, or JSON in a pickle, compressed, in base64.

    Raises:
        Refused: neither, a pickle that names a class, or more than ``MAX_UNPACKED`` bytes.
    """
    try:
        return list(json.loads(text))
    except ValueError:
        pass
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED)
        if stream.unconsumed_tail or not stream.eof:
            raise Refused("private tests that grow too large, or are cut off")
        return list(json.loads(_NoClasses(io.BytesIO(raw)).load()))
    except (ValueError, TypeError, binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, IndexError, KeyError,
            AttributeError, MemoryError, RecursionError) as error:  # a hostile pickle fails in many ways  # fmt: skip
        raise Refused("private tests that cannot be unpacked") from error


_PRELUDES = tables.read(__package__, "hub")["preludes"]
_STARRED = _PRELUDES["modules"].split()
_LIVECODEBENCH = "\n".join(
    [*(f"from {name} import *" for name in _STARRED), f"import {', '.join(_STARRED)}", "sys.setrecursionlimit(50_000)"]
)
"""What LiveCodeBench's harness puts before every program."""
_APPS_PRELUDE: str = _PRELUDES["apps"]
"""What APPS's and TACO's harnesses put before every program, without NumPy."""


def _call(arguments: Sequence[Any], expected: Any, check: str, context: Context) -> Test | None:
    try:
        return Test("call", asserts.to_text(list(arguments)), asserts.to_text(expected), check)
    except NotLiteral:
        context.lost["inputs or values that are no literals"] += 1
        return None


def livecodebench(row: Row, context: Context) -> CodeProblem:
    """livecodebench/code_generation_lite: public tests in JSON, private ones packed; LeetCode's are calls.

    Values, outputs and names without an import are taken as the set's own harness takes them.
    """
    text, public, private, starter, difficulty, metadata = need(
        row,
        context,
        "question_content",
        "public_test_cases",
        "private_test_cases",
        "starter_code",
        "difficulty",
        "metadata",
    )
    cases = [(case, "public") for case in loads(public, "public_test_cases") or []]
    cases += [(case, "hidden") for case in unpack(private)]
    name = str((loads(metadata, "metadata") or {}).get("func_name") or "")

    def read(case: Mapping[str, Any]) -> Test | None:
        if not name:
            return Test("stdio", case["input"], case["output"], "livecodebench")
        try:
            arguments = [json.loads(line) for line in str(case["input"]).split("\n")]
            return _call(arguments, json.loads(str(case["output"])), "livecodebench", context)
        except ValueError:
            context.lost["inputs or values that are no literals"] += 1
            return None

    tests, marks = [read(case) for case, _ in cases], [mark for _, mark in cases]
    point = f"Solution.{name}" if "class Solution" in (starter or "") else name
    return finish(context, tests, marks, mode="function" if name else "stdio", prompt=text, starter_code=starter or "",
                  entry_point=point, level=LEVELS.get(difficulty), prelude=_LIVECODEBENCH)  # fmt: skip


def _lines(value: Any) -> str:
    """APPS gives an input or output as text or as a list of lines."""
    return "\n".join(map(str, value)) + "\n" if isinstance(value, list) else str(value)


def _whole_keys(value: Any) -> Any:
    """A dict, alone or in a list of one, with the whole numbers as keys that JSON made text of."""
    if isinstance(value, list) and len(value) == 1:
        return [_whole_keys(value[0])]
    try:
        return {int(key): item for key, item in value.items()} if isinstance(value, dict) else value
    except ValueError:
        return value


_APPS = LEVELS | {"hard": 4}


def apps(row: Row, context: Context) -> CodeProblem:
    """codeparrot/apps and BAAI/TACO: ``input_output`` in JSON, with ``fn_name`` where a function is called."""
    text, packed, starter, difficulty = need(row, context, "question", "input_output", "starter_code", "difficulty")
    if not packed:
        raise Refused("no usable test")
    cases = loads(packed, "input_output")
    if not isinstance(cases, dict):
        raise Refused("no usable test")
    inputs, outputs, name = cases.get("inputs") or [], cases.get("outputs") or [], cases.get("fn_name")
    tests: list[Test | None]
    if name:
        wrapped = all(isinstance(value, list) and len(value) == 1 for value in outputs)
        values = [_whole_keys(value[0] if wrapped else value) for value in outputs]
        tests = [
            _call(_whole_keys(stdin), value, "apps", context)
            for stdin, value in zip(inputs, values, strict=False)
            if isinstance(stdin, list)
        ]
    else:
        pairs = zip(inputs, outputs, strict=False)
        tests = [Test("stdio", _lines(stdin), _lines(value), "apps") for stdin, value in pairs]
    solutions = loads(row.get("solutions") or "[]", "solutions")
    point = f"Solution.{name}" if name and "class Solution" in (starter or "") else name or ""
    return finish(context, tests, mode="function" if name else "stdio", prompt=text,
                  starter_code=starter or "", entry_point=point, prelude=_APPS_PRELUDE,
                  solution=solutions[0] if isinstance(solutions, list) and solutions else "",
                  level=_APPS.get(str(difficulty).lower()), cpu_s=_number(row.get("time_limit")),
                  memory_mb=_whole(_number(row.get("memory_limit"))))  # fmt: skip


def _number(value: Any) -> float | None:
    """``2.0`` of ``"2.0 seconds"``."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)", str(value)[:400])
    return float(match[1]) if match and float(match[1]) > 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else max(1, round(min(value, 1e18)))


# --- CodeContests, Codeforces -----------------------------------------------------------------------------------------


def _rating(value: Any) -> int | None:
    """Codeforces' rating as a level: below 1200, 1600, 2000, and the rest."""
    return None if not value else 1 + sum(value >= bound for bound in (1200, 1600, 2000))


def code_contests(row: Row, context: Context) -> CodeProblem:
    """deepmind/code_contests: public, private and generated tests; ``solutions.language`` 3 is Python 3."""
    text, public, private, generated = need(
        row, context, "description", "public_tests", "private_tests", "generated_tests"
    )
    if row.get("input_file") or row.get("output_file"):
        raise Refused("reads or writes files")
    tests, marks = [], []
    for cases, mark in ((public, "public"), (private, "hidden"), (generated, "hidden")):
        for stdin, value in zip(cases["input"], cases["output"], strict=True):
            tests.append(Test("stdio", stdin, value))
            marks.append(mark)
    solved = row.get("solutions") or {"language": [], "solution": []}
    python = [
        code
        for language, code in zip(solved["language"], solved["solution"], strict=True)
        if language in (3, "PYTHON3")
    ]
    limit = row.get("time_limit") or {}
    seconds = (limit.get("seconds") or 0) + (limit.get("nanos") or 0) / 1e9
    memory = row.get("memory_limit_bytes")
    return finish(context, tests, marks, mode="stdio", prompt=text, solution=python[0] if python else "",
                  level=_rating(row.get("cf_rating")), cpu_s=seconds or None,
                  memory_mb=_whole(memory / 2**20) if memory else None)  # fmt: skip


def codeforces(row: Row, context: Context) -> CodeProblem:
    """open-r1/codeforces: examples are public, official tests hidden; some problems bring a checker program."""
    title, text, examples, official = need(row, context, "title", "description", "examples", "official_tests")
    if row.get("interaction_format"):
        raise Refused("is interactive")
    if (row.get("input_mode") or "stdio") != "stdio":
        raise Refused("reads or writes files")
    sections = {"Input": row.get("input_format"), "Output": row.get("output_format"), "Note": row.get("note")}
    parts = [f"# {title}", text, *(f"## {name}\n{words}" for name, words in sections.items() if words)]
    prompt = "\n\n".join(part for part in parts if part is not None)
    cases = [(case, "public") for case in examples or []] + [(case, "hidden") for case in official or []]
    if not row.get("official_tests_complete"):
        context.lost["official tests that the set itself leaves out (problems)"] += 1
    tests, marks = [Test("stdio", case["input"], case["output"]) for case, _ in cases], [mark for _, mark in cases]
    return finish(context, tests, marks, mode="stdio", prompt=prompt, checker=row.get("generated_checker") or "",
                  level=_rating(row.get("rating")), cpu_s=_number(row.get("time_limit")),
                  memory_mb=_whole(_number(row.get("memory_limit"))))  # fmt: skip
