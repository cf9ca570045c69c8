"""The verifiers adapter: whole episodes through ``Env.run_episode`` with in-process agents equal the native loop's."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from mock_endpoint import Endpoint, endpoint
from native_loop import CASES, EPISODES, Script, expected

import marft_envs
from marft_envs.errors import ConfigError

pytest.importorskip("verifiers", reason="pip install -e '.[verifiers]'")
vf = pytest.importorskip("verifiers.v1")

from marft_envs.adapters.outward.verifiers import plugin  # noqa: E402


@pytest.fixture
def served() -> Iterator[Endpoint]:
    with endpoint() as server:
        yield server


def team(id: str, monkeypatch: pytest.MonkeyPatch, learners: Any = None, **kwargs: Any) -> Any:
    """The environment, loaded by verifiers from a module as a user would write it; each agent is a model of its name."""
    module = ModuleType("team_under_test")
    module.Tasks, module.Seat, module.Team = plugin(id, learners, **kwargs)
    module.__all__ = ["Seat", "Tasks", "Team"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = marft_envs.make(id, **kwargs).possible_agents
    seats = {name: {"model": name} for name in names}
    return vf.load_environment(vf.resolve_env_config({"taskset": {"id": module.__name__}, **seats}))


def play(env: Any, served: Endpoint, seeds: range, at_once: int = 8) -> list[Any]:
    """Episodes of these seeds, several at once on the one object."""
    context = vf.ModelContext(model="unused", client=vf.EvalClientConfig(base_url=served.url()))

    async def go() -> list[Any]:
        gate = asyncio.Semaphore(at_once)
        async with env.serving():
            chosen = [task for task in env.taskset.take(len(seeds))]
            return await asyncio.gather(*(env.run_slot(env.slots(task)[0], context, gate) for task in chosen))

    return asyncio.run(go())


def test_episodes_equal_the_native_loop(case: str, served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transcripts, who saw what, D and every channel; eight episodes at a time share the environment object."""
    seeds = range(EPISODES)
    served.say = Script(marft_envs.make(case, **CASES[case]), seeds)
    wanted = [found for found, _ in expected(case, seeds, served.say)]
    env = team(case, monkeypatch, **CASES[case])
    for found, episode in zip(wanted, play(env, served, seeds), strict=True):
        assert episode.ok, episode.errors
        told = episode.traces
        (record,) = [trace.info["episode"] for trace in told if "episode" in trace.info]
        assert record["env_id"] == case
        texts = {turn["extras"]["trace"]: turn for turn in record["turns"]}
        for turn in record["turns"]:
            turn.pop("extras")
        for name in ("index", "env_kwargs", "env_id"):
            record.pop(name)
        assert record == found
        assert len(told) == len(found["turns"])
        for trace in told:
            turn = texts[trace.id]
            after = found["layers"][turn["layer"] :]
            assert trace.agent.name == turn["agent"] and trace.assistant_messages[-1].content == turn["text"]
            assert trace.rewards["team"].value == sum(layer["team_reward"] for layer in after)
            assert trace.reward == turn["reward"] + trace.rewards["team"].value + trace.rewards["agent"].value


def test_agents_of_a_layer_speak_at_the_same_time(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three solvers wait for each other: played one by one, the barrier would break."""
    together = threading.Barrier(3, timeout=60)

    def say(agent: str, messages: Any) -> str:
        if agent.startswith("solver"):
            together.wait()
        return r"\boxed{1}"

    served.say = say
    (episode,) = play(team("math-debate-v0", monkeypatch, levels=[0]), served, range(1))
    assert episode.ok and len(episode.traces) == 4


def test_only_learners_train(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    served.say = lambda agent, messages: "1"
    (episode,) = play(team("math-dual-v0", monkeypatch, ["actor_0"], levels=[0]), served, range(1))
    assert {trace.agent.name: trace.agent.trainable for trace in episode.traces} == {
        "reasoner_0": False,
        "actor_0": True,
    }


def test_an_agent_that_fails_ends_its_episode_and_is_recorded(
    served: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.say = lambda agent, messages: None if agent == "actor_0" else "7+8=15"
    (episode,) = play(team("math-dual-v0", monkeypatch, levels=[0]), served, range(1))
    assert not episode.ok and not episode.traces[-1].ok
    assert "team" not in episode.traces[-1].rewards


def test_an_unknown_learner_is_named() -> None:
    with pytest.raises(ConfigError, match="actor_0"):
        plugin("math-dual-v0", ["actor_1"])


def test_the_page_for_those_who_come_from_verifiers_shows_names_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs/from-verifiers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(import verifiers.*?)```", page, re.DOTALL)
    shown: dict[str, Any] = {}
    exec(block, shown)
    assert [shown[name].__name__ for name in shown["__all__"]] == ["Sums"]
    (first, second) = shown["Sums"](vf.TasksetConfig())
    assert (first.data.prompt, second.data.answer) == ("What is 2+3?", "8")
    assert [asyncio.run(first.right(SimpleNamespace(last_reply=said))) for said in (" 5", "6")] == [1.0, 0.0]
    for row in re.findall(r"^\| (.*?) \|", page.partition("What corresponds")[2], re.MULTILINE)[1:]:
        for name in re.findall(r"`@?([\w.-]+)`", row):
            if name == "vf-eval":
                assert name in {command.name for command in entry_points(group="console_scripts")}
            elif name != "__all__":
                attrgetter(name)(vf)
