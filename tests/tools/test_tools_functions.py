"""Domains of functions: states that cannot be copied, what a failed tool says, results written once."""

from __future__ import annotations

import asyncio
import functools
import pickle
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from helpers.tools_tiny import PROBLEMS, TOOLS, Desk, call, grade, said, start, tiny
from marft_envs.errors import ConfigError
from marft_envs.families.tools import FunctionDomain, ToolError, functions, make, marked, session


def solo(domain: Any, *replies: str) -> Any:
    env = make("solo", domain)
    env.reset(seed=0, options={"task_id": "tiny/one"})
    for text in replies:
        env.step(text)
    return env


@dataclass
class Locked(Desk):
    """A state that can be compared, and not copied."""

    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


def locked(problem: Any) -> Locked:
    return Locked()


def test_a_state_that_cannot_be_copied_is_refused_when_the_task_opens() -> None:
    """Before: every writing call was an infrastructure error, ``world_crashed``."""
    with pytest.raises(
        ConfigError, match=r"state of 'tiny', a Locked.*cannot pickle.*__deepcopy__.*on_exception='crash'"
    ):
        solo(tiny(state=locked))


def test_what_needs_no_copy_works_with_a_state_that_cannot_be_copied() -> None:
    env = solo(tiny(state=locked, on_exception="crash"), said(call("add", name="a", by=3)), said(call("finish")))
    assert env.episode.success and env.episode.fault == ""
    reads = [tool for tool in TOOLS if functions.tool(tool).read_only]
    env = solo(tiny(state=locked, tools=reads, specialists={}, user_tools=("read_notes",)), said(call("read_notes")))
    assert env.episode.turns[0].result == "read_notes: []"


def test_a_tool_that_only_reads_does_not_say_that_nothing_was_changed() -> None:
    @marked(read_only=True)
    def look(state: Desk) -> int:
        """Looks."""
        raise KeyError("a secret")

    def take(state: Desk) -> int:
        """Takes."""
        raise KeyError("a secret")

    env = solo(tiny(tools=[look, take], specialists={}, user_tools=()), said(call("look")), said(call("take")))
    assert [turn.result for turn in env.episode.turns] == [
        "look: error (tool_error): the tool failed (KeyError)",
        "take: error (tool_error): the tool failed (KeyError), and nothing was changed",
    ]


def test_a_result_is_written_as_text_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counting(value: Any, encode: Any = session.encode) -> str:
        nonlocal count
        count += 1
        text: str = encode(value)
        return text

    for module in (functions, session):
        monkeypatch.setattr(module, "encode", counting)
    env = solo(tiny(), said(call("add", name="a", by=3)))
    assert count == 1 and env.episode.turns[0].result == 'add: {"a": 3}'
    env = solo(tiny(), said(call("add", name="a", by=3), call("add", name="a", by=4)))
    assert env.episode.turns[0].result == 'add: {"a": 3}\nadd: {"a": 7}'


def test_a_function_whose_signature_python_cannot_read_makes_no_state() -> None:
    with pytest.raises(ConfigError, match=r"state=.*signature.*def start\(problem\)"):
        FunctionDomain(TOOLS, PROBLEMS, grade, state=max)
    assert FunctionDomain(TOOLS, PROBLEMS, grade, state=start).open(PROBLEMS[0]).state == Desk()


def test_a_function_whose_signature_python_cannot_read_is_no_tool() -> None:
    with pytest.raises(ConfigError, match=r"signature of 'max' cannot be read"):
        tiny(tools=[max], specialists={}, user_tools=())


class Notes:
    """Methods of every kind, and attributes that are none."""

    Rows = list[str]
    limit = 3
    on_add: Any = print

    class Inner:
        pass

    async def fetch(self, key: str) -> str:
        """Fetches."""
        await asyncio.sleep(0)
        return f"{type(self).__name__} {key}"

    @staticmethod
    def now(zone: str = "utc") -> str:
        """Says the time."""
        return f"12:00 {zone}"

    @classmethod
    def most(cls) -> str:
        """Says how many there may be."""
        return f"{cls.__name__} {cls.limit}"

    @staticmethod
    async def later() -> str:
        """Waits."""
        return "later"

    @functools.cache  # noqa: B019
    def cached(self, n: int) -> int:
        """Doubles."""
        return 2 * n

    @property
    def size(self) -> int:
        """Not a method."""
        return 0


def test_every_public_method_of_a_class_is_a_tool() -> None:
    domain = FunctionDomain(Notes, PROBLEMS, lambda state, problem: True)
    assert list(domain.tools) == ["fetch", "now", "most", "later", "cached"]
    world = domain.open(PROBLEMS[0])
    called = [("fetch", {"key": "a"}), ("now", {"zone": "cet"}), ("most", {}), ("later", {}), ("cached", {"n": 2})]
    got = [world.call(name, arguments) for name, arguments in called]
    assert got == ["Notes a", "12:00 cet", "Notes 3", "later", 4]
    assert pickle.loads(pickle.dumps(domain.functions["most"]))(world.state, {}) == "Notes 3"


def hidden(fn: Any) -> Any:
    """A decorator that says nothing of what it returns."""

    def call(key: str) -> Any:
        """Fetches."""
        return fn(key)

    return call


async def fetch(key: str) -> str:
    """Fetches."""
    await asyncio.sleep(0)
    if key == "none":
        raise ToolError("there is no such key")
    return key


@pytest.mark.parametrize(
    "tool", [fetch, hidden(fetch), functools.partial(fetch)], ids=["async", "decorated", "partial"]
)
def test_an_asynchronous_tool_is_run_to_its_end(tool: Any) -> None:
    if isinstance(tool, functools.partial):
        tool = functools.update_wrapper(tool, fetch)
    world = FunctionDomain([tool], PROBLEMS, grade).open(PROBLEMS[0])
    (name,) = world._functions
    assert world.call(name, {"key": "a"}) == "a"
    with pytest.raises(ToolError, match="no such key"):
        world.call(name, {"key": "none"})

    async def inside() -> Any:
        return world.call(name, {"key": "b"})

    assert asyncio.run(inside()) == "b"  # where a loop runs, as in a notebook


def test_what_cannot_be_a_tool_is_refused_by_name() -> None:
    async def pages(n: int) -> Any:
        """Yields."""
        yield n

    class Half:
        half = functools.partialmethod(Notes.cached, n=1)

    with pytest.raises(ConfigError, match=r"'pages' is an asynchronous generator"):
        FunctionDomain([pages], PROBLEMS, grade)
    for word in ("grade", "state", "oracle"):
        with pytest.raises(ConfigError, match=rf"{word}=fetch is asynchronous; only tools may be"):
            FunctionDomain(TOOLS, PROBLEMS, **{"grade": grade, word: fetch})
    with pytest.raises(ConfigError, match=r"'Half.half' is a partialmethod"):
        FunctionDomain(Half, PROBLEMS, grade)
