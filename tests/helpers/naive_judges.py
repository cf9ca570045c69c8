"""Judges without a sandbox, each with a mistake that released judges make. They run only inside ``tests.helpers.jail``.

They show that the hostile programs work: a program that fails even here would prove nothing about a sandbox.
Each takes the source and the calls ``[(a, b, expected), …]`` and returns a verdict.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Calls = Sequence[tuple[int, int, int]]
TIMEOUT_S = 3.0  # on a busy machine the interpreter alone may take a second, and a program that never ran shows nothing


def load(source: str) -> Callable[[int, int], Any]:
    scope: dict[str, Any] = {"__name__": "solution"}
    exec(compile(source, "solution.py", "exec"), scope)
    return scope["add"]


def in_process(source: str, calls: Calls) -> str:
    """Runs the program in the judge's own process and compares with ``==``; a table of tests lies in memory."""
    table = [{"args": [a, b], "expected": expected} for a, b, expected in calls]
    try:
        add = load(source)
        return "passed" if all(add(*row["args"]) == row["expected"] for row in table) else "wrong_answer"
    except Exception:
        return "runtime_error"


def forked(source: str, calls: Calls) -> str:
    """Forks the judge; the child says by its exit status that the program is right."""
    child = os.fork()
    if not child:
        try:
            os._exit(0 if in_process(source, calls) == "passed" else 1)
        except BaseException:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "passed", 1: "wrong_answer"}.get(status, "runtime_error")


def lenient(source: str, calls: Calls) -> str:
    """As ``forked``, and compares numbers with the functions that the program shares with the judge."""
    child = os.fork()
    if not child:
        add = load(source)
        right = all(isinstance(got := add(a, b), int) and abs(got - want) < 1e-6 for a, b, want in calls)
        os._exit(0 if right else 1)
    return "passed" if os.waitpid(child, 0)[1] == 0 else "wrong_answer"


def script_of(source: str, calls: Calls) -> str:
    checks = "\n".join(f"    assert candidate({a}, {b}) == {expected}" for a, b, expected in calls)
    return f"{source}\n\ndef check(candidate):\n{checks}\n    return None\n\ncheck(add)\n"


def python(argv: Sequence[str], timeout: float | None, **more: Any) -> str:
    try:
        done = subprocess.run([sys.executable, *argv], timeout=timeout, check=False, **more)
    except subprocess.TimeoutExpired:
        return "timeout"
    return "passed" if done.returncode == 0 else "runtime_error"


def script(source: str, calls: Calls) -> str:
    """Appends assertions to the program; exit status 0 is success. At the timeout, kills the one process."""
    Path("script.py").write_text(script_of(source, calls))
    return python(["script.py"], TIMEOUT_S, stderr=subprocess.DEVNULL)


def patient(source: str, calls: Calls) -> str:
    """As ``script``, without a timeout."""
    Path("script.py").write_text(script_of(source, calls))
    return python(["script.py"], None, stderr=subprocess.DEVNULL)


