"""Flex-POMDP environments for teams of language-model agents: Gymnasium for LLM teams.

``env = marft_envs.make("math-dual-v0")`` gives a PettingZoo AEC environment. No torch, no transformers.
"""

import importlib
import sys

from marft_envs.started import leave_current_folder

if sys.argv[:1] == ["-m"]:  # Python is looking for the module that it will start; nothing else is imported before
    leave_current_folder(__name__)

from typing import TYPE_CHECKING, Any

from marft_envs.core.dependency import (
    Chain,
    DependencyFunction,
    Independent,
    InvalidRouting,
    Layered,
    StaticDAG,
    View,
    as_dependency,
)
from marft_envs.core.env import FlexEnv
from marft_envs.core.judge import Rubric, judged
from marft_envs.core.rewards import CompositeReward
from marft_envs.core.routing import Orchestrator, Router, Scheduled, Spawn
from marft_envs.core.spaces import UnicodeText
from marft_envs.core.teams import Team
from marft_envs.core.tree import Tree
from marft_envs.core.types import AgentSpec, Episode, Outcome, Task, Turn, TurnRecord
from marft_envs.errors import ConfigError, DataError, DependencyError, MarftError, MissingExtraError, absent
from marft_envs.registration import EnvSpec, list_envs, make, make_vec, pprint_registry, register, registry, spec

if TYPE_CHECKING:
    from marft_envs.families.tools import ToolTask as ToolTask
    from marft_envs.testing.conformance import check_env as check_env

__version__ = "0.2.0"

__all__ = [
    "AgentSpec", "Chain", "CompositeReward", "ConfigError", "DataError", "DependencyError", "DependencyFunction",
    "EnvSpec", "Episode", "FlexEnv", "Independent", "InvalidRouting", "Layered", "MarftError", "MissingExtraError",
    "Orchestrator", "Outcome", "Router", "Rubric", "Scheduled", "Spawn", "StaticDAG", "Task", "Team", "ToolTask",
    "Tree", "Turn", "TurnRecord", "UnicodeText", "View", "as_dependency", "check_env", "judged", "list_envs", "make",
    "make_vec", "pprint_registry", "register", "registry", "spec",
]  # fmt: skip
_LAZY = {"ToolTask": "marft_envs.families.tools", "check_env": "marft_envs.testing.conformance"}
"""What is loaded when it is asked for."""


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise absent(__name__, name)
    return getattr(importlib.import_module(_LAZY[name]), name)


for _team, _summary in {
    "solo": "one agent solves a math problem",
    "dual": "reasoner, then actor: the paper's two-agent math team",
    "trio": "planner, reasoner, actor",
    "quartet": "planner, reasoner, critic, actor",
    "octet": "a planner, four solvers, two critics and a judge",
    "debate": "three solvers in parallel, then a judge",
    "router": "an orchestrator's words pick one of four specialists",
}.items():
    register(f"math-{_team}-v0", "marft_envs.families.math:make", {"team_name": _team}, _summary)
for _team, _summary in {
    "solo": "one agent writes a program, which runs in a sandbox",
    "dual": "planner, then coder",
    "reflect": "coder and reflector, until all public tests pass: up to 3 rounds",
    "retry": "the reflecting team's control: one coder who reads the feedback himself",
    "trio": "planner, coder, reviewer: the reviewer's program counts",
    "tester": "coder and tester in parallel, then the coder mends",
}.items():
    register(f"code-{_team}-v0", "marft_envs.families.code:make", {"team_name": _team}, _summary)
for _team, _summary in {
    "solo": "one agent with all tools",
    "dual": "planner, then an executor that calls tools until it is done",
    "trio": "planner, executor, and a verifier that can hand back",
    "router": "a router's words name the specialist that acts next",
    "supervisor": "whoever holds control hands it over by a tool",
    "debate": "two proposers in parallel, then an executor",
    "dual_control": "an agent and a user-agent with tools of their own on one state",
    "service": "a planner and an agent serve a user, who has tools of its own and is not trained",
    "screened": "an actor who never reads results, and a reader without tools who says one value of them",
    "desks": "two desks with records and tools of their own, who hear each other's words alone",
}.items():
    register(f"tools-{_team}-v0", "marft_envs.families.tools:make", {"team_name": _team}, _summary)
for _team, _summary in {
    "solo": "one agent reads a document, as far as its window goes",
    "memory": "one agent reads page by page and keeps a note",
    "chain": "readers, each of a part, who hand on a note",
    "map": "readers side by side, then one who joins their notes",
    "tree": "readers side by side, then joiners layer by layer, a few notes each",
    "recall": "a writer keeps a note session by session, and is asked only afterwards, by way of an answerer",
    "boss": "a boss's words spawn readers and name their pages; later it answers",
}.items():
    register(f"docs-{_team}-v0", "marft_envs.families.docs:make", {"team_name": _team}, _summary)
for _team, _summary in {
    "solo": "one agent searches, round by round, and answers",
    "chain": "searcher and reader in turn, then an answerer",
    "planner": "a planner's words send out searchers side by side; a checker answers, or asks for more",
    "router": "a router's words name who acts next: searcher, reader or answerer",
}.items():
    register(f"rag-{_team}-v0", "marft_envs.families.rag:make", {"team_name": _team}, _summary)
for _team, _summary in {
    "quarantine": "a reader without tools says one value of a letter, then an actor with tools, who never sees it",
    "messenger": "the same, but the reader passes the letter on: a quarantine in name only",
}.items():
    register(f"tools-{_team}-v0", "marft_envs.families.tools:make", {"team_name": _team, "domain": "letters"}, _summary)
for _toy, _summary in {
    "relay": "toy: the solver can only know what the planner passes on",
    "xor": "toy: two agents in parallel, a third joins what they say",
    "route": "toy: an orchestrator's word decides who acts",
    "signal": "toy: speaker and listener agree on a code over two rounds",
    "steps": "toy: none of several steps may go wrong; horizon and hidden numbers are knobs",
    "stop": "toy: readings of one bit, until an agent's word ends the talk; words may have a price",
}.items():
    register(f"{_toy}-v0", f"marft_envs.families.toy.{_toy}:make", None, _summary)
register("cases-v0", "marft_envs.families.cases:make", None, "a user's team on its recorded tasks and their results")
register(
    "steps-solo-v0",
    "marft_envs.families.toy.steps:make",
    {"alone": True},
    "toy: the same steps, by one agent who sees all",
)
