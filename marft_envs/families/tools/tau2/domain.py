"""τ²-bench behind the tools' contract: problems, worlds, grades and the gold actions as an oracle."""

from __future__ import annotations

import contextlib
import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from marft_envs import tables
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import DataError
from marft_envs.families.tools.speech import BRIEF, TELL, is_said
from marft_envs.families.tools.store import as_parts, differences
from marft_envs.families.tools.tau2.banking import Search
from marft_envs.families.tools.tau2.banking import load as bank
from marft_envs.families.tools.tau2.data import Upstream, load
from marft_envs.families.tools.tau2.world import Key, Tau2World
from marft_envs.families.tools.types import Shared, StateGrade, Tool, ToolError, ToolProblem, World, own_world
from marft_envs.problems.sets import ProblemSet, of_split


class GoldReplay(NamedTuple):
    """What a replay of the gold actions leads to."""

    changed: Mapping[Key, str]
    parts: Counter[str]
    """The changes in their smallest parts."""
    calls: tuple[ToolCall, ...]
    """The oracle's: gold actions that are not refused, or all of them where upstream wants every one called."""


class Tau2Domain(Shared):
    """One domain of τ²-bench.

    Args:
        domain: ``retail``, ``airline``, ``telecom`` or ``banking_knowledge``.
        package: Where ``tau2`` is, if it is not installed; for banking, where ``inspect_evals`` is.
        dual: A user-agent reads the user's scenario and has the user's tools. Without one, the scenario is everybody's,
            and the policy is upstream's for an agent that has all tools itself, where there is one.
        search: For banking: what the agent's search of documents asks; see ``banking.load``.

    Raises:
        MissingPackageError: The package is not there; holds the pip command.
    """

    def __init__(
        self, domain: str, *, package: str | Path | None = None, dual: bool = False, search: Search | None = None
    ) -> None:
        self._given, self._dual = partial(Tau2Domain, domain, package=package, dual=dual, search=search), dual
        where = None if package is None else str(package)
        self._upstream = upstream = bank(where, search) if domain == "banking_knowledge" else load(domain, where)
        self.name = f"tau2/{domain}"
        self.tools: Mapping[str, Tool] = upstream.tools
        self.user_tools = upstream.users
        self.policy: str = upstream.environment.policy if dual else upstream.solo_policy
        roles = tables.read(__package__, "tau2")["specialists"][domain]
        held = {role: frozenset(names) & set(self.tools) for role, names in roles.items()}
        self.specialists: Mapping[str, frozenset[str]] = held
        self.splits = tuple(upstream.splits)
        """What is published."""
        self.skipped: Mapping[str, str] = {task: why for task, one in upstream.tasks.items() if (why := _unfit(one))}
        """Tasks that are left out, with the reason."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self._given, ()

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns the tasks of a split; a task's level is the number of its gold actions that write.

        Args:
            split: As upstream publishes them: ``train``, ``test``, ``base`` (both), of telecom also ``small`` and
                ``full``.
            levels: Only these levels.
            limit: At most so many, evenly spaced.

        Raises:
            DataError: No such split, or nothing left.
        """
        whole = problems(self._upstream, self.name, self._dual).items()
        parts = {part: [one for name, one in whole if name in ids] for part, ids in self._upstream.splits.items()}
        return of_split(self.name, parts, split, levels, limit)

    def open(self, problem: ToolProblem) -> Tau2World:
        """Returns the environment in the task's initial state."""
        return Tau2World(self._upstream, self._task(problem).id)

    def begin_turn(self, problem: ToolProblem, world: World, turn: int) -> None:
        """There is one user turn; nothing happens."""

    def grade(self, problem: ToolProblem, world: World, messages: Sequence[str] = ()) -> StateGrade:
        """Judges state, calls and words as upstream's evaluator does, by what the task's reward is based on.

        Progress is the share of the gold's changes that were made and of the texts that messages to the user contain,
        less wrong changes; it is 1 exactly if the task is complete.
        """
        task, live = self._task(problem), own_world(self, world, Tau2World)
        gold, changed = replay(self._upstream, task.id), live.changed()
        basis = _basis(task)
        texts = (task.evaluation_criteria.communicate_info or []) if "COMMUNICATE" in basis else []
        said = sum(is_said(text, messages) for text in texts)
        calls = [self._upstream.made(*call) for call in live.calls]
        checks = {
            "DB": changed == gold.changed,
            "ENV_ASSERTION": "ENV_ASSERTION" not in basis or _asserted(task, live),
            "ACTION": all(any(self._upstream.same(action, call) for call in calls) for action in _actions(task)),
            "COMMUNICATE": said == len(texts),
        }
        completion = all(checks[kind] for kind in basis)
        done, total = _parts(live, changed), gold.parts.total() + len(texts)
        right, wrong = (gold.parts & done).total(), (done - gold.parts).total()
        progress = 1.0 if completion else max(min(right + said - wrong, total - 1), 0) / max(total, 1)
        failed = sorted(kind for kind in basis if not checks[kind])
        return StateGrade(completion, progress, {"right": right, "wrong": wrong, "failed": failed})

    def says(self, problem: ToolProblem) -> str:
        """Returns what the oracle tells the user."""
        return "; ".join(self._task(problem).evaluation_criteria.communicate_info or ())

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns the gold actions, the user's among them, in upstream's order."""
        return [list(replay(self._upstream, self._task(problem).id).calls)]

    def _task(self, problem: ToolProblem) -> Any:
        """Upstream's task; raises a DataError for a problem of another domain."""
        if (task := self._upstream.tasks.get(problem.id.removeprefix(f"{self.name}/"))) is None:
            raise DataError(f"'{problem.id}' is not a problem of {self.name}. Take problems from its problems().")
        return task


