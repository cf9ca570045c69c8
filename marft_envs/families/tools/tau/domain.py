"""τ-bench retail behind the tools' contract: problems, worlds, grades and an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from marft_envs import tables
from marft_envs.errors import DataError, check_known
from marft_envs.families.tools.speech import BRIEF, TELL, is_said
from marft_envs.families.tools.store import Change, as_parts, as_set, canonical
from marft_envs.families.tools.tau.data import Retail, RetailTask, load
from marft_envs.families.tools.tau.world import READS, WRITES, TauWorld
from marft_envs.families.tools.types import (
    Shared,
    StateGrade,
    Tool,
    ToolCall,
    ToolError,
    ToolProblem,
    World,
    own_world,
    secret_of,
)
from marft_envs.problems.sets import ProblemSet, spread

_TABLE = tables.read(__package__, "tau")
SPECIALISTS: Mapping[str, frozenset[str]] = {role: frozenset(tools) for role, tools in _TABLE["specialists"].items()}
USER_TOOLS: frozenset[str] = frozenset(_TABLE["user"])
SWAPS = ("exchange_delivered_order_items", "modify_pending_order_items")


@dataclass(frozen=True)
class Gold(Shared):
    """What a problem keeps to itself."""

    row: RetailTask
    changes: tuple[Change, ...]
    """The difference that the database must have at the end."""
    refused: int
    """Gold actions that a tool refuses; the replay goes on."""
    calls: tuple[ToolCall, ...]
    """Oracle: who the customer is, what must be known, and the gold actions that are not refused."""

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The changes as a set."""
        return as_set(self.changes)

    @cached_property
    def parts(self) -> Counter[str]:
        """The changes in their smallest parts."""
        return as_parts(self.changes)


class TauDomain(Shared):
    """Retail: 16 tools, 500 customers, 1,000 orders.

    Args:
        path: Folder of the published files, or a checkout of tau-bench (``marft_envs/families/tools/tau/data.py``).

    Raises:
        DataError: The files are not there, or malformed.
    """

    name = "tau"
    specialists = SPECIALISTS
    user_tools = USER_TOOLS

    def __init__(self, path: str | Path) -> None:
        self._retail = load(path)
        self.tools: Mapping[str, Tool] = self._retail.tools
        self.splits = tuple(self._retail.rows)
        """What is published in the folder."""
        self.policy = self._retail.policy

    def __reduce__(self) -> tuple[Any, ...]:
        return TauDomain, (self._retail.path,)  # where the files are, not the database

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns the tasks of a split; a task's level is the number of gold actions that change something.

        Args:
            split: The name of a published file: ``train`` and ``dev``, with a checkout also ``test``.
            levels: Only these levels.
            limit: At most so many, evenly spaced.

        Raises:
            DataError: No such split, or nothing left.
        """
        lacks = f"{self._retail.path} has no retail tasks of the split '{{}}'."
        check_known([split], self._retail.rows, lacks, DataError)
        eligible = problems(self._retail, split)
        if levels is not None:
            eligible = tuple(problem for problem in eligible if problem.level in levels)
        if not eligible:
            there = sorted({problem.level or 0 for problem in problems(self._retail, split)})
            raise DataError(
                f"tau ({split}) has no problem of levels {list(levels or ())}. Levels there: {there}. For all of them "
                "leave levels out (on the command line: levels=null)."
            )
        return ProblemSet(spread(eligible, limit), f"tau ({split})")

    def open(self, problem: ToolProblem) -> TauWorld:
        """Returns the published database; nothing is copied."""
        return TauWorld(self._retail.index)

    def begin_turn(self, problem: ToolProblem, world: World, turn: int) -> None:
        """There is one user turn; nothing happens."""

    def grade(self, problem: ToolProblem, world: World, messages: Sequence[str] = ()) -> StateGrade:
        """Judges the difference of the database against the gold one, as sets, and the messages to the customer.

        The texts in ``outputs`` must each stand in a message to the customer, as upstream looks for them: case and
        commas apart. Progress is the share of gold changes that were made (a list that grew counts entry by entry) and
        of these texts, less wrong changes; it is 1 exactly if the task is complete. For a task whose gold changes
        nothing and says nothing, it is 1 for a database that is left alone and 0 for any other.
        """
        gold, changes = secret_of(self, problem, Gold), own_world(self, world, TauWorld).store.difference()
        outputs = gold.row.outputs
        outputs_said = sum(is_said(output, messages) for output in outputs)
        completion = as_set(changes) == gold.wanted and outputs_said == len(outputs)
        wanted, done = gold.parts, as_parts(changes)
        right, wrong = (wanted & done).total(), (done - wanted).total()
        total = max(wanted.total() + len(outputs), 1)
        progress = 1.0 if completion else max(min(right + outputs_said - wrong, total - 1), 0) / total
        info = {"right": right, "wrong": wrong, "missing": (wanted - done).total()}
        return StateGrade(completion, progress, info | ({"untold": len(outputs) - outputs_said} if outputs else {}))

    def says(self, problem: ToolProblem) -> str:
        """Returns what the oracle tells the customer: the wanted texts."""
        return "; ".join(secret_of(self, problem, Gold).row.outputs)

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns calls that complete the task and that the policy allows: look-ups before what they serve."""
        return [list(secret_of(self, problem, Gold).calls)]

    def replay(self, problem: ToolProblem) -> tuple[TauWorld, int]:
        """Returns the world after all gold actions, and how many of them a tool refused."""
        return replay(self._retail, secret_of(self, problem, Gold).row)


