"""A sandbox that runs nothing: program text -> a Python function of the test's own."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.sandbox.types import Call, CallResult, Limits, StdioResult

Does = Callable[..., Any]


class FakeSandbox:
    """Has the real one's API. A function's value is what the call returns, its exception a ``runtime_error``; it may
    return a result of its own making. A program that is not scripted is a ``compile_error``."""

    layer = "fake"
    guarantees: frozenset[str] = frozenset()

    def __init__(self, script: dict[str, Does] | None = None) -> None:
        self.script = {key.strip(): value for key, value in (script or {}).items()}
        self.runs: list[tuple[str, int]] = []
        """Programs run, with the number of calls."""
        self.limits: list[Limits | None] = []
        self.setups: list[str] = []

    def run_calls(
        self,
        source: str,
        entry_point: str,
        calls: Sequence[Call],
        *,
        setup: str = "",
        prelude: str = "",
        limits: Limits | None = None,
    ) -> list[CallResult]:
        self.runs.append((source, len(calls)))
        self.limits.append(limits)
        self.setups.append(setup)
        does = self.script.get(source.strip())
        if does is None:
            return [CallResult("compile_error", None, "SyntaxError: not scripted")] * len(calls)
        return [self._call(does, call) for call in calls]

    def _call(self, does: Does, call: Call) -> CallResult:
        arguments = [call.text] if call.kind == "expr" else ast.literal_eval(call.text)
        try:
            value = does(*arguments)
        except Exception as error:
            return CallResult("runtime_error", None, f"{type(error).__name__}: {error}")
        return value if isinstance(value, CallResult) else CallResult("ok", value)

    def run_stdio(
        self, source: str, stdin: str | bytes, *, prelude: str = "", limits: Limits | None = None
    ) -> StdioResult:
        self.runs.append((source, 1))
        self.limits.append(limits)
        does = self.script.get(source.strip())
        if does is None:
            return StdioResult("compile_error", b"", "SyntaxError: not scripted")
        said = does(stdin)
        if isinstance(said, StdioResult):
            return said
        return StdioResult("ok", said if isinstance(said, bytes) else str(said).encode())

    def close(self) -> None:
        """Holds nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeSandbox:
        return self


def calls(*pairs: tuple[str, str], **kwargs: Any) -> tuple[Test, ...]:
    """``("[1, 2]", "3")``: tests of a function."""
    return tuple(Test("call", given, expected, **kwargs) for given, expected in pairs)


def stdio(*pairs: tuple[str, str], **kwargs: Any) -> tuple[Test, ...]:
    """``("1 2", "3")``: tests of a program."""
    return tuple(Test("stdio", given, expected, **kwargs) for given, expected in pairs)


GOLD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
ZERO = "def add(a, b):\n    return 0"
"""Right on one hidden test of two."""
CRASH = "def add(a, b):\n    return a / 0"


def crash(a: int, b: int) -> float:
    return a / 0


def plus(a: int, b: int) -> int:
    return a + b


def minus(a: int, b: int) -> int:
    return a - b


def zero(a: int, b: int) -> int:
    return 0


SCRIPT: dict[str, Does] = {GOLD: plus, WRONG: minus, ZERO: zero, CRASH: crash}

ADD = CodeProblem(
    id="add/0",
    mode="function",
    prompt="Add two numbers.",
    public=calls(("[1, 2]", "3"), ("[0, 0]", "0")),
    hidden=calls(("[70, 7]", "77"), ("[-5, 5]", "0")),
    entry_point="add",
    solution=GOLD,
)


def in_containers(leaves: Any, size: int, most: int) -> Any:
    """Draws leaves, and lists, tuples, sets and dicts of them with at most so many members and leaves."""
    keys = st.recursive(leaves, lambda one: st.tuples(one, one) | st.frozensets(one, max_size=size), max_leaves=6)

    def containers(one: Any) -> Any:
        lists = st.lists(one, max_size=size)
        return lists | lists.map(tuple) | st.sets(keys, max_size=size) | st.dictionaries(keys, one, max_size=size)

    return st.recursive(leaves, containers, max_leaves=most)
