"""Verdicts like upstream's checker, and progress.

After every user turn with gold calls the state must equal that of a replay of the gold, and the answers so far must
hold every answer that the gold got in this turn. Progress looks at the state only, so that reads have no reward.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from marft_envs.families.tools.bfcl.data import READS, Backends, BFCLTask
from marft_envs.families.tools.bfcl.world import BfclWorld
from marft_envs.families.tools.types import StateGrade, ToolError

INCOMPLETE = 0.9
"""Most that progress can be without completion: every state was right, and an answer was not fetched."""

DEEPEST, MOST = 64, 50_000
"""Folders within folders, and leaves, that are looked at; a folder may have been copied into itself."""
_GONE = "<gone>"
Leaves = dict[str, Any]
"""Path -> leaf of the visible state."""
State = Mapping[str, Mapping[str, Any]]
"""Class -> attribute -> value."""


@dataclass(frozen=True)
class TurnGold:
    """What a replay of the gold has after one user turn."""

    called: bool
    state: State = field(repr=False)
    answers: Counter[str]
    """The answers of this turn's calls, as upstream writes them."""
    changes: Leaves
    """The difference of the visible state from the initial one."""
    passing: Mapping[str, list[Any]]
    """Differences that the gold itself makes on the way, in this turn, and that are gone at its end."""


@dataclass(frozen=True)
class Verdict:
    """What the grader found at the end of a user turn."""

    passed: bool
    reason: str
    """"" | ``no_call`` | ``state`` | ``answer``."""
    progress: float | None
    """Share of the changes that are there, less the wrong ones; None where the gold has changed nothing."""


@dataclass(frozen=True)
class GoldReplay:
    """A replay of all gold calls of a task."""

    start: Leaves
    turns: tuple[TurnGold, ...]


@lru_cache(maxsize=512)
def replay(backends: Backends, task: BFCLTask) -> GoldReplay:
    """Returns what the gold calls lead to; computed once per task, and goes on after a call that fails."""
    live = BfclWorld(backends, task)
    state, changes = _copied(live), Leaves()
    start = _leaves(state)
    turns = []
    for calls in task.gold:
        before, seen = len(live.responses), []
        for call in calls:
            with contextlib.suppress(ToolError):
                live.call(call.name, call.arguments)
            if call.name not in READS:
                state = _copied(live)
                changes = _changes(start, _leaves(state))
                seen.append(changes)
        passing: dict[str, list[Any]] = {}
        for path, value in (entry for earlier in seen for entry in earlier.items()):
            if path not in changes or not _equal(changes[path], value):
                passing.setdefault(path, []).append(value)
        turns.append(TurnGold(bool(calls), state, Counter(live.responses[before:]), changes, passing))
    return GoldReplay(start, tuple(turns))


def judge(gold: GoldReplay, world: BfclWorld) -> Verdict:
    """Returns the verdict on the user turn that is under way, as if it ended now."""
    wanted = gold.turns[world.turn]
    progress = _progress(gold, wanted, world) if wanted.changes else None
    if not wanted.called:
        return Verdict(True, "", progress)
    if not world.called:
        return Verdict(False, "no_call", progress)
    if not _same(wanted.state, world):
        return Verdict(False, "state", progress)
    if wanted.answers - Counter(world.responses):
        return Verdict(False, "answer", progress)
    return Verdict(True, "", progress)


def grade(gold: GoldReplay, world: BfclWorld) -> StateGrade:
    """Returns the grade of an episode as it stands; user turns that have not begun are not passed."""
    seen = [*world.verdicts, judge(gold, world)]
    later = gold.turns[len(seen) :]
    completion = all(verdict.passed for verdict in seen) and not any(turn.called for turn in later)
    changing = sum(bool(turn.changes) for turn in gold.turns)
    progress = sum(verdict.progress or 0.0 for verdict in seen) / max(changing, 1)
    failed = next((i for i, verdict in enumerate(seen) if not verdict.passed), None)
    info: dict[str, Any] = {"turns": len(gold.turns), "turns_begun": len(seen), "first_failed_turn": failed}
    info["reason"] = "" if failed is None else seen[failed].reason
    return StateGrade(completion, 1.0 if completion else min(progress, INCOMPLETE), info)


def _progress(gold: GoldReplay, wanted: TurnGold, world: BfclWorld) -> float:
    """Share of the gold's changes that are made, less changes that the gold never makes.

    A change that the gold makes on the way and undoes again counts half, in place of one that is still missing: the
    first half of copying a file and renaming the copy is better than nothing.
    """
    right = passing = wrong = 0
    for path, value in _changes(gold.start, _leaves(_visible(world))).items():
        if path in wanted.changes and _equal(wanted.changes[path], value):
            right += 1
        elif any(_equal(earlier, value) for earlier in wanted.passing.get(path, ())):
            passing += 1
        elif path not in wanted.changes:
            wrong += 1
    missing = len(wanted.changes) - right
    return max(right + min(passing, missing) / 2 - wrong, 0) / len(wanted.changes)


# -- states ----------------------------------------------------------------------------------------------------------


def _visible(world: BfclWorld) -> State:
    """Class -> attributes that are not private; upstream's checker compares these."""
    return {
        owner: {name: value for name, value in vars(instance).items() if not name.startswith("_")}
        for owner, instance in world.instances.items()
    }


def _copied(world: BfclWorld) -> State:
    return pickle.loads(pickle.dumps(_visible(world), pickle.HIGHEST_PROTOCOL))


def _same(state: State, world: BfclWorld) -> bool:
    live = _visible(world)
    return all(_equal(live[owner], attributes) for owner, attributes in state.items())


def _equal(one: Any, other: Any) -> bool:
    """Python's own comparison, as upstream's; a folder that holds itself equals nothing."""
    try:
        return bool(one == other)
    except RecursionError:
        return False


def _leaves(state: State) -> Leaves:
    """The state in its smallest parts; that a container or a file is there is a part of its own.

    Files and folders are read by their attributes.
    """
    leaves: Leaves = {}
    waiting: list[tuple[str, Any]] = [("", state)]
    while waiting and len(leaves) < MOST:
        path, value = waiting.pop()
        inner: Any = getattr(value, "contents", value)
        if hasattr(value, "content"):
            inner = {"content": value.content}
        if isinstance(inner, Mapping):
            entries = list(inner.items())
        elif isinstance(inner, (list, tuple)):
            entries = list(enumerate(inner))
        else:
            leaves[path] = inner
            continue
        leaves[f"{path}/"] = type(value).__name__
        if path.count("/") < DEEPEST:
            waiting.extend((f"{path}/{key}", entry) for key, entry in entries)
    return leaves


def _changes(before: Leaves, after: Leaves) -> Leaves:
    changed = {path: value for path, value in after.items() if path not in before or not _equal(before[path], value)}
    return changed | {path: _GONE for path in before.keys() - after.keys()}
