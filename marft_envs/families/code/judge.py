"""The judge: a problem's tests and a sandbox, in; verdicts, out.

The verdict never comes from the program. The sandbox returns values as built-in types and output as bytes, and the
comparison happens here, with expected values that the sandbox never sees.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marft_envs.errors import DataError
from marft_envs.families.code import checkers, expressions
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.sandbox import CallResult, Limits, Sandbox
from marft_envs.sandbox.types import MOST_SLEPT, SLEPT

VERDICTS = (
    "passed", "wrong_answer", "runtime_error", "timeout", "memory_limit", "output_limit", "compile_error",
    "no_entry_point", "no_code", "too_large",
)  # fmt: skip
"""Every verdict. A sandbox that does not work has no verdict: it raises, and gives no reward."""

# What the sandbox calls otherwise. A value that cannot be compared is wrong; a program that leaves the process in the
# middle of a call has not returned.
_STATUS = {"bad_value": "wrong_answer", "exited": "runtime_error"}
_FATAL = ("compile_error", "too_large")
"""A program that cannot start on one input can start on none."""

MAX_CPU_S = 60.0
"""Data may ask for more time, up to here."""
MAX_GOT = 2_000
"""Characters that are kept of a value or an output."""


@dataclass(frozen=True, slots=True)
class TestResult:
    """What became of one test. ``got`` and ``message`` are untrusted text, to be shown for public tests only."""

    __test__ = False  # not a test class of pytest's

    verdict: str
    """One of :data:`VERDICTS`."""
    got: str = ""
    """Where the verdict is ``wrong_answer``: the value as Python writes it, or the output; cut."""
    message: str = ""
    """What the program said when it failed: exception and end of the traceback, or of standard error."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a program's tests, in their order."""

    results: tuple[TestResult, ...]

    @classmethod
    def same(cls, verdict: str, n: int, message: str = "") -> Report:
        """Returns a report in which all n tests fare alike (a program that is missing, or cannot start)."""
        return cls((TestResult(verdict, "", message),) * n)

    @property
    def passed(self) -> int:
        """Tests passed."""
        return sum(result.verdict == "passed" for result in self.results)

    @property
    def fraction(self) -> float:
        """Share of tests passed; 0 without tests."""
        return self.passed / len(self.results) if self.results else 0.0

    @property
    def all_passed(self) -> bool:
        """Whether there are tests, and all are passed."""
        return bool(self.results) and self.passed == len(self.results)

    @property
    def verdict(self) -> str:
        """``passed``, or the first other verdict."""
        return next((result.verdict for result in self.results if result.verdict != "passed"), "passed")

    @property
    def counts(self) -> dict[str, int]:
        """Verdict -> number of tests."""
        return dict(Counter(result.verdict for result in self.results))


