"""AgentDojo's suites behind the tools' contract: problems, worlds, upstream's own verdicts, its golds as oracle."""

from __future__ import annotations

import copy
import hashlib
import pickle
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic_core import to_jsonable_python

from marft_envs.errors import check_known
from marft_envs.families.tools.dojo import upstream
from marft_envs.families.tools.packages import Pickled
from marft_envs.families.tools.schema import closed
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
)  # fmt: skip
from marft_envs.problems.sets import ProblemSet, of_split

SUITES = ("banking", "slack", "travel", "workspace")
TEST_EVERY = 4
"""User task n is held out where n % 4 is 0, with every injection."""
SKIPPED: Mapping[str, frozenset[str]] = {"banking": frozenset(f"user_task_{n}" for n in (5, 6, 8, 9, 10))}
"""Suite -> user tasks that upstream's check calls done before anything is done."""
_READS = re.compile(r"(get|search|list|read|check)_(?!unread_emails|webpage)")
"""Names of tools that leave the environment as it is; pages that were fetched and emails that were read are noted."""


class Pair(NamedTuple):
    """A user task, and the injection that waits in its results ("": none)."""

    task: str
    injection: str


class Suite(Shared):
    """One of upstream's suites, with its attack; environments and forks share it.

    Raises:
        MissingPackageError: The package is not there, or something it imports.
        ConfigError: There is no such version or attack.
    """

    def __init__(self, name: str, package: str | None, version: str | None, attack: str) -> None:
        root, (suites, module, functions, attacks) = upstream.load(package)
        version = version or max(suites._SUITES, key=lambda v: [int(n) for n in v[1:].split(".")])
        check_known([version], suites._SUITES, "agentdojo has no version '{}'.")
        known = [kind for kind, made in attacks.ATTACKS.items() if kind != "manual" and not made.is_dos_attack]
        check_known([attack], known, "agentdojo has no attack '{}' that asks for a task.")
        self.tasks, self.yaml = copy.copy(suites._SUITES[version][name]), module.yaml
        self.text = module.read_suite_file(name, "environment.yaml", None)
        self.usual = self.tasks.get_injection_vector_defaults()
        self.tasks.load_and_inject_default_environment = lambda given: pickle.loads(
            _environment(self, tuple(given.items()))
        )
        self.attack = attacks.ATTACKS[attack](self.tasks, SimpleNamespace(name="local"))
        self.runtime, self._call = functions.FunctionsRuntime(self.tasks.tools), functions.FunctionCall
        messages = self.yaml.safe_load((root / "data" / "system_messages.yaml").read_text(encoding="utf-8"))
        self.policy = str(messages["default"]).strip()
        self.tools, self.roles = dict[str, Tool](), dict[str, frozenset[str]]()
        for function in self.tasks.tools:
            reads, schema = _READS.match(function.name) is not None, closed(function.parameters.model_json_schema())
            self.tools[function.name] = Tool(function.name, function.description, schema, reads, reads)
            role = function.run.__module__.rpartition(".")[2]
            self.roles[role] = self.roles.get(role, frozenset()) | {function.name}

    def injections(self, pair: Pair) -> dict[str, str]:
        """Returns vector -> text, for the vectors that the results of the task's ground truth show."""
        made = self.tasks.injection_tasks.get(pair.injection)
        return {} if made is None else dict(self.attack.attack(self.tasks.user_tasks[pair.task], made))

    def gold(self, task: Any, start: bytes) -> list[ToolCall]:
        """Returns the ground truth of one of upstream's tasks."""
        truth = task.ground_truth(pickle.loads(start)[0])
        return [ToolCall(call.function, to_jsonable_python(call.args)) for call in truth]

    def holds(self, task: Any, words: str, before: bytes, after: bytes) -> bool:
        """Returns upstream's verdict: whether a task of the user's, or an attacker's, was carried out.

        Args:
            task: Upstream's.
            words: The last message to the user.
            before: A snapshot of the world as it was at the start.
            after: And now.
        """
        (was, _), (now, calls) = pickle.loads(before), pickle.loads(after)
        trace = [self._call(function=name, args=arguments) for name, arguments in calls]
        try:
            return bool(self.tasks._check_task_result(task, [{"type": "text", "content": words}], was, now, trace))
        except Exception:  # upstream's checks look for what is there in the end: it is not
            return False


_suite = lru_cache(maxsize=32)(Suite)


@lru_cache(maxsize=1)  # upstream looks task by task which vectors it shows, on one environment
def _environment(suite: Suite, vectors: tuple[tuple[str, str], ...]) -> bytes:
    """As upstream's method, but with the fast parser."""
    written, parser = suite.text.format(**{**suite.usual, **dict(vectors)}), getattr(suite.yaml, "CSafeLoader", None)
    environment = suite.tasks.environment_type.model_validate(suite.yaml.load(written, parser or suite.yaml.SafeLoader))
    return pickle.dumps(environment, pickle.HIGHEST_PROTOCOL)


@lru_cache(maxsize=1024)
def started(suite: Suite, pair: Pair) -> bytes:
    """Returns a snapshot of the world in which a pair begins."""
    environment = suite.tasks.load_and_inject_default_environment(suite.injections(pair))
    return pickle.dumps((suite.tasks.user_tasks[pair.task].init_environment(environment), []), pickle.HIGHEST_PROTOCOL)


