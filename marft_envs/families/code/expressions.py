"""Tests of kind ``expr``: the program answers calls, and nothing else of an expression is evaluated where it lives.

What is left of an expression runs in a *clean* child, a process of the sandbox into which only the row's own code is
loaded. When it needs a call of the program, it stops and says which; the host makes the call in the program's own
process, and lets the clean child begin again with one value more. It ends when it needs no further call; what it gives
then is compared in the host. An expression that is one call and nothing more needs no clean child.

A call that gives an iterator (a generator, a ``map``) gives its first item; when the rest wants more, the call is made
again for a hundred, and so on, and if these cannot be had, for one more at a time. So ``next(primes())`` is as good a
test as ``list(primes(9))``, and a generator in there is one for the rest, too: it is not equal to a list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError, WorkerError
from marft_envs.families.code import setup_code, split
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.sandbox import Call, CallResult, Limits, Sandbox, SandboxError

MAX_CALLS = 100
"""Calls of the program that one expression may make."""
MAX_HANDED = 1 << 24
"""Bytes of arguments that the rest of an expression hands to one call."""

_CLEAN = Path(__file__).with_name("clean_child.py").read_text(encoding="utf-8")
_MADE = (
    "(lambda made, here: (True, [*here.__import__('itertools').islice(made, {most})])"
    " if here.isinstance(made, here.__import__('collections.abc').abc.Iterator) else (False, made))"
    "(({call}), __import__('builtins'))"
)
"""What a call gives, as far as that is data; the program may have its own ``list`` and ``type``."""
_AT_ONCE = 100
"""Items of an iterator that are fetched when the first is not enough; ten times as many when they are not, either."""


@dataclass(slots=True)
class _Answer:
    """What a call of the program gave to the rest of an expression."""

    call: Call
    kind: str = "data"
    """``data``; of iterators ``items`` (these are all) or ``more``."""
    value: Any = None
    most: int = 1
    """Items of an iterator that are asked for."""
    step_by_step: bool = False
    """More at once could not be had: it ran out of time, or raised."""

    def ask(self) -> Call:
        """The call, as it is made."""
        return replace(self.call, text=_MADE.format(most=self.most, call=self.call.text))

    def want_more(self) -> None:
        """The rest wants another item."""
        have = len(self.value)
        self.most = have + 1 if self.step_by_step else max(_AT_ONCE, 10 * have)

    def take(self, result: CallResult) -> CallResult | None:
        """Takes what a call gave; returns what that makes of the test, if that is over."""
        if result.status != "ok":
            if self.kind == "data" or self.most == len(self.value) + 1:
                return result
            self.step_by_step = True
            return None
        if not (isinstance(result.value, tuple) and len(result.value) == 2):  # it wrote on the sandbox's channel
            return CallResult("bad_value", message="no value came back")
        iterates, self.value = result.value
        if iterates and isinstance(self.value, list):
            self.kind = "more" if len(self.value) >= self.most else "items"
        else:
            self.kind = "data"
        return None


@dataclass(slots=True)
class _Running:
    """A test on its way."""

    plan: split.SplitExpression | None
    """None for a test of kind ``call``."""
    next: Call | None = None
    """The call of the program that it waits for."""
    answer: _Answer | None = None
    """Where what that gives is noted; None where it is the test's value."""
    known: list[_Answer] = field(default_factory=list)
    rounds: int = 0
    done: CallResult | None = None


