"""A member behind an Agent2Agent endpoint that the real SDK serves: protocol 1.0 (``a2a-sdk`` 1.x) and 0.3 (its 0.3.x)."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest

import marft_envs
from examples import a2a_member
from marft_envs.core.partners import PartnerError

a2a = pytest.importorskip("a2a", reason="make test-adapters ARGS='a2a a2a_03' installs a2a-sdk")
import uvicorn  # noqa: E402
from a2a.server.agent_execution import AgentExecutor  # noqa: E402
from a2a.server.request_handlers import DefaultRequestHandler  # noqa: E402
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater  # noqa: E402
from a2a.types import AgentCapabilities, AgentCard, AgentSkill  # noqa: E402

OLD = metadata.version("a2a-sdk").startswith("0.")
ABOUT = {"name": "adder", "description": "Adds.", "version": "1", "capabilities": AgentCapabilities(streaming=False)}
ABOUT |= {"default_input_modes": ["text"], "default_output_modes": ["text"]}
SKILL = {"id": "add", "name": "add", "description": "Adds.", "tags": ["sums"]}


class Adder(AgentExecutor):
    """Answers in a message; or in a task that takes a while; or fails: ``mood`` says which."""

    def __init__(self) -> None:
        self.mood, self.heard = "message", list[str]()

    async def execute(self, context: Any, event_queue: Any) -> None:
        self.heard.append(context.get_user_input())
        if self.mood == "message":
            return await event_queue.enqueue_event(self.message("7+8=15, says the agent."))
        task = context.current_task or self.task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        await asyncio.sleep(0.2)
        if self.mood == "fails":
            return await updater.failed()
        await updater.add_artifact([self.part("7+8="), self.part("15, as a task.")])
        await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        raise NotImplementedError

    if OLD:
        from a2a.utils import new_agent_text_message as message
        from a2a.utils import new_task as task

        message, task = staticmethod(message), staticmethod(task)

        @staticmethod
        def part(text: str) -> Any:
            from a2a.types import Part, TextPart

            return Part(root=TextPart(text=text))
    else:
        from a2a.helpers import new_task_from_user_message as task
        from a2a.helpers import new_text_message as message
        from a2a.helpers import new_text_part as part

        message, task, part = staticmethod(message), staticmethod(task), staticmethod(part)


def application(agent: Adder, url: str) -> Any:
    """The SDK's own server of an agent."""
    if OLD:
        from a2a.server.apps import A2AStarletteApplication

        card = AgentCard(url=url, skills=[AgentSkill(**SKILL)], **ABOUT)
        return A2AStarletteApplication(card, DefaultRequestHandler(agent, InMemoryTaskStore())).build()
    from a2a.server.routes import create_jsonrpc_routes
    from a2a.types import AgentInterface
    from starlette.applications import Starlette

    spoken = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
    card = AgentCard(supported_interfaces=[spoken], skills=[AgentSkill(**SKILL)], **ABOUT)
    return Starlette(routes=create_jsonrpc_routes(DefaultRequestHandler(agent, InMemoryTaskStore(), card), "/"))


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adder]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        made = Adder()
        server = uvicorn.Server(uvicorn.Config(application(made, url), log_level="warning"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        until = time.monotonic() + 30
        while not server.started and time.monotonic() < until:
            time.sleep(0.02)
        monkeypatch.setenv("A2A_URL", url)
        monkeypatch.setenv("A2A_VERSION", "0.3" if OLD else "1.0")
        yield made
        server.should_exit = True
        thread.join(30)


def team() -> Any:
    env = marft_envs.make("math-dual-v0", levels=[0], partners={"reasoner_0": "examples.a2a_member:ask"})
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(("mood", "said"), [("message", "7+8=15, says the agent."), ("task", "7+8=\n15, as a task.")])
def test_what_the_agent_answers_is_what_the_next_one_sees(agent: Adder, mood: str, said: str) -> None:
    agent.mood = mood
    env = team()
    assert env.agent_selection == "actor_0" and f"[reasoner]\n{said}" in env.messages("actor_0")[-1]["content"]
    (heard,) = agent.heard
    assert "Reasoner" in heard and "Compute" in heard


def test_a_task_that_fails_is_an_infrastructure_error(agent: Adder) -> None:
    agent.mood = "fails"
    with pytest.raises(PartnerError, match=r"did not answer.*(?i:failed)"):
        team()


def test_the_other_protocol_is_an_infrastructure_error_that_says_so(
    agent: Adder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2A_VERSION", "1.0" if OLD else "0.3")
    with pytest.raises(ConnectionError, match=r"did not answer: .*code"):
        a2a_member.ask([{"role": "user", "content": "7+8?"}])
