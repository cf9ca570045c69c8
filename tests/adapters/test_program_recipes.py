"""Recipes of ``examples/programs`` with the real packages: they play, D is what the code does, agents are trained."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marft_envs.adapters.inward import program
from marft_envs.records import experts

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"
ASKS, PASSES = [[0, 1], [1, 0]], [[0, 1], [0, 0]]


@dataclass(frozen=True)
class Recipe:
    """A program of a framework, and what its code makes of two agents' turns."""

    package: str
    module: str
    D: list[list[int]]
    edges: list[tuple[int, int]]
    model: str = "embedded"
    rewarded: bool = True
    """Whether a few demonstrations are enough for a reward, without which reinforcement learns nothing."""


ALL = [
    # The supervisor is shown a specialist's last words, and not its call.
    Recipe(
        "langgraph_supervisor", "langgraph_team", [[0, 1, 0], [1, 0, 0], [0, 0, 0]],
        [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)], "embedded-tools",
    ),
    Recipe("agents", "openai_handoff_team", PASSES, [(0, 1), (0, 2), (1, 2)], "embedded-tools"),
    Recipe("agents", "openai_as_tool_team", ASKS, [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)], "embedded-tools", rewarded=False),
    Recipe("pydantic_ai", "pydantic_ai_team", ASKS, [(0, 1), (0, 2), (1, 2)], rewarded=False),
    Recipe("crewai", "crewai_team", PASSES, [(0, 1)], rewarded=False),
    Recipe("autogen_agentchat", "autogen_team", PASSES, [(0, 1)]),
    # Its prompts have more tokens than an embedded model reads.
    Recipe("smolagents", "smolagents_team", ASKS, [(0, 1), (0, 2), (1, 2)], "smollm2-135m", rewarded=False),
    Recipe("dspy", "dspy_team", PASSES, [(0, 1)], rewarded=False),
]  # fmt: skip


@pytest.fixture(params=ALL, ids=lambda recipe: recipe.module)
def recipe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Recipe, Any]]:
    """A recipe and its module; whatever it sends stays on this machine."""
    wanted: Recipe = request.param
    called: list[Any] = []
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def looks_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(host)
        return look_up(host, *args, **kwargs)

    def connects(line: socket.socket, address: Any) -> None:
        called.append(address[0] if isinstance(address, tuple) else "127.0.0.1")
        connect(line, address)

    monkeypatch.setattr(socket, "getaddrinfo", looks_up)
    monkeypatch.setattr(socket.socket, "connect", connects)
    monkeypatch.syspath_prepend(str(FOLDER))
    pytest.importorskip(wanted.package, reason=f"make test-adapters installs {wanted.package}")
    yield wanted, importlib.import_module(wanted.module)
    assert {str(host) for host in called} <= {"127.0.0.1", "localhost", "::1"}


def test_a_recipe_plays_and_its_D_is_what_the_code_does(recipe: tuple[Recipe, Any]) -> None:
    wanted, module = recipe
    settings = {"agents": module.AGENTS, "data": module.PROBLEMS, "grader": module.grade, "expert": module.expert}
    with closing(program.make(module.team, **settings)) as env:
        for problem in env.task.evaluation_set(3):
            episode = experts.play(env, options={"task_id": problem})
            assert episode.success and not episode.fault, episode.stop_reason
            if "shipping_0" not in [turn.agent for turn in episode.turns]:
                assert episode.rounds[0].D == wanted.D and sorted(episode.rounds[0].edges) == wanted.edges
            assert (episode.metrics["saw_nobody"], episode.metrics["seen_by_nobody"]) == (0, 0)
        for words in ("", "I do not know.", '<tool_call>{"name": "no_such", "arguments": {}}</tool_call>'):
            env.reset(seed=0)
            while not env.done:
                env.step(words)
            assert env.episode.fault in ("", "text") and not env.episode.success, env.episode.stop_reason


def test_every_agent_of_a_recipe_is_trained_and_exported(
    recipe: tuple[Recipe, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="make test-adapters installs the extra train")
    from marft_algos.cli import main

    wanted, module = recipe
    monkeypatch.chdir(tmp_path)
    named = [f"{setting}={wanted.module}:{name}" for setting, name in (("data", "PROBLEMS"), ("grader", "grade"))]
    named += [f"agents={json.dumps(module.AGENTS)}", f"expert={wanted.module}:expert", "window=0.01"]
    typed = ["--preset", "quickstart", "--models", wanted.model, "--max-new-tokens", "96", "--iterations", "1"]
    typed += ["--env", f"program:{wanted.module}:team", "--eval-every", "0", "--eval-episodes", "2"]
    if wanted.rewarded:
        runs, command = ("team-warm", "team"), ["train", "--warm-start", "3", "--warm-episodes", "32"]
        typed += ["--episodes-per-iteration", "16"]
    else:
        runs, command = ("team",), ["sft", "--episodes-per-iteration", "2"]
    assert main([*command, *typed, "--name", "team", "--env-kwargs", *named]) == 0
    for run in runs:
        lines = [json.loads(line) for line in (tmp_path / "runs" / run / "metrics.jsonl").read_text().splitlines()]
        moved = {agent for agent in module.AGENTS for line in lines if line.get(f"policy/{agent}/grad_norm", 0.0) > 0}
        demonstrated = run == runs[0]
        asked = [a for a in module.AGENTS if demonstrated or f"agent/{a}/length" in lines[-1]]
        assert moved >= set(asked), (run, moved)
    assert main(["export", "runs/team"]) == 0
    assert {path.name for path in (tmp_path / "exports" / "team").iterdir()} >= set(module.AGENTS)
