"""The words of the coding family: what a problem looks like to the agents, and the feedback on a failed program.

Only public tests stand in any of it. What a program printed, returned or raised is untrusted: it is cut, and control
characters and the invisible ones are written as escapes. Chat-template tokens and role tags that it forges are made
harmless by the environment (:func:`marft_envs.core.observation.neutralise`), as in everything that agents read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from marft_envs.families.code.judge import Report, TestResult
from marft_envs.families.code.problem import CodeProblem, Test

MAX_FIELD = 1_000
"""Characters of a public test's input or expected output in the statement."""
MAX_SHOWN = 300
"""Characters of a value, an output or an error in feedback."""
MAX_FAILURES = 3
"""Failed tests that feedback describes."""
UNSTARTED = frozenset(("compile_error", "no_entry_point", "too_large"))
"""Verdicts that say the same of every test, so that feedback says it once."""

# C0 but newline and tab, DEL, C1, zero-width and bidi controls, line separators, surrogates, BOM, tags.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def shown(text: str, limit: int = MAX_SHOWN, *, tail: bool = False) -> str:
    r"""Returns untrusted text, cut to ``limit`` characters, control and invisible characters as escapes (``\x1b``).

    Args:
        text: What a program said.
        limit: Most characters of the result, an ellipsis apart.
        tail: Keep the end instead of the beginning (a traceback ends with what matters).
    """
    kept = text[-limit:] if tail else text[:limit]
    kept = _UNSEEN.sub(lambda m: m.group().encode("unicode_escape").decode(), kept.replace("\r\n", "\n"))
    dots = "…" if len(text) > limit or len(kept) > limit else ""
    return dots + kept[-limit:] if tail else kept[:limit] + dots


def statement(problem: CodeProblem) -> str:
    """Returns what every agent is shown: the statement, the header or the function's name, and the public tests."""
    parts = [problem.prompt.strip()]
    if problem.starter_code.strip():
        parts.append(problem.starter_code.strip("\n").rstrip())
    elif problem.mode == "function":
        parts.append(f"Function: {problem.entry_point}")
    if problem.public:
        several = (example(problem, test) for test in problem.public)
        parts.append("\n".join(several) if problem.mode == "function" else "\n\n".join(several))
    return "\n\n".join(parts)


def call(problem: CodeProblem, test: Test) -> str:
    """Returns a test's call as one would write it: ``f(2, [3])``."""
    if test.kind == "expr":
        return shown(test.input, MAX_FIELD)
    name = problem.entry_point.rpartition(".")[2]
    return f"{name}({shown(test.input.strip()[1:-1], MAX_FIELD)})"


def example(problem: CodeProblem, test: Test) -> str:
    """Returns a test as it is shown: ``f(2) == 3``, or input and output of a program."""
    expected = shown(test.expected.rstrip("\n"), MAX_FIELD)
    if test.kind == "stdio":
        return f"Input:\n{shown(test.input.rstrip(chr(10)), MAX_FIELD)}\nOutput:\n{expected}"
    return f"{call(problem, test)} == {expected}"


def feedback(problem: CodeProblem, report: Report, proposed: Sequence[Test], tried: Report, status: str) -> str:
    """Returns the team's feedback on a program.

    Args:
        problem: The problem.
        report: Of its public tests.
        proposed: Tests that the team's own tester proposed.
        tried: The report of those.
        status: What :func:`marft_envs.families.code.extract.extract` found.
    """
    if status != "ok":
        return _MISSING[status]
    lines = [f"{report.passed} of {len(problem.public)} public tests passed."] if problem.public else []
    lines += _failures(problem, problem.public, report)
    if proposed:
        lines.append(f"{tried.passed} of {len(proposed)} tests of the tester agree.")
        lines += _failures(problem, proposed, tried)
    return "\n".join(lines or ["The program was not run: there are no public tests."])


_MISSING = {
    "no_code": "There was no program in the reply.",
    "unclosed": "The program's code block was not closed.",
    "too_large": "The reply is too long.",
}


def _failures(problem: CodeProblem, tests: Sequence[Test], report: Report) -> list[str]:
    failed = [(test, result) for test, result in zip(tests, report.results, strict=True) if result.verdict != "passed"]
    if failed and failed[0][1].verdict in UNSTARTED:
        first = failed[0][1]
        return [f"{first.verdict}\n{_indented(shown(first.message.strip(), tail=True))}".strip()]
    out: list[str] = []
    messages: set[str] = set()
    for test, result in failed[:MAX_FAILURES]:
        out.append(_failure(problem, test, result, "" if result.message in messages else result.message))
        messages.add(result.message)
    return out


def _failure(problem: CodeProblem, test: Test, result: TestResult, message: str) -> str:
    wrong = result.verdict == "wrong_answer"
    reason = shown(message.strip(), tail=True)
    if test.kind != "stdio":
        got = shown(result.got) if wrong and result.got else result.verdict
        line = f"{shown(call(problem, test))} -> {got}, expected {shown(test.expected)}"
        return f"{line}\n{_indented(reason)}" if reason else line
    stdin, expected, got = (_indented(shown(text.rstrip("\n"))) for text in (test.input, test.expected, result.got))
    lines = ["Input:", stdin, "Expected:", expected, *(["Got:", got] if wrong else [f"Got: {result.verdict}"])]
    return "\n".join([*lines, *([_indented(reason)] if reason else [])])


def _indented(text: str) -> str:
    """Indented, so that what a program prints does not pass for the feedback's own lines."""
    return "\n".join(f"  {line}" for line in text.split("\n"))