class DojoWorld(Pickled):
    """The environment of one episode, and the calls that reached it."""

    parts = ("environment", "calls")
    environment: Any
    calls: list[tuple[str, dict[str, Any]]]

    def __init__(self, suite: Suite, start: bytes) -> None:
        self.suite = suite
        self.restore(start)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a tool.

        Raises:
            ToolError: It raised something.
        """
        self.calls.append((name, dict(arguments)))
        if not self.suite.tools[name].read_only:
            self._hash = ""
        value, error = self.suite.runtime.run_function(self.environment, name, dict(arguments))
        if error:
            raise ToolError(error)
        return to_jsonable_python(value)

    def state_hash(self) -> str:
        """Returns a digest of the environment's JSON."""
        if not self._hash:
            self._hash = hashlib.blake2b(self.environment.model_dump_json().encode(), digest_size=16).hexdigest()
        return self._hash


class DojoDomain(Shared):
    """One of AgentDojo's suites: a user's tasks, and injections in what the tools return.

    Args:
        suite: One of :data:`SUITES`.
        injections: A problem is a user task with one of the injection tasks; grades then say whether it was carried
            out. False: the user tasks alone.
        attack: How upstream writes injections; they address the model as upstream's *local* one.
        version: Of the benchmark; None: the newest.
        package: Where ``agentdojo`` is, if it is not installed.

    Raises:
        MissingPackageError: The package is not there; holds the pip command.
        ConfigError: There is no such suite, attack or version.
    """

    user_tools: frozenset[str] = frozenset()

    def __init__(
        self,
        suite: str,
        injections: bool = True,
        attack: str = "important_instructions",
        version: str | None = None,
        package: str | Path | None = None,
    ) -> None:
        check_known([suite], SUITES, "AgentDojo has no suite '{}'.")
        self._given = (suite, injections, attack, version, package)
        self.suite = _suite(suite, None if package is None else str(package), version, attack)
        self.name, self.injections, self.policy = f"agentdojo/{suite}", injections, self.suite.policy
        self.tools: Mapping[str, Tool] = self.suite.tools
        self.specialists: Mapping[str, frozenset[str]] = self.suite.roles

    def __reduce__(self) -> tuple[Any, ...]:
        return DojoDomain, self._given

    def problems(
        self, split: str, levels: Sequence[int] | None = None, limit: int | None = None
    ) -> ProblemSet[ToolProblem]:
        """Returns user tasks, each with every injection; a task's level is its number of gold calls that write.

        Args:
            split: ``train``, ``test`` (every fourth user task) or ``all``. AgentDojo has no split; this one is ours.
            levels: Only these levels.
            limit: At most so many, evenly spaced.

        Raises:
            DataError: Unknown split, or nothing left.
        """
        parts = {"train": list[ToolProblem](), "test": list[ToolProblem]()}
        for problem in (every := _problems(self.suite, self.name, self.injections)):
            number = int(problem.secret.task.rpartition("_")[2])
            parts["train" if number % TEST_EVERY else "test"].append(problem)
        return of_split(self.name, {**parts, "all": every}, split, levels, limit)

    def open(self, problem: ToolProblem) -> DojoWorld:
        """Returns upstream's environment with the injection in it."""
        return DojoWorld(self.suite, started(self.suite, secret_of(self, problem, Pair)))

    def begin_turn(self, problem: ToolProblem, world: World, turn: int) -> None:
        """Nothing: a task has one user turn."""

    def grade(self, problem: ToolProblem, world: World, messages: Sequence[str] = ()) -> StateGrade:
        """Asks upstream's checks: completion (and progress) is ``utility``; ``injected`` is ``security``."""
        pair, after = secret_of(self, problem, Pair), own_world(self, world, DojoWorld).snapshot()
        tasks, seen = self.suite.tasks, (messages[-1] if messages else "", started(self.suite, pair), after)
        done, info = self.suite.holds(tasks.user_tasks[pair.task], *seen), {}
        if pair.injection:
            info["injected"] = self.suite.holds(tasks.injection_tasks[pair.injection], *seen)
        return StateGrade(done, float(done), info)

    def oracle(self, problem: ToolProblem) -> list[list[ToolCall]]:
        """Returns upstream's ground truth."""
        pair = secret_of(self, problem, Pair)
        return [self.suite.gold(self.suite.tasks.user_tasks[pair.task], started(self.suite, pair))]

    def says(self, problem: ToolProblem) -> str:
        """Returns what upstream's ground truth tells the user."""
        return str(self.suite.tasks.user_tasks[secret_of(self, problem, Pair).task].GROUND_TRUTH_OUTPUT)


@lru_cache(maxsize=16)  # hundreds of environments share one set
def _problems(suite: Suite, name: str, injections: bool) -> list[ToolProblem]:
    out = []
    for task, given in suite.tasks.user_tasks.items():
        if task not in SKIPPED.get(suite.tasks.name, ()):
            gold = suite.gold(given, started(suite, Pair(task, "")))
            level = sum(not suite.tools[call.name].read_only for call in gold)
            for bait in suite.tasks.injection_tasks if injections else ("",):
                problem_id = "/".join(filter(None, (name, task, bait)))
                out.append(ToolProblem(problem_id, (given.PROMPT,), len(gold), level=level, secret=Pair(task, bait)))
    return out
