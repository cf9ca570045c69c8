"""Schemas of others: a pattern cannot hang the trainer, a deep one is refused at once."""

from __future__ import annotations

import re
import threading
import time
from functools import partial

import pytest

from helpers.tools_tiny import PROBLEMS, call, tiny
from marft_envs.core.faults import fault_of, is_infrastructure_error
from marft_envs.errors import ConfigError
from marft_envs.families.tools import patterns
from marft_envs.families.tools.schema import Tool, closed, validate
from marft_envs.families.tools.session import Toolbox, ToolSession
from marft_envs.families.tools.validation import UNDECIDED, compiled
from marft_envs.workers.untrusted import (
    WorkerCrashed,
    WorkerError,
    WorkerLate,
    WorkerOutOfMemory,
    WorkerPool,
    WorkerTimeout,
)

EVIL = [
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(a*)*$", "(.*a){20}$", "a*a*a*a*a*a*a*a*$", "((a?){30}){30}$",
    "(?:a{1,9}){1,30}$", r"(\w+\s?)+$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", EVIL)
@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_no_pattern_hangs(pattern: str, where: str) -> None:
    text = "a" * 40 + "!"
    schema = {"type": "string", "pattern": pattern} if where == "pattern" else {"patternProperties": {pattern: True}}
    check = compiled(schema, "it")
    started = time.process_time()
    said = check(text if where == "pattern" else {text: 1, text + "!": 1})
    assert time.process_time() - started < 0.5, "not in this process"
    assert said in (
        [],
        ["arguments take too long to match against their patterns; send something shorter"],
        [f"arguments must match {pattern}"],
    )


@pytest.mark.parametrize("where", ["pattern", "patternProperties"])
def test_a_pattern_that_cannot_be_decided_is_the_tools_doing(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """The agent gets a message and no penalty; the console names the tool, once."""
    slow = {"type": "string", "pattern": "(a+)+$"} if where == "pattern" else {"patternProperties": {"(a+)+$": True}}
    find = Tool(
        "find",
        "",
        closed({"type": "object", "properties": {"x": {"type": ["string", "object"], **slow}}}),
        read_only=True,
    )
    opened = partial(tiny().open, PROBLEMS[0])
    s = ToolSession(Toolbox([find]), opened, {"a_0": frozenset({"find"})}, {}, max_calls=10, max_result_chars=1000)
    text = "a" * 60 + "!"
    for _ in range(2):
        result = s.call("a_0", call("find", x=text if where == "pattern" else {text: 1}))
        assert (result.ok, result.error) == (False, "invalid_arguments") and "too long" in result.message
    assert [entry.fault for entry in s.log] == [False, False]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["tool 'find'"]
    s.call("a_0", call("find", x=7))
    assert s.log[-1].fault, "what can be decided is the agent's"


@pytest.mark.parametrize(("error", "whose"), [
    (WorkerLate("by the clock"), "machine"), (WorkerCrashed("died (signal SIGKILL)"), "machine"),
    (WorkerTimeout("CPU time"), ""), (WorkerOutOfMemory("MemoryError"), ""),
])  # fmt: skip
def test_a_worker_that_the_machine_takes_away_is_an_infrastructure_error(
    error: Exception, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pool:
        def call(self, payload: object) -> None:
            raise error

    monkeypatch.setattr(patterns, "_pool", Pool)
    check = compiled({"type": "string", "pattern": "(a+)+$"}, "it")
    if whose:
        with pytest.raises(WorkerError) as caught:
            check("a" * 60)
        assert fault_of(caught.value) == whose
    else:
        assert check("a" * 60) == [UNDECIDED]


def test_a_worker_killed_while_it_matches_is_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool("marft_envs.families.tools.patterns:search", deadline=30.0) as pool:
        monkeypatch.setattr(patterns, "_pool", lambda: pool)
        pool.warm_up()
        process = pool.slots[0].process
        assert process is not None
        timer = threading.Timer(0.1, process.signal)
        timer.start()
        with pytest.raises(WorkerError) as caught:
            compiled({"type": "string", "pattern": "(a+)+$"}, "it")("a" * 60 + "!")
        assert is_infrastructure_error(caught.value)
        timer.join()


def test_many_slow_values_share_one_budget() -> None:
    check = compiled({"type": "array", "items": {"type": "string", "pattern": "(a+)+$"}}, "it")
    started = time.monotonic()
    assert len(check(["a" * 40 + "!"] * 1000)) == 1
    assert time.monotonic() - started < 25
    assert check(["aaa"] * 1000) == [], "what can be decided still is"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^[a-z]+$", "abc" * 100), ("^[a-z]+$", "abc1"), (r"^\d{4}-\d{2}-\d{2}$", "2024-01-31"), (r"^\d{4}-\d{2}-\d{2}$", "2024-1-31"),
        (r"^[^@]+@[^@]+\.[^@]+$", "somebody.with.a.name@an.example.com"), (r"^[^@]+@[^@]+\.[^@]+$", "x" * 200), ("(a+)+$", "baaa"),
        ("(ab|cd)+e", "ababcde"), ("^(?!no)[a-z]+$", "note"), (r"(a*)b\1c", "aabaac"), ("", ""), ("(?i)ABC", "xabcx"),
    ],
)  # fmt: skip
def test_what_is_found_is_what_re_finds(pattern: str, text: str) -> None:
    with patterns.budget():
        assert patterns.compiled(pattern)(text) is bool(re.search(pattern, text))


def test_the_bound_is_one_where_it_is_taken() -> None:
    """Patterns that are searched here are quick at the length at which they still are."""
    for pattern in ("^[a-z]+$", "a*a*b", "(?:ab)*c", "x?x?x?x?xxxx$", "[ab]*[bc]*d", "(a|b|c)(d|e)*f", ".*.*=.*"):
        cost = patterns._cost(pattern)
        n = max(n for n in range(400) if cost(n) <= patterns._QUICK)
        started = time.process_time()
        re.search(pattern, "a" * n)
        assert time.process_time() - started < 0.2, pattern
    for pattern in EVIL:
        assert patterns._cost(pattern)(40) > patterns._QUICK, pattern


@pytest.mark.parametrize("pattern", ["(", "a" * 3000, "[z-a]", 7])
def test_a_pattern_that_is_none_is_refused_with_its_schema(pattern: object) -> None:
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: True}}):
        with pytest.raises(ConfigError, match="pattern") as caught:
            compiled(schema, "the tool")
        assert len(str(caught.value)) < 600


def test_a_deep_schema_is_refused_at_once() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(400):
        schema = {"type": "object", "properties": {"x": schema}, "additionalProperties": False}
    with pytest.raises(ConfigError, match="nested deeper than 192 levels"):
        validate(Tool("deep", "", schema, read_only=True), {})