def piped(source: str, calls: Calls) -> str:
    """As ``patient``; reads the output to its end first."""
    Path("script.py").write_text(script_of(source, calls))
    child = subprocess.Popen([sys.executable, "script.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout
    child.stdout.read()
    return "passed" if child.wait() == 0 else "runtime_error"


def unit(source: str, calls: Calls) -> str:
    """A unittest class after the program."""
    tests = "".join(f"        self.assertEqual(add({a}, {b}), {want})\n" for a, b, want in calls)
    case = f"import unittest\nclass T(unittest.TestCase):\n    def test(self):\n{tests}unittest.main()\n"
    Path("script.py").write_text(f"{source}\n{case}")
    return python(["script.py"], 10, stderr=subprocess.DEVNULL)


def pytests(source: str, calls: Calls) -> str:
    """Imports the program to see whether it can be, then runs pytest in the same folder."""
    Path("solution.py").write_text(source)
    lines = "".join(f"    assert add({a}, {b}) == {want}\n" for a, b, want in calls)
    Path("test_solution.py").write_text(f"from solution import add\ndef test_add():\n{lines}")
    python(["-c", "import solution"], 10)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return python(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_solution.py"], 30, **quiet)


def pickled(source: str, calls: Calls) -> str:
    """The child sends its results as a pickle, the judge loads and compares them."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        add = load(source)
        with os.fdopen(theirs, "wb") as pipe:
            pickle.dump([add(a, b) for a, b, _ in calls], pipe)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        results = pickle.load(pipe)
    os.waitpid(child, 0)
    return "passed" if results == [want for _, _, want in calls] else "wrong_answer"


def printed(source: str, calls: Calls) -> str:
    """Compares what ``print`` makes of the result."""
    add = load(source)
    for a, b, want in calls:
        said = io.StringIO()
        with redirect_stdout(said):
            print(add(a, b))
        if said.getvalue().strip() != str(want):
            return "wrong_answer"
    return "passed"


def trusting(source: str, calls: Calls) -> str:
    """Believes the line that the child writes."""
    Path("script.py").write_text(f"{script_of(source, calls)}\nprint('passed')\n")
    argv = [sys.executable, "script.py"]
    child = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return "passed" if child.stdout.splitlines()[:1] == [b"passed"] else "wrong_answer"


def alarm(source: str, calls: Calls) -> str:
    """Keeps the time with an exception that a signal handler raises in the program."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    add = load(source)
    for a, b, want in calls:
        signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
        try:
            if add(a, b) != want:
                return "wrong_answer"
        except TimeoutError:
            return "timeout"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return "passed"


def clock(source: str, calls: Calls) -> str:
    """Keeps the time with a clock that the program can reach."""
    add = load(source)
    for a, b, want in calls:
        start = time.monotonic()
        got = add(a, b)
        if time.monotonic() - start > TIMEOUT_S:
            return "timeout"
        if got != want:
            return "wrong_answer"
    return "passed"


def reporting(source: str, calls: Calls) -> str:
    """As ``in_process``; puts the text of an exception into its report."""
    add = load(source)
    for a, b, want in calls:
        try:
            if add(a, b) != want:
                return "wrong_answer"
        except Exception as error:
            return f"runtime_error: {error}"
    return "passed"


def normalising(source: str, calls: Calls) -> str:
    """Turns results into plain lists before it compares them, however deep they are."""

    def plain(value: Any) -> Any:
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    add = load(source)
    return "passed" if all(plain(add(a, b)) == want for a, b, want in calls) else "wrong_answer"


def stdio(source: str, calls: Calls) -> str:
    """One process a test; collects all of its output."""
    Path("script.py").write_text(source)
    for a, b, want in calls:
        try:
            done = subprocess.run(
                [sys.executable, "script.py"], input=f"{a} {b}\n".encode(), capture_output=True, timeout=TIMEOUT_S, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timeout"
        if done.returncode or done.stdout.split() != [str(want).encode()]:
            return "wrong_answer"
    return "passed"


def stdio_patient(source: str, calls: Calls) -> str:
    """As ``stdio``, without a timeout."""
    Path("script.py").write_text(source)
    for a, b, want in calls:
        argv = [sys.executable, "script.py"]
        done = subprocess.run(argv, input=f"{a} {b}\n".encode(), capture_output=True, check=False)
        if done.returncode or done.stdout.split() != [str(want).encode()]:
            return "wrong_answer"
    return "passed"


def stdio_in_process(source: str, calls: Calls) -> str:
    """Runs the program in the judge, with its standard streams replaced."""
    for a, b, want in calls:
        said = io.StringIO()
        sys.stdin = io.StringIO(f"{a} {b}\n")
        with redirect_stdout(said):
            exec(compile(textwrap.dedent(source), "solution.py", "exec"), {"__name__": "__main__"})
        if said.getvalue().split() != [str(want)]:
            return "wrong_answer"
    return "passed"


LOSES_TO: dict[Callable[[str, Calls], str], tuple[int, ...]] = {
    in_process: (4, 5, 7, 13, 14, 16, 17, 19, 22, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 47, 55, 56, 64, 65, 85, 86),
    forked: (40, 41, 43, 44, 53), lenient: (58,), script: (1, 2, 49, 50, 52, 59, 61, 62), patient: (23,), piped: (73,),
    unit: (67,), pytests: (68,), pickled: (76, 77, 80), printed: (83,), trusting: (74,), alarm: (70,), clock: (71,),
    reporting: (82,), normalising: (79,), stdio: (10, 11), stdio_patient: (8, 46), stdio_in_process: (20,),
}  # fmt: skip
"""Which judge each program (by its number) wins against."""

HALTS = ("07", "08", "16", "17", "23", "41", "46", "73", "82")
"""Programs that beat their judge by making it wait for ever."""


def judge_for(attack: str) -> Callable[[str, Calls], str]:
    """The judge that a program, by its file's name, is shown to win against."""
    number = int(attack.partition("_")[0])
    return next(judge for judge, numbers in LOSES_TO.items() if number in numbers)


def controls() -> dict[str, tuple[str, str]]:
    """What every judge says of a right and of a wrong program: that a program beats it says something only then."""
    right, wrong = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b - 1\n"
    asks = "a, b = map(int, input().split())\nprint(a {} b)\n"
    found = {}
    for judge in LOSES_TO:
        pair = (asks.format("+"), asks.format("-")) if judge.__name__.startswith("stdio") else (right, wrong)
        found[judge.__name__] = (judge(pair[0], [(1, 2, 3), (5, 8, 13)]), judge(pair[1], [(1, 2, 3), (5, 8, 13)]))
    return found


def dump_table(calls: Calls) -> str:
    """The tests as they lie on disk."""
    return json.dumps([{"args": [a, b], "expected": expected} for a, b, expected in calls])
