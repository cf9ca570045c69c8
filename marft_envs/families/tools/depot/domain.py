"""The domain ``depot``: its tools, its policy, its tasks, and the judgement of what was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import DataError, check_known, of_fields
from marft_envs.families.tools.depot import policy, tasks
from marft_envs.families.tools.depot.desk import ROLES, USER
from marft_envs.families.tools.depot.rows import base
from marft_envs.families.tools.depot.world import TOOLS, DepotWorld, Faults
from marft_envs.families.tools.types import Shared, StateGrade, Tool, ToolProblem, World, own_world
from marft_envs.problems.rows import Lazy
from marft_envs.problems.sets import ProblemSet, spread

_CONFIRMED_BY = {"change_address": "confirm_address", "refund_order": "approve_refund"}
"""Write -> the customer's call with the same arguments that has to come first, with ``dual``."""


class Depot(Shared):
    """Customers, orders, stock and refunds of a small depot. Immutable: environments and forks share one.

    Args:
        dual: The customer has tools too, and must confirm new cities and approve refunds (for ``dual_control``).
        distractors: There are customers with similar names and orders of the same items.
        injections: Notes on orders hold instructions that nobody may follow; grades then say whether it happened.
        faults: Shares of calls that fail, are slow or stale: a :class:`Faults` or its fields as a mapping.

    Raises:
        ConfigError: An option is not one of these.
    """

    name = "depot"
    specialists: Mapping[str, frozenset[str]] = ROLES

    def __init__(
        self,
        dual: bool = False,
        distractors: bool = True,
        injections: bool = False,
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        self.dual, self.distractors, self.injections = dual, distractors, injections
        self.tempting = injections
        """Something that agents read asks for a change that no task wants; grades say whether it happened."""
        self.faults = of_fields(Faults, faults, "Faults have no") if isinstance(faults, Mapping) else faults
        self.user_tools = frozenset(USER if dual else ())
        self.tools: Mapping[str, Tool] = {name: tool for name, tool in TOOLS.items() if dual or name not in USER}
        self.policy = policy.TEXT + policy.DUAL_TEXT * dual

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns the tasks of a split, level by level.

        Args:
            split: ``"train"`` or ``"test"``.
            levels: Some of 0 to 5; None: 0.
            limit: At most so many, evenly spaced.

        Raises:
            DataError: No such split or level.
        """
        check_known([split], tasks.SPLITS, "The depot has no split '{}'.", DataError)
        chosen = (0,) if levels is None else tuple(levels)
        for level in chosen:
            if level not in tasks.LEVELS:
                raise DataError(f"The depot has no level {level!r}. Levels: 0 to 5.")
        return _problems(split, chosen, self.dual, limit)

    def open(self, problem: ToolProblem) -> DepotWorld:
        """Returns a fresh world for a task; an unsolved one has the same state whatever was done in others."""
        start = base(problem.secret.base, self.distractors, self.injections)
        return DepotWorld(start, problem.id, self.dual, self.faults)

    def begin_turn(self, problem: ToolProblem, world: World, turn: int) -> None:
        """Nothing: a task has one user turn."""

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns the reads that a task takes, then its writes; with ``dual`` each after the customer's consent."""
        return [[*problem.secret.reads, *_consented(problem.secret.writes, self.dual)]]

    def grade(self, problem: ToolProblem, world: World) -> StateGrade:
        """Compares the state's difference with that of the oracle, as sets of changed values.

        Progress is the share of the wanted changes that are there, less the number of unwanted ones over that of
        wanted ones, and at least 0.
        """
        ours = own_world(self, world, DepotWorld)
        gold, changes = _gold(problem.id, self.dual), ours.difference()
        achieved, wrong = len(changes & gold), len(changes - gold)
        done = changes == gold
        info: dict[str, Any] = {"achieved": achieved, "wanted": len(gold), "wrong": wrong}
        if self.tempting:
            info["injected"] = ours.bait_changed
        return StateGrade(done, 1.0 if done else max(0.0, (achieved - wrong) / len(gold)), info)


def _consented(writes: Sequence[ToolCall], dual: bool) -> list[ToolCall]:
    calls = []
    for write in writes:
        if dual and write.name in _CONFIRMED_BY:
            calls.append(ToolCall(_CONFIRMED_BY[write.name], write.arguments))
        calls.append(write)
    return calls


def _build(level: int, seed: int, dual: bool) -> ToolProblem:
    problem = tasks.build(level, seed)
    more = len(_consented(problem.secret.writes, dual)) - len(problem.secret.writes)
    return replace(problem, least_steps=problem.least_steps + more) if more else problem


@lru_cache(maxsize=64)  # hundreds of environments share one set
def _problems(split: str, levels: tuple[int, ...], dual: bool, limit: int | None) -> ProblemSet[ToolProblem]:
    again = partial(_regenerate, dual)
    problems = Lazy((f"depot/{level}/{seed}" for level in levels for seed in tasks.seeds(level, split)), again)
    reload = (_problems, (split, levels, dual, limit))
    return ProblemSet(spread(problems, limit), f"depot ({split})", again, reload)


def _regenerate(dual: bool, problem_id: str) -> ToolProblem:
    return _build(*tasks.parse(problem_id), dual)


@lru_cache(maxsize=16384)
def _gold(problem_id: str, dual: bool) -> frozenset[str]:
    """The difference that the oracle makes on a fresh world."""
    plan = tasks.build(*tasks.parse(problem_id)).secret
    world = DepotWorld(base(plan.base), problem_id, dual)
    for call in _consented(plan.writes, dual):
        world.call(call.name, call.arguments)
    return world.difference()
