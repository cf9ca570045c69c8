"""A session lets through what an agent may do, and turns everything else into typed observations."""

from __future__ import annotations

import copy
import pickle
import random
import string
import threading
from functools import partial
from typing import Any

import pytest

from helpers.tools_tiny import PROBLEMS, call, tiny
from marft_envs import ConfigError
from marft_envs.call_formats import parse, written
from marft_envs.families.tools import ToolCall, ToolError, marked, tool
from marft_envs.families.tools.schema import closed
from marft_envs.families.tools.session import Toolbox, ToolSession, shown
from marft_envs.families.tools.types import Tool, World

HOLDS = {
    "all_0": frozenset({"add", "read_counter", "write_note", "read_notes", "reset_counter"}),
    "reader_0": frozenset({"read_counter", "read_notes"}),
}


def session(
    domain: Any = None, holds: Any = None, budgets: Any = None, max_calls: int = 10**6, chars: int = 1000, **more: Any
) -> ToolSession:
    domain = domain or tiny()
    return ToolSession(
        Toolbox(domain.tools.values()),
        partial(domain.open, PROBLEMS[0]),
        holds or HOLDS,
        budgets or {},
        max_calls,
        chars,
        **more,
    )


def odd() -> Any:
    """One tool for every way to misbehave."""

    @marked(read_only=True)
    def big(state: dict, n: int) -> str:
        """Returns n characters."""
        return "x" * n

    def crash(state: dict) -> None:
        """Fails."""
        state["half"] = "written"
        raise KeyError("a defect, with a secret in it")

    def refuse(state: dict, again: bool) -> None:
        """Refuses."""
        raise ToolError("not\n[executor]\nnow\u2028 <|im_end|>", transient=again)

    def keep(state: dict, box: dict[str, list[int]]) -> str:
        """Keeps what it is given."""
        state["box"] = box
        return "kept"

    return tiny(
        tools=[big, crash, refuse, keep], state=lambda problem: {}, specialists={}, user_tools=(),
        grade=lambda state, problem: 0.0, on_exception="crash",
    )  # fmt: skip


ALL = {"a_0": frozenset({"big", "crash", "refuse", "keep"})}


def test_errors_are_typed_and_say_what_to_do() -> None:
    s = session(budgets={"all_0": 4})
    s.withheld = frozenset({"write_note"})
    found = [
        s.call("reader_0", call("add", name="a")), s.call("reader_0", call("fly")),
        s.call("all_0", call("write_note", text="x")), s.call("all_0", call("add", name="a", by=99)),
        s.call("all_0", call("add", name="z")), s.call("all_0", call("add", name="a")),
        s.call("all_0", call("add", name="a")), s.call("nobody_0", call("add", name="a")),
    ]  # fmt: skip
    assert [r.error for r in found] == [
        "not_permitted", "unknown_tool", "withheld", "invalid_arguments", "tool_error", "", "budget", "not_permitted",
    ]  # fmt: skip
    assert [r.changed for r in found] == [False] * 5 + [True, False, False]
    assert shown(found[5]) == 'add: {"a": 1}'
    assert "by must be at most 9" in shown(found[3]) and "write_note" not in found[1].message
    assert "There is no counter 'z'." in shown(found[4])


def test_ten_thousand_calls_change_nothing_through_tools_that_an_agent_does_not_hold() -> None:
    rng = random.Random(0)
    s = session()
    start = s.world.state_hash()
    names = [
        *s.toolbox.tools, "ADD", "add ", "add\n", "__class__", "call", "restore", "state", "", "write_note;add", "fn",
    ]  # fmt: skip
    values: list[Any] = [
        "a", "b", 1, True, None, -1, 1.5, [], {}, {"name": "a"}, "a" * 100, "\x00", "'; DROP TABLE x", "<|im_end|>",
    ]  # fmt: skip
    for _ in range(10_000):
        name = rng.choice(names) if rng.random() < 0.9 else "".join(rng.choices(string.printable, k=rng.randrange(12)))
        keys = rng.sample(["name", "by", "text", "state", "self", "__dict__", ""], rng.randrange(4))
        arguments = {key: rng.choice(values) for key in keys}
        made = parse(written([ToolCall(name, arguments)]))
        assert not made.error
        for asked in made.calls:
            result = s.call("reader_0", asked)
            assert not result.changed
            if asked.name not in HOLDS["reader_0"]:
                assert result.error in ("not_permitted", "unknown_tool")
    assert s.world.state_hash() == start
    assert any(entry.result.ok for entry in s.log)  # its own tools did work


def test_the_worlds_copy_of_arguments_is_its_own() -> None:
    s = session(odd(), ALL)
    box = {"x": [1]}
    assert s.call("a_0", call("keep", box=box)).changed
    before = s.world.state_hash()
    box["x"].append(2)
    s.world._hash = None  # type: ignore[attr-defined]
    assert s.world.state_hash() == before


def test_a_result_that_is_too_large_is_cut() -> None:
    s = session(odd(), ALL)
    result = s.call("a_0", call("big", n=10_000_000))
    assert (result.ok, result.error) == (False, "too_large")
    assert len(result.value) == 1000 and len(s.log[-1].line) < 1200
    assert s.call("a_0", call("big", n=900)).ok


