"""Bad input from Python: every call raises a ``MarftError`` that says what happened, what was expected, what to type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from marft_algos.algorithms import base as algorithms
from marft_algos.config import endpoints, presets, settings
from marft_algos.config.settings import TrainConfig
from marft_algos.extras.bench.grid import Grid
from marft_algos.runs.folder import RunFolder
from marft_envs import AgentSpec, Chain, FlexEnv, Independent, Layered, StaticDAG
from marft_envs.errors import MarftError
from marft_envs.families.toy.relay import Relay

A, B = AgentSpec("a_0", "a"), AgentSpec("b_0", "b")


def team(*agents: AgentSpec, dependency: Any = None, **flex: Any) -> FlexEnv:
    return FlexEnv(agents or (A, B), Relay(), dependency or Chain(), **flex)


def stepped(action: Any) -> None:
    env = marft_envs.make("relay-v0")
    env.reset(seed=0)
    env.step(action)


def after_the_end() -> None:
    env = marft_envs.make("relay-v0")
    env.reset(seed=0)
    while env.agents:
        over = env.terminations[env.agent_selection] or env.truncations[env.agent_selection]
        env.step(None if over else "1")
    env.step("1")


GRID: dict[str, Any] = {"algorithms": ["marft"], "envs": ["relay-v0"], "token_budget": 1000}

CALLS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "make: typo": (lambda: marft_envs.make("relai-v0"), ("no environment 'relai-v0'", "Did you mean 'relay-v0'")),
    "make: argument": (lambda: marft_envs.make("math-dual-v0", levls=0), ("takes no 'levls'", "Did you mean 'levels'")),
    "make: value": (lambda: marft_envs.make("relay-v0", max_rounds=0), ("max_rounds is 0", "expected", "max_rounds=1")),
    "make: half": (lambda: marft_envs.make("relay-v0", max_turns=1.5), ("max_turns is 1.5", "expected a whole number")),
    "make: history": (lambda: marft_envs.make("relay-v0", history="dep"), ("history 'dep'", "Did you mean 'deps'")),
    "make_vec: argument": (lambda: marft_envs.make_vec("relay-v0", 2, levls=0), ("takes no 'levls'", "Known: ")),
    "register: id": (
        lambda: marft_envs.register("relay", team),
        ("'relay' is not an environment id", "Expected", "my-task-v0"),
    ),
    "register: taken": (
        lambda: marft_envs.register("relay-v0", team),
        ("registered already", "Register a new version"),
    ),
    "team: nobody": (lambda: FlexEnv((), Relay(), Chain()), ("at least one agent", "FlexEnv([AgentSpec('solver_0'")),
    "team: twice": (lambda: team(A, A), ("unique", "Number them")),
    "team: no name": (lambda: team(AgentSpec("", "a")), ("called ''", "expected letters", "AgentSpec('solver_0'")),
    "team: a path": (lambda: team(AgentSpec("../x", "a")), ("called '../x'", "expected letters", "AgentSpec(")),
    "team: a number": (lambda: team(AgentSpec(3, "a")), ("called 3", "expected letters")),  # type: ignore[arg-type]
    "task: no hooks": (
        lambda: FlexEnv([A], object(), Chain()),  # type: ignore[arg-type]
        ("The task object has no reset", "expected", "docs/custom-tasks.md"),
    ),
    "D: stranger": (lambda: team(dependency=Layered([["a_0"], ["c_0"]])), ("agent 'c_0'", "Did you mean 'b_0'")),
    "D: shape": (lambda: team(dependency=StaticDAG([[1]])), ("got shape (1, 1)", "must be a 2 x 2 matrix")),
    "D: cycle": (lambda: team(dependency=StaticDAG([[0, 1], [1, 0]])), ("cycle", "Remove an edge", "on_cycle='lag'")),
    "D: typo": (lambda: marft_envs.as_dependency("chian"), ("no dependency 'chian'", "Did you mean 'chain'")),
    "render mode": (
        lambda: team(dependency=Independent(), render_mode="humna"),
        ("got 'humna'", "must be None, 'human' or 'ansi'"),
    ),
    "step: no text": (lambda: stepped(3), ("must be a string", "got int", "env.step(text)")),
    "step: after the end": (after_the_end, ("Nobody is left to act", "env.reset(seed=")),
    "settings: range": (lambda: TrainConfig(iterations=-1), ("iterations is -1", "expected 0 or more")),
    "settings: type": (lambda: TrainConfig(env=3), ("env is 3", "expected text")),  # type: ignore[arg-type]
    "settings: choice": (lambda: TrainConfig(dtype="fp16"), ("'fp16'", "expected one of")),  # type: ignore[arg-type]
    "settings: pair": (lambda: TrainConfig(pool=2, full_finetune=True), ("pool", "--pool 0")),
    "settings: unknown": (lambda: settings.build({"iteratoins": 3}), ("'iteratoins'", "Did you mean 'iterations'")),
    "settings: nested": (lambda: settings.build({"algorithm": {"lrr": 3}}), ("'lrr'", "Did you mean 'lr'")),
    "algorithm: typo": (lambda: algorithms.get("mraft"), ("no algorithm 'mraft'", "Did you mean 'marft'")),
    "algorithm: none": (
        lambda: algorithms.get("pathlib:Path"),
        ("is no algorithm", "Expected a subclass", "examples/contributing/algorithm.py"),
    ),
    "preset": (lambda: presets.get("quikstart"), ("no preset 'quikstart'", "Did you mean 'quickstart'")),
    "engine: kind": (lambda: endpoints.parse("vlm"), ("Unknown engine 'vlm'", "Did you mean 'vllm'", "Expected {kind")),
    "engine: key": (
        lambda: endpoints.parse({"kind": "openai", "model": "m", "api_key": "k"}),
        ("no setting 'api_key'", "Keys stay in the environment", "key_env"),
    ),
    "run": (lambda: RunFolder.open("nowhere"), ("is no run", "no config.toml", "marft train")),
    "grid: typo": (lambda: Grid(**{**GRID, "algorithms": ["mraft"]}), ("'mraft'", "Did you mean 'marft'")),
    "grid: budget": (lambda: Grid(**{**GRID, "token_budget": 0}), ("token_budget is 0", "expected at least 1")),
    "grid: text": (lambda: Grid(**{**GRID, "envs": "relay-v0"}), ("valid tuple", 'Write: envs = ["relay-v0"]')),
    "grid: baseline": (lambda: Grid(**GRID, baseline="ppo2"), ("baseline 'ppo2'", "Known: ", 'baseline = "marft"')),
    "grid: seeds": (lambda: Grid(**GRID, seeds=[1, 1]), ("'seeds' is [1, 1]", "expected at least one, and none twice")),
}


@pytest.mark.parametrize("name", CALLS)
def test_refused(name: str, here: Path) -> None:
    call, parts = CALLS[name]
    with pytest.raises(MarftError) as refused:
        call()
    for part in parts:
        assert part in str(refused.value)