class Run:
    """A program on a problem's tests.

    Args:
        sandbox: Where programs and what is left of expressions run.
        problem: With its setup.
        program: The program.
        limits: Of a test, and of all runs of the program together.

    Raises:
        DataError: A test cannot be taken apart, or fails before the program is called.
        SandboxError: The machine kept a test from getting as far as that.
    """

    def __init__(self, sandbox: Sandbox, problem: CodeProblem, program: str, limits: Limits) -> None:
        self.sandbox, self.problem, self.program, self.limits = sandbox, problem, program, limits
        self.function = split.function_name(problem.entry_point, split.classes_of(problem))
        self.setup, self.inside = setup_code.Setup("", "", frozenset()), problem.setup
        self.left = limits.total_s

    def results(self, tests: Sequence[Test]) -> list[CallResult]:
        """One result per test, in order: the value of its call or expression."""
        try:
            if any(test.kind == "expr" for test in (*self.problem.public, *self.problem.hidden, *tests)):
                self.setup = setup_code.read_setup(self.problem.setup, self.function)
                self.inside = self.setup.inside
            running = [self._start(test) for test in tests]
        except setup_code.DecidedInside as reason:
            raise split.refusal(f"Problem '{self.problem.id}'", reason) from None
        while any(one.done is None for one in running):
            self._ask_clean([one for one in running if one.done is None and one.next is None])
            self._ask_program([one for one in running if one.done is None])
        return [one.done for one in running if one.done is not None]

    def _start(self, test: Test) -> _Running:
        if test.kind == "call":
            return _Running(None, Call("call", test.input))
        plan = split.of_test(self.problem, test)
        return _Running(plan, None if plan.rest else Call("expr", plan.calls[0]))

    def _ask_clean(self, running: Sequence[_Running]) -> None:
        """Evaluates what is left of expressions, up to the next call that each needs."""
        calls = []
        for one in running:
            assert one.plan is not None
            modules = sorted(setup_code.MODULES - self.setup.names)
            known = ", ".join(f"_{5 + i}" for i in range(len(one.known)))
            kinds = [answer.kind for answer in one.known]
            answers = (answer.value for answer in one.known)
            values = (self.setup.clean, modules, one.plan.rest, self.function, kinds, *answers)
            calls.append(Call("expr", f"evaluate(_0, _1, _2, _3, _4, [{known}])", values))
        roomy = replace(self.limits, output_bytes=MAX_HANDED)
        results = self._calls(_CLEAN, "", calls, roomy)
        slow = sum(result.cpu_s for result in results) > self.limits.total_s / 2  # the tests are, and not the machine
        for one, result in zip(running, results, strict=True):
            self.left -= result.wall_s if one.known else 0.0  # what the program gave may make the rest slow
            if result.status == "ok" and result.value[0] == "value":
                one.done = replace(result, value=result.value[1])
            elif result.status == "ok":
                self._wait(one, *result.value)
            elif one.known:
                one.done = result  # no value to compare: what the program gave does not fit the rest
            elif result.cut_short(self.limits) and not slow:
                raise SandboxError(
                    f"Problem '{self.problem.id}': a test of kind 'expr' was cut short before the program was called "
                    f"({result.status}: {result.message}). No verdict follows. Give the machine less to do, or allow "
                    "more time (wall_s); if it stays so, the test or 'test_setup_code' waits for something: fix the "
                    "data."
                )
            else:
                raise DataError(
                    f"Problem '{self.problem.id}': a test of kind 'expr' fails before the program is called "
                    f"({result.status}). Expected an expression over the function asked for and "
                    "'test_setup_code'. Fix the data."
                )

    def _wait(self, one: _Running, what: str, *request: Any) -> None:
        """Notes the call that a clean child asked for, or of which it wants more items."""
        if what == "call":
            one.answer = _Answer(self._call(one, *request))
            one.known.append(one.answer)
        else:
            one.answer = one.known[request[0]]
            one.answer.want_more()
        one.next = one.answer.ask()

    def _call(self, one: _Running, site: int, args: Any, kwargs: Any) -> Call:
        """The call that a clean child asked for; values travel as data, Python's own functions by name."""
        assert one.plan is not None
        values: list[Any] = []
        texts: list[str] = []
        for kind, value in (*args, *kwargs.values()):
            if kind == "text":
                texts.append(value)
                continue
            name = f"_{len(values)}"
            texts.append(f"__import__('builtins').iter({name})" if kind == "items" else name)
            values.append(value)
        if site < 0:
            named = [f"{key}={text}" for key, text in zip(kwargs, texts[len(args) :], strict=True)]
            return Call("expr", f"{self.function}({', '.join([*texts[: len(args)], *named])})", tuple(values))
        text = one.plan.calls[site]
        if any(kind != "data" for kind, _ in args):
            text = f"(lambda {', '.join(f'_{i}' for i in range(len(texts)))}: {text})({', '.join(texts)})"
        return Call("expr", text, tuple(values))

    def _ask_program(self, running: Sequence[_Running]) -> None:
        """Makes the next call of each test, all in one run."""
        if not (waiting := [one for one in running if one.next is not None]):
            return
        for one in waiting:
            one.rounds += 1
            if one.rounds > MAX_CALLS or self.left <= 0:
                one.done = CallResult("timeout", message=f"more than {MAX_CALLS} calls, or {self.limits.total_s:g} s")
        waiting = [one for one in waiting if one.done is None]
        limits = replace(self.limits, total_s=max(self.left, 1e-3))
        calls = [one.next for one in waiting if one.next is not None]
        codes = {"setup": self.inside, "prelude": self.problem.prelude}
        results = self._calls(self.program, self.problem.entry_point, calls, limits, **codes)
        self.left -= sum(result.wall_s for result in results)
        for one, result in zip(waiting, results, strict=True):
            one.next = None
            one.done = one.answer.take(result) if one.answer else result

    def _calls(self, source: str, entry: str, calls: Sequence[Call], limits: Limits, **codes: str) -> list[CallResult]:
        if not calls:
            return []
        results = self.sandbox.run_calls(source, entry, calls, **codes, limits=limits)
        if len(results) != len(calls):
            raise WorkerError(f"the sandbox gave {len(results)} results for {len(calls)} calls; this is a defect of it")
        return results
