"""Does the fast suite notice planted defects? Puts each in, runs the tests that reach its place, and takes it out.

    python -m benchmarks mutations            # all of them, a table at the end; exit code 1 if one goes unnoticed
    python -m benchmarks mutations credit     # those whose row or file contains the word
    python -m benchmarks mutations --map      # notes anew which tests reach which defects: one run of the fast suite

The list is ``mutations.json``: what operators made of the code with a fixed seed (``operators.py``), and what people
added. First the test that noticed a defect last is run (``benchmarks/results/mutations.json``, written by every run).
Only those that it misses need the map, in ``.mutations/``: they meet the fastest tests that reach their place, then
all of the files that hold one. A defect made by hand must be noticed by the test that it names, one that is equivalent
to the code is not run. Noticed means that a test *fails*, or never ends; errors of collection do not count.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from benchmarks.correctness import mutations_probe
from benchmarks.correctness.operators import ROOT, Defect, defects, planted
from marft_algos.runs.disk import write_whole

MAP = ROOT / ".mutations/map.json"
NOTICED = ROOT / "benchmarks/results/mutations.json"
JOBS = 2
FIRST_S = 20.0
"""Seconds of tests, the fastest first, that a defect meets before whole files."""
ENDLESS = "(never ends)"
_UNREAD = re.compile(r"^ERROR.*?\b(tests/[\w/]+\.py)", re.MULTILINE)
Plan = Callable[[Defect], Iterable[tuple[float, list[str]]]]
"""Lists of tests that a defect meets, one after the other, each with about how many seconds it takes."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Plants the chosen defects; returns the exit code."""
    words = [word.lower() for word in arguments if word != "--map"]
    named = [d for d in defects() if not words or any(word in f"{d.row} {d.file}".lower() for word in words)]
    if not named:
        print(f"No row contains {' or '.join(words)}. Rows: " + "; ".join(d.row for d in defects()), file=sys.stderr)
        return 2
    chosen = [d for d in named if not d.equivalent]
    print("| defect | operator | noticed by |\n|---|---|---|")
    found = dict(tried(chosen, remembered))
    if left := [d for d in chosen if not found[d] and not d.test]:
        reach = mapped(anew="--map" in arguments)
        found |= tried(left, lambda defect: reaching(reach.get(defect.row, {})))
    if tests := sorted({test for test in found.values() if "::" in test}):
        with tempfile.TemporaryDirectory() as folder:
            code, said = run(copied(Path(folder) / "tree"), tests)
        if code:
            print(f"\nWithout any defect these tests must pass:\n{said}", file=sys.stderr)
            return 2
    nobody = [d.row for d in chosen if not found[d]]
    print("\n".join(["", *(f"Nobody noticed: {row}" for row in nobody)]))
    print(
        f"{len(chosen) - len(nobody)} of {len(chosen)} noticed; {len(named) - len(chosen)} are equivalent to the code."
    )
    return 1 if nobody else 0


