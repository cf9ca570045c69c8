"""The verifiers adapter: whole episodes through ``Env.run_episode`` with in-process agents equal the native loop's."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any

import pytest
from native_loop import CASES, EPISODES, Script, expected

import marft_envs
from marft_envs.errors import ConfigError

pytest.importorskip("verifiers", reason="pip install 'marft[verifiers]'")
vf = pytest.importorskip("verifiers.v1")

from marft_envs.adapters.verifiers import plugin  # noqa: E402


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible server on this machine; ``say(agent, messages)`` replies, the model's name is the agent."""

    say: Any = None
    hold = threading.Barrier(1)

    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server: Any = self.server
        text = server.say(body["model"], body["messages"])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        raw = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def team(id: str, monkeypatch: pytest.MonkeyPatch, learners: Any = None, **kwargs: Any) -> Any:
    """The environment, loaded by verifiers from a module as a user would write it; each agent is a model of its name."""
    module = ModuleType("team_under_test")
    module.Tasks, module.Seat, module.Team = plugin(id, learners, **kwargs)
    module.__all__ = ["Seat", "Tasks", "Team"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = marft_envs.make(id, **kwargs).possible_agents
    seats = {name: {"model": name} for name in names}
    return vf.load_environment(vf.resolve_env_config({"taskset": {"id": module.__name__}, **seats}))


def play(env: Any, endpoint: Endpoint, seeds: range, at_once: int = 8) -> list[Any]:
    """Episodes of these seeds, several at once on the one object."""
    context = vf.ModelContext(model="unused", client=vf.EvalClientConfig(base_url=endpoint.url()))

    async def go() -> list[Any]:
        gate = asyncio.Semaphore(at_once)
        async with env.serving():
            chosen = [task for task in env.taskset.take(len(seeds))]
            return await asyncio.gather(*(env.run_slot(env.slots(task)[0], context, gate) for task in chosen))

    return asyncio.run(go())


def test_episodes_equal_the_native_loop(case: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transcripts, who saw what, D and every channel; eight episodes at a time share the environment object."""
    seeds = range(EPISODES)
    endpoint.say = Script(marft_envs.make(case, **CASES[case]), seeds)
    wanted = [found for found, _ in expected(case, seeds, endpoint.say)]
    env = team(case, monkeypatch, **CASES[case])
    for found, episode in zip(wanted, play(env, endpoint, seeds), strict=True):
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


def test_agents_of_a_layer_speak_at_the_same_time(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three solvers wait for each other: played one by one, the barrier would break."""
    together = threading.Barrier(3, timeout=60)

    def say(agent: str, messages: Any) -> str:
        if agent.startswith("solver"):
            together.wait()
        return r"\boxed{1}"

    endpoint.say = say
    (episode,) = play(team("math-debate-v0", monkeypatch, levels=[0]), endpoint, range(1))
    assert episode.ok and len(episode.traces) == 4


def test_only_learners_train(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint.say = lambda agent, messages: "1"
    (episode,) = play(team("math-dual-v0", monkeypatch, ["actor_0"], levels=[0]), endpoint, range(1))
    assert {trace.agent.name: trace.agent.trainable for trace in episode.traces} == {"reasoner_0": False, "actor_0": True}


def test_an_agent_that_fails_ends_its_episode_and_is_recorded(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(agent: str, messages: Any) -> Any:
        return None if agent == "actor_0" else "7+8=15"

    endpoint.say = say
    endpoint.RequestHandlerClass = type("Broken", (Handler,), {"do_POST": _broken})
    (episode,) = play(team("math-dual-v0", monkeypatch, levels=[0]), endpoint, range(1))
    assert not episode.ok and not episode.traces[-1].ok
    assert "team" not in episode.traces[-1].rewards


def _broken(self: Any) -> None:
    self.rfile.read(int(self.headers["content-length"]))
    self.send_response(400)
    self.send_header("content-length", "2")
    self.end_headers()
    self.wfile.write(b"{}")


def test_an_unknown_learner_is_named() -> None:
    with pytest.raises(ConfigError, match="actor_0"):
        plugin("math-dual-v0", ["actor_1"])