@lru_cache(maxsize=16)  # hundreds of environments share one set
def problems(upstream: Upstream, domain: str, dual: bool) -> dict[str, ToolProblem]:
    """Returns id -> problem, of all tasks that can be graded without a model."""
    return {name: _problem(upstream, domain, task, dual) for name, task in upstream.tasks.items() if not _unfit(task)}


def _problem(upstream: Upstream, domain: str, task: Any, dual: bool) -> ToolProblem:
    actions, brief = _actions(task), str(task.user_scenario)
    level = sum(not upstream.tools[action.name].read_only for action in actions)
    if not dual:
        brief = BRIEF + brief + (TELL if task.evaluation_criteria.communicate_info else "")
    withheld = (upstream.users - upstream.held.get(task.id, upstream.users),)
    return ToolProblem(f"{domain}/{task.id}", (brief,), len(actions), level, withheld)


def _unfit(task: Any) -> str:
    """Why a task is left out; "" for one that is not."""
    if "NL_ASSERTION" in _basis(task):
        return "its reward needs a model as judge (NL_ASSERTION)"
    begun = getattr(task.initial_state, "message_history", None)
    return "it begins in the middle of a conversation" if begun else ""


@lru_cache(maxsize=4096)
def replay(upstream: Upstream, task_id: str) -> GoldReplay:
    """Returns what the gold actions lead to; it goes on after one that is refused, as upstream does."""
    world, task, worked = Tau2World(upstream, task_id), upstream.tasks[task_id], list[ToolCall]()
    for action in _actions(task):
        with contextlib.suppress(ToolError):
            world.call(action.name, action.arguments)
            worked.append(world.calls[-1])
    changed, calls = world.changed(), tuple(world.calls if "ACTION" in _basis(task) else worked)
    return GoldReplay(changed, _parts(world, changed), calls)


def _basis(task: Any) -> set[str]:
    """What the task's reward is the product of."""
    return {kind.value for kind in task.evaluation_criteria.reward_basis}


def _actions(task: Any) -> list[Any]:
    return list(task.evaluation_criteria.actions or ())


def _asserted(task: Any, world: Tau2World) -> bool:
    """Whether upstream's assertions hold; they run on a copy. One that raises does not hold."""
    run = partial(copy.deepcopy(world).environment.run_env_assertion, raise_assertion_error=False)
    try:
        return all(map(run, task.evaluation_criteria.env_assertions or ()))
    except ValueError:
        return False


def _parts(world: Tau2World, changed: Mapping[Key, str]) -> Counter[str]:
    """The changes of a state in their smallest parts."""
    pairs = (("/".join(key), json.loads(world.before(key)), json.loads(text)) for key, text in changed.items())
    return as_parts([change for pair in pairs for change in differences(*pair)])
