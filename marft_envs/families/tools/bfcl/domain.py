"""The multi-turn tasks behind the tools' contract: problems, worlds, grades and the gold as an oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError, DataError, check_known
from marft_envs.families.tools.bfcl import grading
from marft_envs.families.tools.bfcl.data import CATEGORIES, SKIPPED, BFCLTask, Suite, load, read
from marft_envs.families.tools.bfcl.world import BfclWorld
from marft_envs.families.tools.types import Shared, StateGrade, Tool, ToolProblem, World, own_world, secret_of
from marft_envs.problems.sets import ProblemSet, spread

_TABLE = tables.read(__package__, "bfcl")
ROLES: Mapping[str, str] = _TABLE["roles"]
"""Class -> the specialist that holds its tools."""
POLICY: str = _TABLE["policy"]
SPLITS = ("train", "test", "all")
TEST_EVERY = 5
"""Scenario n is held out where n % 5 is 0, in all four categories: they vary the same scenarios."""


class BfclDomain(Shared):
    """Eight programming interfaces with 128 tools, and up to 800 tasks of one to eight user turns.

    Args:
        path: Folder with ``multi_turn_<category>.jsonl`` and ``tools.json``; None: the data of the package.
        package: Where ``bfcl_eval`` is, if it is not installed; see ``data.load``.
        categories: Some of ``base``, ``miss_func``, ``miss_param``, ``long_context``; None: all that are there.

    Raises:
        MissingPackageError: The package is not there; holds the pip command.
        DataError: The files are not there, or malformed.
        ConfigError: Unknown categories.
    """

    name = "bfcl"
    policy = POLICY
    user_tools: frozenset[str] = frozenset()

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        package: str | Path | None = None,
        categories: Iterable[str] | None = None,
    ) -> None:
        self._given = (path, package)
        self._backends = load(package)
        folder = self._backends.root / "data" if path is None else Path(path).expanduser()
        self._suite = read(folder, path is None)
        self.categories = tuple(self._suite.tasks) if categories is None else tuple(categories)
        for category in self.categories:
            kind = ConfigError if category not in CATEGORIES else DataError
            check_known([category], self._suite.tasks, f"{folder} has no tasks of the category '{{}}'.", kind)
        self.tools: Mapping[str, Tool] = self._suite.tools
        self.specialists: Mapping[str, frozenset[str]] = {
            ROLES[name]: frozenset(tool for tool, owner in self._suite.owner.items() if owner == name)
            for name in dict.fromkeys(self._suite.owner.values())
        }

    def __reduce__(self) -> tuple[Any, ...]:
        path, package = self._given  # where the tasks are, not all of them
        return partial(BfclDomain, path, package=package, categories=self.categories), ()

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns tasks, without the defective ones; a task's level is its number of user turns with gold calls.

        Args:
            split: ``train``, ``test`` (every fifth scenario) or ``all``. The data have no split; this one is ours.
            levels: Only these levels.
            limit: At most so many, evenly spaced.

        Raises:
            DataError: Unknown split, or nothing left.
        """
        check_known([split], SPLITS, "bfcl has no split '{}'.", DataError)
        eligible = [
            problem
            for problem in problems(self._suite, self.categories)
            if problem.secret.id not in SKIPPED
            and split in ("all", "test" if problem.secret.number % TEST_EVERY == 0 else "train")
            and (levels is None or problem.level in levels)
        ]
        return ProblemSet(spread(eligible, limit), f"bfcl ({split})")

    def defective(self) -> tuple[ToolProblem, ...]:
        """Returns the tasks that ``problems`` leaves out; ``SKIPPED`` has the reasons."""
        return tuple(p for p in problems(self._suite, self.categories) if p.secret.id in SKIPPED)

    def open(self, problem: ToolProblem) -> BfclWorld:
        """Returns the back ends in the task's initial state."""
        return BfclWorld(self._backends, secret_of(self, problem, BFCLTask))

    def begin_turn(self, problem: ToolProblem, world: World, turn: int) -> None:
        """Ends the user turns before ``turn``, with a verdict on each, and starts this one.

        Raises:
            ConfigError: If the turn does not exist, or is over.
        """
        live = own_world(self, world, BfclWorld)
        gold = grading.replay(self._backends, secret_of(self, problem, BFCLTask))
        if not live.turn <= turn < len(gold.turns):
            raise ConfigError(f"User turn {turn} cannot begin after {live.turn}; the task has {len(gold.turns)}.")
        while live.turn < turn:
            live.verdicts.append(grading.judge(gold, live))
            live.turn, live.called = live.turn + 1, False

    def grade(self, problem: ToolProblem, world: World) -> StateGrade:
        """Judges all user turns so far, the one under way as if it ended now.

        Completion is the verdict of upstream's checker on the calls that reached a back end. Progress is the mean, over
        user turns by whose end the gold has changed the visible state, of the share of its changes that are made, less
        wrong ones; at most 0.9 without completion. It is 0 where the gold changes nothing and the task is not complete.
        """
        gold = grading.replay(self._backends, secret_of(self, problem, BFCLTask))
        return grading.grade(gold, own_world(self, world, BfclWorld))

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns the published ground truth."""
        return [list(turn) for turn in secret_of(self, problem, BFCLTask).gold]


@lru_cache(maxsize=16)  # hundreds of environments share one set
def problems(suite: Suite, categories: tuple[str, ...]) -> tuple[ToolProblem, ...]:
    """Returns all tasks of some categories, the defective ones included."""
    return tuple(_problem(suite, task) for category in categories for task in suite.tasks[category])


def _problem(suite: Suite, task: BFCLTask) -> ToolProblem:
    others = frozenset(suite.tools).difference(task.owner)  # minus a dict's keys it would be a plain set
    withheld = tuple(
        others.union(*(tools for turn, tools in task.missed.items() if now < turn)) for now in range(len(task.turns))
    )
    steps, level = sum(map(len, task.gold)), sum(bool(turn) for turn in task.gold)
    return ToolProblem(f"bfcl/{task.id}", task.turns, steps, level=level, withheld=withheld, secret=task)