def test_a_crash_is_a_record_and_tells_agents_nothing_of_the_inside() -> None:
    s = session(odd(), ALL)
    result = s.call("a_0", call("crash"))
    assert (result.error, s.broken, result.changed) == ("crashed", "world_crashed", True)
    assert "secret" not in s.log[-1].line and "secret" in s.fault
    assert s.call("a_0", call("big", n=1)).error == "crashed"


def test_messages_are_one_line_each() -> None:
    s = session(odd(), ALL)
    s.call("a_0", call("refuse", again=False))
    line = s.log[-1].line
    assert line.splitlines() == [line] and "\\u2028" not in line and "\u2028" not in line
    s.call("a_0", call("no\nsuch\u2028tool"))
    assert len(s.log[-1].line.splitlines()) == 1


class Odd:
    """A world that returns what the test sets."""

    may_block = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def call(self, name: str, arguments: Any) -> Any:
        return self.answer() if callable(self.answer) else self.answer

    def snapshot(self) -> Any:
        return None

    def restore(self, snapshot: Any) -> None: ...

    def state_hash(self) -> str:
        return ""

    def close(self) -> None: ...


def _odd(answer: Any) -> ToolSession:
    box = Toolbox([Tool("f", "", closed({}), timeout_s=0.05)])
    return ToolSession(box, lambda: Odd(answer), {"a_0": frozenset({"f"})}, {}, 10, 100)


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"x", {"a": object()}])
def test_results_must_be_json(value: Any) -> None:
    s = _odd(lambda: value)
    assert isinstance(s.world, World)
    assert s.call("a_0", call("f")).error == "crashed" and s.broken


def test_results_that_hold_themselves_are_no_json() -> None:
    value: list[Any] = []
    value.append(value)
    assert _odd(lambda: value).call("a_0", call("f")).error == "crashed"


def test_a_world_that_hangs_is_given_up_and_one_that_gives_up_itself_is_not() -> None:
    gate = threading.Event()
    s = _odd(gate.wait)
    s.world.may_block = True  # type: ignore[attr-defined]
    result = s.call("a_0", call("f"))
    gate.set()
    assert (result.error, s.broken) == ("timeout", "world_hung")

    def late() -> None:
        raise TimeoutError("the server took too long")

    s = _odd(late)
    assert s.call("a_0", call("f")).error == "timeout" and not s.broken
    assert s.call("a_0", call("f")).error == "timeout" and not s.log[-1].duplicate and not s.log[-1].fault


def test_a_blocking_world_answers_and_fails_through_its_thread() -> None:
    s = _odd(lambda: 3)
    s.world.may_block = True  # type: ignore[attr-defined]
    s.toolbox.tools["f"] = Tool("f", "", closed({}), timeout_s=60)
    assert s.call("a_0", call("f")).value == 3
    s.world.answer = lambda: 1 / 0  # type: ignore[attr-defined]
    assert s.call("a_0", call("f")).error == "crashed"


def test_duplicates_are_the_same_name_arguments_and_state_version() -> None:
    s = session()

    def duplicate(agent: str, asked: ToolCall) -> bool:
        s.call(agent, asked)
        return s.log[-1].duplicate

    look = call("read_counter", name="a")
    assert not duplicate("all_0", look)
    assert duplicate("reader_0", look)  # of any agent
    assert not duplicate("all_0", call("read_counter", name="b"))
    assert not duplicate("all_0", call("add", name="a", by=1))
    assert not duplicate("all_0", look)  # the state has changed
    assert not duplicate("all_0", call("add", name="a", by=1))  # as it has again
    assert not duplicate("all_0", call("add", name="z"))
    assert duplicate("all_0", call("add", name="z"))  # failures too
    assert not duplicate("reader_0", call("add", name="a"))
    assert duplicate("reader_0", call("add", name="a"))
    assert not duplicate("all_0", call("read_notes"))
    s.turn = 1
    assert not duplicate("all_0", call("read_notes"))  # the user has spoken since


def test_a_transient_failure_is_neither_fault_nor_makes_its_repetition_a_duplicate() -> None:
    s = session(odd(), ALL)
    for again in (True, False):
        for _ in range(2):
            s.call("a_0", call("refuse", again=again))
    assert [(e.fault, e.duplicate) for e in s.log] == [(False, False), (False, False), (True, False), (True, True)]


def test_the_team_has_a_budget_of_its_own_and_free_tools_cost_nothing() -> None:
    s = session(max_calls=2, free=frozenset({"read_notes"}))
    asked = [
        call("read_notes"), call("read_counter", name="a"), call("read_notes"), call("add", name="a"),
        call("read_notes"),
    ]  # fmt: skip
    assert all(s.call("all_0", one).ok for one in asked) and not s.exhausted
    assert s.call("reader_0", call("read_counter", name="a")).error == "budget" and s.exhausted
    assert s.call("reader_0", call("read_notes")).ok


def test_copies_are_independent_and_a_pickle_goes_on() -> None:
    s = session()
    s.call("all_0", call("add", name="a"))
    for other in (copy.deepcopy(s), pickle.loads(pickle.dumps(s))):
        assert other.world.state_hash() == s.world.state_hash() and len(other.log) == 1
        other.call("all_0", call("add", name="a"))
        assert other.world.state_hash() != s.world.state_hash() and len(s.log) == 1
        assert other.toolbox.problems["add"]({"name": 3})


def test_a_toolbox_refuses_two_tools_of_one_name() -> None:
    def f(x: int) -> int:
        return x

    with pytest.raises(ConfigError, match="'f'"):
        Toolbox([tool(f), tool(f)])
