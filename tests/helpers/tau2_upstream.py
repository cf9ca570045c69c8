"""Upstream's own evaluator of τ²-bench, to compare verdicts with.

The evaluator imports clients of models that it needs for nothing that is compared here; they are stood in for. Databases
are unpickled instead of read again for every environment.
"""

from __future__ import annotations

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
from marft_envs.families.tools.tau2.data import PACKAGE, Table, kits
from marft_envs.families.tools.types import ToolProblem

VARIABLE = "MARFT_TEST_TAU2"
ABSENT = (
    f"the tau2 package is not here: {PACKAGE.install}, or install it with --target FOLDER and set {VARIABLE}=FOLDER"
)
NAMES = ("retail", "airline", "telecom")
REACHED = ("", "tool_error", "too_large")
"""Errors of calls that reached the world."""


def place() -> tuple[bool, str | None]:
    """Returns whether the package is there, and the folder to give as ``package=`` (None: it is installed)."""
    named = os.environ.get(VARIABLE)
    return (True, named) if named else (importlib.util.find_spec("tau2") is not None, None)


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
    databases = dict(zip(("db", "user_db"), map(pickle.loads, _databases(domain)), strict=False))
    return importlib.import_module(f"tau2.domains.{domain}.environment").get_environment(**databases)


def messages(domain: Tau2Domain, log: Sequence[CallEntry], told: Sequence[str]) -> list[Any]:
    """What a team did, as upstream's messages: calls that reached the world with their results, then its words."""
    kinds: Any = importlib.import_module("tau2.data_model.message")
    out = []
    for number, result in enumerate(entry.result for entry in log if entry.result.error in REACHED):
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
