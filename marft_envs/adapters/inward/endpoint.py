"""A loopback endpoint that speaks OpenAI's API: what a program asks of it are turns of a team."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from marft_envs.core.types import Written
from marft_envs.server.chat import ChatRequest
from marft_envs.server.door import RefusedRequest, gone
from marft_envs.server.openai import ChatHandler, ChatServer


@dataclass(eq=False)
class TurnRequest:
    """One request of a program, which waits for its reply."""

    agent: str
    messages: list[dict[str, Any]]
    """Each with ``role`` and ``content`` (text), and what else the program wrote."""
    tools: list[dict[str, Any]]
    body: str
    """All that makes a retry the same request."""
    line: socket.socket
    reply: Future[dict[str, Any]] = field(default_factory=Future)
    """The message, ``finish_reason`` and ``usage``."""
    written: Sequence[Written] = ()
    """The messages as its agent reads them."""
    choice: str = "auto"
    """``none``: its reply is words."""
    parallel: bool = True
    """Whether its reply may have several calls."""
    stop: Sequence[str] = ()
    """Texts before the first of which its reply ends."""

    @classmethod
    def of(cls, asked: ChatRequest, agent: str, line: socket.socket) -> TurnRequest:
        """Returns what is asked of an agent."""
        body, parallel = asked.raw.decode(errors="replace"), asked.body.get("parallel_tool_calls") is not False
        turn = cls(agent, asked.messages, asked.tools, body, line, choice=asked.choice, stop=asked.stop)
        return replace(turn, parallel=parallel)

    @property
    def sees(self) -> tuple[int, ...]:
        """Returns the history indices of the turns whose words it holds."""
        return tuple(sorted({i for message in self.written for i in message.quotes}))


class Loopback(ChatServer):
    """Listens on a free port of 127.0.0.1, to one program at a time.

    Args:
        agents: The team; a request names one of them as its ``model``, or as its ``user``.
    """

    counts_known = False

    def __init__(self, agents: Sequence[str]) -> None:
        super().__init__(_Handler, key="")
        self.models = tuple(agents)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self._tell: Callable[[TurnRequest | RefusedRequest], None] = lambda event: None
        self._asked: list[TurnRequest] = []
        self._lock = threading.Lock()
        self.start()

    def begin(self, tell: Callable[[TurnRequest | RefusedRequest], None]) -> str:
        """Takes requests of a new program; returns its key. Those of the last one are refused from now on.

        Args:
            tell: Is called with each turn that the program asks for, and with each request that is refused because of
                the program's code or a model's choice of an agent.
        """
        self.end()
        self.key, self._tell = secrets.token_urlsafe(24), tell
        return self.key

    def end(self) -> None:
        """Refuses all requests, also those that wait."""
        with self._lock:
            self.key, waiting, self._asked = "", self._asked, []
        for asked in waiting:
            if not asked.reply.done():
                asked.reply.set_exception(RefusedRequest(410, "The episode is over, so no agent answers any more."))

    def ask(self, header: str, asked: ChatRequest, line: socket.socket) -> tuple[str, dict[str, Any]]:
        """Waits for the reply to a request, and returns its agent and the reply.

        The same request on a new line, where the line of the first is gone, is a retry and no turn of its own.

        Args:
            header: With the program's key.
            asked: What is asked.
            line: On which it came.

        Raises:
            RefusedRequest: It is no turn, the episode is over, or the reply is not what was asked for.
        """
        with self._lock:
            if not self.has_key(header):
                raise RefusedRequest(401, f"The episode is over. Expected {_Handler.key_expected}.")
            try:
                agent = self.named(asked)
            except RefusedRequest as unknown:
                self._tell(unknown)
                raise
            turn = TurnRequest.of(asked, agent, line)
            again = next((old for old in self._asked if old.body == turn.body and gone(old.line)), None)
            if again is not None:
                turn, again.line = again, line
            else:
                self._asked.append(turn)
                self._tell(turn)
        reply = turn.reply.result()
        with self._lock:
            if turn.line is line and turn in self._asked and not gone(line):  # else its retry comes
                self._asked.remove(turn)
        check_called(asked, agent, reply["message"].get("tool_calls", ()))
        return agent, reply

    def refused(self, header: str, why: RefusedRequest) -> None:
        """Tells of a request with a field that cannot be heeded: no model has chosen that, the program's code has."""
        with self._lock:
            if why.field not in ("", "messages", "input") and self.has_key(header):
                self._tell(why)


def check_called(asked: ChatRequest, agent: str, calls: Sequence[Mapping[str, Any]]) -> None:
    """Raises ``RefusedRequest`` where a call was required, and an agent has made none, or another."""
    called = [call["function"]["name"] for call in calls]
    if asked.choice == "required" and (not called or any(asked.function not in ("", name) for name in called)):
        says = f"tool_choice asks for a call of {asked.function or 'a tool'}; {agent} has called"
        raise RefusedRequest(400, f"{says} {', '.join(called) or 'none'}.", field="tool_choice")


class _Handler(ChatHandler):
    server: Loopback
    for_browsers = False
    key_expected = "this episode's: the OPENAI_API_KEY that the program was given"

    def check_head(self) -> None:
        super().check_head()
        self.connection.settimeout(None)  # a program takes as long as its tools do

    def do_POST(self) -> None:
        """Answers a turn."""
        key = self.shown_key
        try:
            asked = self.chat()
        except RefusedRequest as why:
            self.server.refused(key, why)
            raise
        agent, reply = self.server.ask(key, asked, self.connection)
        self.answer(asked, asked.body.get("model") or agent, reply)
