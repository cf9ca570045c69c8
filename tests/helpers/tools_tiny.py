"""A tiny domain for tests of tool use: counters and notes, made of functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from marft_envs.call_formats import written
from marft_envs.families.tools import FunctionDomain, StateGrade, ToolCall, ToolError, ToolProblem, marked


@dataclass
class Desk:
    counters: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    notes: list[str] = field(default_factory=list)


@marked(read_only=True)
def read_counter(state: Desk, name: str) -> int:
    """Reads a counter."""
    if name not in state.counters:
        raise ToolError(f"There is no counter '{name}'.")
    return state.counters[name]


def add(state: Desk, name: str, by: Annotated[int, Field(ge=1, le=9)] = 1) -> dict[str, int]:
    """Adds to a counter.

    Args:
        name: Which counter.
        by: How much.
    """
    if name not in state.counters:
        raise ToolError(f"There is no counter '{name}'.")
    state.counters[name] += by
    return {name: state.counters[name]}


def write_note(state: Desk, text: str) -> str:
    """Writes a note."""
    state.notes.append(text)
    return "written"


@marked(read_only=True)
def read_notes(state: Desk) -> list[str]:
    """Reads all notes."""
    return state.notes


@marked(idempotent=True)
def reset_counter(state: Desk, name: str) -> str:
    """Sets a counter to zero."""
    state.counters[name] = 0
    return "zero"


TOOLS = [read_counter, add, write_note, read_notes, reset_counter]


def wanted(calls: list[list[ToolCall]]) -> Desk:
    desk = Desk()
    for call in (call for turn in calls for call in turn):
        if call.name == "add":
            desk.counters[call.arguments["name"]] += call.arguments.get("by", 1)
        elif call.name == "write_note":
            desk.notes.append(call.arguments["text"])
    return desk


def grade(state: Desk, problem: ToolProblem) -> StateGrade:
    """Progress: share of the wanted changes that are there, 0 if anything else was changed."""
    gold = wanted(problem.secret["calls"])
    parts = [(state.counters.get(name, -1), gold.counters[name], 0) for name in gold.counters]
    parts += [(state.notes.count(text), gold.notes.count(text), 0) for text in {*state.notes, *gold.notes}]
    needed = [part for part in parts if part[1] != part[2]]
    stray = any(now != then for now, want, then in parts if want == then)
    hit = sum(now == want for now, want, _ in needed)
    done = not stray and hit == len(needed) and state.notes == gold.notes
    share = hit / len(needed) if needed else 1.0
    return StateGrade(done, 1.0 if done else 0.0 if stray else min(share, 0.99), {"stray": stray})


def problem(id: str, says: str | tuple[str, ...], *turns: list[ToolCall], **more: Any) -> ToolProblem:
    calls = list(turns)
    says = (says,) if isinstance(says, str) else says
    return ToolProblem(f"tiny/{id}", says, sum(map(len, calls)), secret={"calls": calls}, **more)


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def said(*calls: ToolCall) -> str:
    """A reply that makes these calls."""
    return written(calls)


PROBLEMS = [
    problem("one", "Add 3 to counter a.", [call("add", name="a", by=3)], level=0),
    problem(
        "two", "Add 2 to counter b and leave a note that says it was done.",
        [call("add", name="b", by=2), call("write_note", text="b is two")], level=1,
    ),
    problem(
        "three", "Add 1 to counter a, note it, then add 4 to counter b.",
        [call("add", name="a", by=1), call("write_note", text="a is one"), call("add", name="b", by=4)], level=1,
    ),
    problem(
        "turns", ("Add 5 to counter a.", "Now note that it is five."), [call("add", name="a", by=5)],
        [call("write_note", text="five")], level=2, withheld=(frozenset({"write_note"}), frozenset()),
    ),
]  # fmt: skip

SPECIALISTS = {"counting": ("read_counter", "add", "reset_counter"), "writing": ("write_note", "read_notes")}


def start(problem: ToolProblem) -> Desk:
    return Desk()


def tiny(**changes: Any) -> FunctionDomain:
    settings = {
        "state": start, "policy": "Never reset a counter.", "specialists": SPECIALISTS,
        "user_tools": ("write_note", "read_notes"), "name": "tiny",
    }  # fmt: skip
    tools, problems = changes.pop("tools", TOOLS), changes.pop("problems", PROBLEMS)
    return FunctionDomain(tools, problems, changes.pop("grade", grade), **{**settings, **changes})