def tried(chosen: Sequence[Defect], plan: Plan) -> Iterator[tuple[Defect, str]]:
    """Yields each defect and the test that noticed it, empty if none did; prints and stores them as they come."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for job in range(JOBS):
            free.put(copied(Path(folder) / str(job)))

        def one(defect: Defect) -> str:
            tree = free.get()
            try:
                return attempt(tree, defect, plan(defect))
            finally:
                free.put(tree)

        for defect, test in zip(chosen, pool.map(one, chosen), strict=True):
            if test:
                print(f"| {defect.row} | {defect.operator} | {test} |", flush=True)
                store(NOTICED, stored() | {defect.row: test})
            yield defect, test


def attempt(tree: Path, defect: Defect, plan: Iterable[tuple[float, list[str]]]) -> str:
    """Plants a defect in a tree, runs tests until one fails, and takes it out: the name of that test, or nothing."""
    path = tree / defect.file
    source = path.read_text(encoding="utf-8")
    path.write_text(planted(source, defect)[0], encoding="utf-8")
    try:
        for seconds, tests in plan:
            unread = {""}
            while tests and unread:  # what cannot be collected does not count, and hides the rest of what is asked for
                code, said = run(tree, ["-x", *tests], 60 + 10 * seconds)
                if code in (1, -signal.SIGKILL):
                    found = _FAILED.search(said)
                    return found[1] if found else ENDLESS
                unread = set(_UNREAD.findall(said)) if code in (2, 4) else set()
                tests = [test for test in tests if unread.isdisjoint([test.partition("::")[0]])]
        return ""
    finally:
        path.write_text(source, encoding="utf-8")


def remembered(defect: Defect) -> Iterator[tuple[float, list[str]]]:
    """Yields the test that is named for a defect, else the one that noticed it last; and a guess of its seconds."""
    test = f"tests/{defect.test}" if defect.test else stored().get(defect.row, "")
    if "::" in test:
        yield 60.0, [test]


def reaching(seconds: dict[str, float]) -> Iterator[tuple[float, list[str]]]:
    """Yields the fastest tests that reach a defect, then all files that hold one; and their seconds."""
    fastest = sorted(seconds, key=lambda test: seconds[test])
    spent = itertools.accumulate(seconds[test] for test in fastest)
    if first := [test for test, so_far in zip(fastest, spent, strict=True) if so_far <= FIRST_S] or fastest[:1]:
        yield FIRST_S, first
        files = defaultdict[str, float](float)
        for test in seconds:
            files[test.partition("::")[0]] += seconds[test]
        yield sum(files.values()), sorted(files, key=lambda file: files[file])


def mapped(anew: bool) -> dict[str, dict[str, float]]:
    """Reads which tests reach which defects; made by one run of the fast suite where it is not there."""
    if anew or not MAP.is_file():
        with tempfile.TemporaryDirectory() as folder:
            tree = probed(Path(folder) / "tree")
            run(tree, ["-p", "marft_envs.reached", "-n", str(JOBS), "--dist", "worksteal", "tests"])
            store(MAP, noted(tree))
    return dict(json.loads(MAP.read_text(encoding="utf-8")))


def run(folder: Path, arguments: Sequence[str], limit: float | None = None) -> tuple[int, str]:
    """Runs pytest in a tree, ended after ``limit`` seconds; its exit code and what it said."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
    return process.returncode, said


def copied(tree: Path) -> Path:
    """Copies what git does not ignore to a new folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    return tree


def probed(tree: Path) -> Path:
    """Copies the project to a new folder, with a call of ``reached`` in front of every defect's place."""
    copied(tree)
    (tree / "marft_envs/reached").mkdir()
    shutil.copy(mutations_probe.__file__, tree / "marft_envs/reached/__init__.py")
    numbered = sorted(enumerate(defects()), key=lambda each: each[1].file)
    for file, rows in itertools.groupby(numbered, key=lambda each: each[1].file):
        source = (ROOT / file).read_text(encoding="utf-8")
        syntax = ast.parse(source)
        for number, defect in rows:
            block, at = statement(syntax, planted(source, defect)[1])
            block[at:at] = ast.parse(f"__import__('marft_envs.reached', fromlist=['reached']).reached({number})").body
        (tree / file).write_text(ast.unparse(syntax), encoding="utf-8")
    return tree


def statement(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int]:
    """The innermost statement on a line: the block that holds it, and its index there."""
    found: list[tuple[list[ast.stmt], int]] = []
    for node in ast.walk(tree):  # outer ones first
        blocks = [getattr(node, name, None) for name in ("body", "orelse", "finalbody")]
        for block in (block for block in blocks if isinstance(block, list)):
            lines = [(getattr(s, "lineno", 0), getattr(s, "end_lineno", 0)) for s in block]
            found += [(block, i) for i, (first, last) in enumerate(lines) if first <= line <= last]
    return found[-1]


def noted(tree: Path) -> dict[str, dict[str, float]]:
    """Reads the notes of the probes: row -> tests that reach it, and their seconds."""
    seconds = defaultdict[str, float](float)
    notes = tree / "marft_envs/reached"
    for line in (notes / "seconds").read_text(encoding="utf-8").splitlines():
        spent, _, test = line.partition("\t")
        seconds[test] += float(spent)
    found: dict[str, dict[str, float]] = {}
    rows = defects()
    for file in notes.glob("[0-9]*"):
        for line in file.read_text(encoding="utf-8").splitlines():
            number, _, test = line.partition("\t")
            if (name := test.rpartition(" (")[0]) in seconds:
                found.setdefault(rows[int(number)].row, {})[name] = round(seconds[name], 3)
    return found


def stored() -> dict[str, str]:
    """Row -> the test that noticed it last; empty where none did."""
    return dict(json.loads(NOTICED.read_text(encoding="utf-8"))) if NOTICED.is_file() else {}


def store(file: Path, found: object) -> None:
    """Writes a JSON file, whole: other threads read it meanwhile."""
    file.parent.mkdir(exist_ok=True)
    write_whole(file, json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
