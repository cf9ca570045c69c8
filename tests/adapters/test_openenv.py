"""The OpenEnv adapter over the loopback: whole episodes equal the native loop's, sessions at the same time, errors."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from native_loop import CASES, Script, assert_same, expected

import marft_envs
from marft_envs.core.env import FlexEnv
from marft_envs.errors import ConfigError

pytest.importorskip("openenv", reason="pip install -e '.[openenv]'")
uvicorn = pytest.importorskip("uvicorn")

from marft_envs.adapters.outward.openenv import TeamAction, TeamClient, serve, server  # noqa: E402


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The application on a free port of this machine."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    running = Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert started.wait(60)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    running.should_exit = True
    thread.join(60)


def episode(
    client: Any, seed: int, say: Callable[[str, Any], str], backwards: bool = False
) -> tuple[dict[str, float], Any]:
    """Plays one episode; returns each agent's rewards, and the session's state at the end."""
    seen = client.reset(seed=seed).observation
    paid: dict[str, float] = dict.fromkeys(seen.rewards, 0.0)
    total = 0.0
    while not seen.done:
        agent = seen.ready[-1 if backwards else 0]
        result = client.step(TeamAction(agent=agent, text=say(agent, seen.messages[agent])))
        seen = result.observation
        total += result.reward
        for name, reward in seen.rewards.items():
            paid[name] += reward
    paid["team"] = total
    return paid, client.state()


def test_episodes_equal_the_native_loop(case: str) -> None:
    """Layers are answered from the last agent to the first: the order in which words arrive changes nothing."""
    env: list[FlexEnv] = []
    with served(serve(lambda: env[-1])) as url:

        def play(found: FlexEnv, seed: int, say: Any) -> dict[str, float]:
            if not env:
                env.append(found)
                clients.append(TeamClient(base_url=url).sync())
                clients[0].__enter__()
            paid, state = episode(clients[0], seed, say, backwards=True)
            assert paid.pop("team") == found.unwrapped.episode.team_return
            assert state.turns == [{"agent": t.agent, "text": t.text} for t in found.unwrapped.episode.turns]
            return paid

        clients: list[Any] = []
        assert_same(case, play)
        clients[0].__exit__(None, None, None)


def test_sessions_at_the_same_time_do_not_meet() -> None:
    """Twelve sessions, each waiting for the others at every turn, play what each plays alone."""
    case, seeds = "math-debate-v0", range(12)
    say = Script(marft_envs.make(case, **CASES[case]), seeds)
    wanted = expected(case, seeds, say)
    together = threading.Barrier(len(seeds), timeout=120)

    def in_step(agent: str, messages: Any) -> str:
        together.wait()
        return say(agent, messages)

    with served(server(case, len(seeds), **CASES[case])) as url, ThreadPoolExecutor(len(seeds)) as pool:

        def one(seed: int) -> Any:
            with TeamClient(base_url=url).sync() as client:
                return episode(client, seed, in_step)

        for (found, paid), (got, state) in zip(wanted, pool.map(one, seeds), strict=True):
            got.pop("team")
            assert got == paid
            assert state.turns == [{"agent": t["agent"], "text": t["text"]} for t in found["turns"]]


def test_an_agent_that_cannot_act_is_refused_and_the_session_goes_on() -> None:
    with served(server("math-dual-v0", levels=[0])) as url, TeamClient(base_url=url).sync() as client:
        client.reset(seed=0)
        with pytest.raises(Exception, match="not ready"):
            client.step(TeamAction(agent="actor_0", text="1"))
        seen = client.step(TeamAction(agent="reasoner_0", text="7+8=15")).observation
        assert seen.ready == ["actor_0"] and "7+8=15" in seen.messages["actor_0"][-1]["content"]


def test_a_wrong_keyword_is_an_error_before_anyone_connects() -> None:
    with pytest.raises(ConfigError, match="levels"):
        server("math-dual-v0", level=[0])