class Judge:
    """Runs programs on tests.

    A program that was judged on the same tests before is not run again (programs of a team in training repeat
    themselves), timeouts excepted, which may be the machine's fault. All judges of one sandbox share what they know.

    Args:
        sandbox: Where programs run.
        limits: Of one test and of one run; a problem's own CPU and memory limits take precedence.
    """

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self.sandbox, self.limits = sandbox, limits

    def run(self, problem: CodeProblem, program: str, tests: Sequence[Test]) -> list[TestResult]:
        """Returns one result per test.

        Raises:
            DataError: A test or a checker of the problem does not work.
            SandboxError: The sandbox does not work.
        """
        if not tests:
            return []
        if len(program) > self.limits.source_bytes:
            return list(Report.same("too_large", len(tests)).results)
        if "\0" in program or not _encodable(program):
            message = "the program holds a NUL or a lone surrogate"
            return list(Report.same("compile_error", len(tests), message).results)
        known = _SEEN.setdefault(self.sandbox, {})
        key = (self.limits, problem, program, tuple(tests))
        if (results := known.get(key)) is None:
            results = tuple(self._run(problem, program, tests))
            if not any(result.verdict == "timeout" for result in results) and len(program) <= _MAX_KEPT:
                if len(known) >= _MAX_SEEN:
                    known.clear()
                known[key] = results
        return list(results)

    def report(self, problem: CodeProblem, program: str, tests: Sequence[Test]) -> Report:
        """Returns :meth:`run`'s results as a report."""
        return Report(tuple(self.run(problem, program, tests)))

    def _run(self, problem: CodeProblem, program: str, tests: Sequence[Test]) -> list[TestResult]:
        limits = self._limits(problem)
        if problem.mode == "stdio":
            return self._run_stdio(problem, program, tests, limits)
        for test in tests:
            if test.kind == "stdio":
                raise DataError(f"Problem '{problem.id}' is a function, but has a test of kind 'stdio'. Fix the data.")
        results = expressions.Run(self.sandbox, problem, program, limits).results(tests)
        return [self._value(problem, test, result) for test, result in zip(tests, results, strict=True)]

    def _value(self, problem: CodeProblem, test: Test, result: CallResult) -> TestResult:
        if result.status != "ok":
            verdict = _STATUS.get(result.status, result.status)
            return TestResult(verdict, "", result.message)
        if checkers.value_agrees(result.value, test, problem):
            return TestResult("passed")
        return TestResult("wrong_answer", written(result.value))

    def _run_stdio(self, problem: CodeProblem, program: str, tests: Sequence[Test], limits: Limits) -> list[TestResult]:
        """One run a test; once a run's CPU time is used up, or two tests slept, what is left counts as ``timeout``."""
        out: list[TestResult] = []
        used, slept = 0.0, 0
        for test in tests:
            if test.kind != "stdio":
                raise DataError(f"Problem '{problem.id}' is a program, but has a test of kind '{test.kind}'.")
            if out and out[-1].verdict in _FATAL:
                out.append(out[-1])
                continue
            if used > limits.total_s:
                out.append(TestResult("timeout", "", "no time left after the tests before"))
                continue
            if slept >= MOST_SLEPT:
                out.append(TestResult("timeout", "", SLEPT))
                continue
            result = self.sandbox.run_stdio(program, test.input, prelude=problem.prelude, limits=limits)
            used, slept = used + result.cpu_s, slept + result.slept
            text = result.stdout.decode("utf-8", "replace")
            if result.status != "ok":
                out.append(TestResult(_STATUS.get(result.status, result.status), "", result.stderr))
            elif self._output_agrees(problem, test, text, limits):
                out.append(TestResult("passed"))
            else:
                out.append(TestResult("wrong_answer", text[:MAX_GOT], result.stderr))
        return out

    def _output_agrees(self, problem: CodeProblem, test: Test, text: str, limits: Limits) -> bool:
        if not problem.checker or test.check:
            return checkers.output_agrees(text, test, problem)
        roomy = _scaled(limits, checkers.CHECKER_CPU_S, limits.memory_mb)
        return checkers.program_accepts(self.sandbox, text, test, problem, roomy)

    def _limits(self, problem: CodeProblem) -> Limits:
        cpu = min(problem.cpu_s, MAX_CPU_S) if problem.cpu_s else self.limits.cpu_s
        return _scaled(self.limits, cpu, max(problem.memory_mb or 0, self.limits.memory_mb))


def _scaled(limits: Limits, cpu_s: float, memory_mb: int) -> Limits:
    """The limits with other CPU seconds for a test, the wall clocks in proportion."""
    share = cpu_s / limits.cpu_s
    wall, total = limits.wall_s * share, limits.total_s * share
    return dataclasses.replace(limits, cpu_s=cpu_s, wall_s=wall, total_s=total, memory_mb=memory_mb)


_SEEN: weakref.WeakKeyDictionary[Sandbox, dict[Any, tuple[TestResult, ...]]] = weakref.WeakKeyDictionary()
_MAX_SEEN, _MAX_KEPT = 4096, 4096
"""Programs remembered per sandbox, and characters of the longest that is."""


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def written(value: Any, limit: int = MAX_GOT) -> str:
    """Returns a decoded value as Python writes it, cut; Python refuses to write ints of thousands of digits."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"<a value of type {type(value).__name__} that is too long to write>"
    return text if len(text) <= limit else text[:limit] + "…"
