"""The Agent-Lightning agent against an OpenAI-compatible server on the loopback.

Where agentlightning is not installed, it is stood in for by an empty base class: the agent overrides one method of it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from mock_endpoint import Endpoint, endpoint
from native_loop import CASES, EPISODES, Script, expected

import marft_envs
from marft_envs.adapters import optional
from marft_envs.adapters.outward.agent_lightning import agent
from marft_envs.errors import ConfigError, MissingExtraError

pytest.importorskip("openai", reason="pip install -e '.[hosted]'")


INSTALLED = importlib.util.find_spec("agentlightning") is not None
FEW = 12
"""Episodes where it is stood in for."""


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    if not INSTALLED:
        module = ModuleType("agentlightning")
        module.LitAgent = type("LitAgent", (), {})
        monkeypatch.setitem(sys.modules, "agentlightning", module)
        monkeypatch.setattr(optional.metadata, "version", lambda package: "0.3.0")


@pytest.fixture
def served() -> Iterator[Endpoint]:
    with endpoint() as server:
        yield server


def resources(names: Any, server: Endpoint, asked: list[Any] | None = None) -> dict[str, Any]:
    def url(rollout: str, attempt: str) -> str:
        if asked is not None:
            asked.append((rollout, attempt))
        return server.url()

    return {
        name: SimpleNamespace(get_base_url=url, model=name, api_key=None, sampling_parameters={"temperature": 1.0})
        for name in names
    }


ROLLOUT = SimpleNamespace(rollout_id="ro-1", attempt=SimpleNamespace(attempt_id="at-1"))


def test_episodes_equal_the_native_loop(case: str, served: Endpoint, lightning: None) -> None:
    """Each agent is asked, in the native loop's order of layers, with the native loop's messages."""
    seeds = range(EPISODES if INSTALLED else FEW)
    env = marft_envs.make(case, **CASES[case])
    script = Script(env, seeds)
    heard: list[tuple[str, str]] = []

    def say(name: str, messages: Any) -> str:
        text = script(name, messages)
        heard.append((name, text))
        return text

    served.say = say
    team = agent(case, **CASES[case])
    known = resources(env.possible_agents, served)

    async def go() -> None:
        for seed, (found, _) in zip(seeds, wanted, strict=True):
            heard.clear()
            got = await team.rollout_async({"seed": seed}, known, ROLLOUT)
            assert got == sum(layer["team_reward"] for layer in found["layers"])
            assert sorted(heard) == sorted((turn["agent"], turn["text"]) for turn in found["turns"])

    wanted = expected(case, seeds, script)
    asyncio.run(go())


def test_calls_are_filed_under_the_rollout_and_share_main_llm(served: Endpoint, lightning: None) -> None:
    asked: list[Any] = []
    served.say = lambda name, messages: name
    team = agent("math-dual-v0", levels=[0])
    asyncio.run(team.rollout_async({"seed": 0}, resources(["main_llm"], served, asked), ROLLOUT))
    assert asked == [("ro-1", "at-1")] * 2


def test_clear_answers_to_what_cannot_work(lightning: None) -> None:
    team = agent("math-dual-v0", levels=[0])
    with pytest.raises(ConfigError, match="seed"):
        asyncio.run(team.rollout_async({}, {}, ROLLOUT))
    with pytest.raises(ConfigError, match="main_llm"):
        asyncio.run(team.rollout_async({"seed": 0}, {}, ROLLOUT))
    with pytest.raises(ConfigError, match="levels"):
        agent("math-dual-v0", level=[0])


def test_without_it_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agentlightning", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[agent-lightning\]'"):
        agent("math-dual-v0")
