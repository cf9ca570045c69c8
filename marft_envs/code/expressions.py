"""Tests of kind ``expr``: the program answers calls, and nothing else of an expression is evaluated where it lives.

What is left of an expression runs in a *clean* child, a process of the sandbox into which only the row's own code is
loaded. When it needs a call of the program, it stops and says which; the host makes the call in the program's own
process, and lets the clean child begin again with one value more. It ends when it needs no further call; what it gives
then is compared in the host. An expression that is one call and nothing more needs no clean child.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from marft_envs.code import split
from marft_envs.code.problem import Problem, Test
from marft_envs.code.sandbox import Call, CallResult, Limits, Sandbox
from marft_envs.errors import DataError, WorkerError

MAX_CALLS = 100
"""Calls of the program that one expression may make."""
MAX_HANDED = 1 << 24
"""Bytes of arguments that the rest of an expression hands to one call."""

# Runs in the clean child. What it says is the row's word, not the program's.
_CLEAN = '''\
import builtins, importlib


class Asked(BaseException):
    pass


def written(value):
    """An argument that is no data, as text: a type or function of Python's, a range."""
    if isinstance(value, range):
        return True, repr(value)
    name = getattr(value, "__name__", "")
    if callable(value) and getattr(builtins, name, None) is value:
        return True, name
    return False, value


def evaluate(setup, modules, text, entry, known):
    answers = iter(known)

    def ask(site, args, kwargs):
        for answer in answers:
            return answer
        raise Asked(site, [written(a) for a in args], {key: written(a) for key, a in kwargs.items()})

    names = {"__name__": "tests", "_program": lambda site, *args: ask(site, args, {})}
    names.update((name, importlib.import_module(name)) for name in modules)
    if entry:
        names[entry] = lambda *args, **kwargs: ask(-1, args, kwargs)
    try:
        exec(compile(setup, "<setup>", "exec"), names)
        return "value", eval(compile(text, "<test>", "eval"), names)
    except Asked as asked:
        return "call", *asked.args
'''


@dataclass(slots=True)
class _Running:
    """A test on its way."""

    plan: split.Plan | None
    """None for a test of kind ``call``."""
    next: Call | None = None
    """The call of the program that it waits for."""
    known: list[Any] = field(default_factory=list)
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
    """

    def __init__(self, sandbox: Sandbox, problem: Problem, program: str, limits: Limits) -> None:
        self.sandbox, self.problem, self.program, self.limits = sandbox, problem, program, limits
        self.function = split.function_name(problem.entry_point, split.classes_of(problem))
        self.setup, self.inside = split.Setup("", "", frozenset()), problem.setup
        self.left = limits.total_s

    def results(self, tests: Sequence[Test]) -> list[CallResult]:
        """One result per test, in order: the value of its call or expression."""
        if any(test.kind == "expr" for test in (*self.problem.public, *self.problem.hidden, *tests)):
            self.setup, self.inside = self._read_setup()
        running = [self._start(test) for test in tests]
        while any(one.done is None for one in running):
            self._ask_clean([one for one in running if one.done is None and one.next is None])
            self._ask_program([one for one in running if one.done is None])
        return [one.done for one in running if one.done is not None]

    def _read_setup(self) -> tuple[split.Setup, str]:
        try:
            setup = split.read_setup(self.problem.setup, self.function)
        except split.DecidedInside as reason:
            raise split.refusal(f"Problem '{self.problem.id}'", reason) from None
        return setup, setup.inside

    def _start(self, test: Test) -> _Running:
        if test.kind == "call":
            return _Running(None, Call("call", test.input))
        try:
            found = split.of_test(self.problem, test)
        except split.DecidedInside as reason:
            raise split.refusal(f"Problem '{self.problem.id}'", reason) from None
        return _Running(found, None if found.rest else Call("expr", found.calls[0]))

    def _ask_clean(self, running: Sequence[_Running]) -> None:
        """Evaluates what is left of expressions, up to the next call that each needs."""
        calls = []
        for one in running:
            assert one.plan is not None
            modules = sorted(split.MODULES - self.setup.names)
            known = ", ".join(f"_{4 + i}" for i in range(len(one.known)))
            values = (self.setup.clean, modules, one.plan.rest, self.function, *one.known)
            calls.append(Call("expr", f"evaluate(_0, _1, _2, _3, [{known}])", values))
        roomy = dataclasses.replace(self.limits, output_bytes=MAX_HANDED)
        for one, said in zip(running, self._calls(_CLEAN, "", calls, "", roomy), strict=True):
            self.left -= said.wall_s if one.known else 0.0  # what the program gave may make the rest slow
            if said.status == "ok" and said.value[0] == "value":
                one.done = dataclasses.replace(said, value=said.value[1])
            elif said.status == "ok":
                one.next = self._call(one, *said.value[1:])
            elif one.known:
                one.done = said  # no value to compare: what the program gave does not fit the rest
            else:
                raise DataError(
                    f"Problem '{self.problem.id}': a test of kind 'expr' fails before the program is called "
                    f"({said.status}). Expected an expression over the function asked for and "
                    "'test_setup_code'. Mend the data."
                )

    def _call(self, one: _Running, site: int, args: Any, kwargs: Any) -> Call:
        """The call that a clean child asked for; values travel as data, Python's own functions by name."""
        assert one.plan is not None
        values: list[Any] = []
        texts: list[str] = []
        for is_text, given in (*args, *kwargs.values()):
            texts.append(given if is_text else f"_{len(values)}")
            if not is_text:
                values.append(given)
        if site < 0:
            named = [f"{key}={text}" for key, text in zip(kwargs, texts[len(args) :], strict=True)]
            return Call("expr", f"{self.function}({', '.join([*texts[: len(args)], *named])})", tuple(values))
        text = one.plan.calls[site]
        if any(is_text for is_text, _ in args):
            text = f"(lambda {', '.join(f'_{i}' for i in range(len(texts)))}: {text})({', '.join(texts)})"
        return Call("expr", text, tuple(values))

    def _ask_program(self, running: Sequence[_Running]) -> None:
        """Makes the next call of each test, all in one run."""
        waiting = [one for one in running if one.next is not None]
        if not waiting:
            return
        for one in waiting:
            if len(one.known) >= MAX_CALLS or self.left <= 0:
                one.done = CallResult("timeout", message=f"more than {MAX_CALLS} calls, or {self.limits.total_s:g} s")
        waiting = [one for one in waiting if one.done is None]
        limits = dataclasses.replace(self.limits, total_s=max(self.left, 1e-3))
        calls = [one.next for one in waiting if one.next is not None]
        found = self._calls(self.program, self.problem.entry_point, calls, self.inside, limits)
        self.left -= sum(said.wall_s for said in found)
        for one, said in zip(waiting, found, strict=True):
            one.next = None
            if one.plan is None or not one.plan.rest or said.status != "ok":
                one.done = said
            else:
                one.known.append(said.value)

    def _calls(self, source: str, entry: str, calls: Sequence[Call], setup: str, limits: Limits) -> list[CallResult]:
        if not calls:
            return []
        found = self.sandbox.run_calls(source, entry, calls, setup=setup, limits=limits)
        if len(found) != len(calls):
            raise WorkerError(f"the sandbox gave {len(found)} results for {len(calls)} calls; this is a defect of it")
        return found