def replay(retail: Retail, row: RetailTask) -> tuple[TauWorld, int]:
    """Returns the world after a row's gold actions, and how many were refused; it goes on after a refusal."""
    world, refused = TauWorld(retail.index), 0
    for action in row.actions:
        try:
            world.call(action.name, action.arguments)
        except ToolError:
            refused += 1
    return world, refused


@lru_cache(maxsize=16)  # hundreds of environments share one set
def problems(retail: Retail, split: str) -> tuple[ToolProblem, ...]:
    """Returns all problems of a split."""
    return tuple(_problem(retail, row) for row in retail.rows[split])


def _problem(retail: Retail, row: RetailTask) -> ToolProblem:
    world, refused = replay(retail, row)
    changes = tuple(world.store.difference()) if row.changes is None else row.changes
    calls = tuple(_oracle(retail, row))
    level = sum(call.name in WRITES for call in calls)
    gold = Gold(row, changes, refused, calls)
    brief = BRIEF + row.instruction + (TELL if row.outputs else "")
    return ToolProblem(f"tau/{row.id}", (brief,), len(calls), level=level, secret=gold)


def _oracle(retail: Retail, row: RetailTask) -> Iterator[ToolCall]:
    """Authenticates, looks up each order once before the first action on it and each product before a swap, acts.

    Gold actions that a tool refuses are left out, and look-ups of the gold that were made already.
    """
    world, seen = TauWorld(retail.index), set()
    for needed in ([_authenticate(retail, row)], *([*_needed(retail, action), action] for action in row.actions)):
        for call in needed:
            key = canonical([call.name, dict(call.arguments)])
            if call.name in READS and key in seen:
                continue
            seen.add(key)
            try:
                world.call(call.name, call.arguments)
            except ToolError:
                continue
            yield call


def _authenticate(retail: Retail, row: RetailTask) -> ToolCall:
    """By email if the customer's brief has it, else by name and zip code, as the policy says."""
    user = retail.index.tables["users"][row.user_id]
    if user["email"] in row.instruction:
        return ToolCall("find_user_id_by_email", {"email": user["email"]})
    return ToolCall("find_user_id_by_name_zip", {**user["name"], "zip": user["address"]["zip"]})


def _needed(retail: Retail, action: ToolCall) -> Iterator[ToolCall]:
    order: dict[str, Any] | None = retail.index.tables["orders"].get(str(action.arguments.get("order_id")))
    if order is None:
        return
    yield ToolCall("get_order_details", {"order_id": order["order_id"]})
    if action.name in SWAPS:
        for item in order["items"]:
            if item["item_id"] in action.arguments["item_ids"]:
                yield ToolCall("get_product_details", {"product_id": item["product_id"]})
