"""A loopback endpoint that speaks OpenAI's chat-completions API: what a program asks of it are turns of a team."""

from __future__ import annotations

import hmac
import json
import secrets
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from marft_envs.core.types import Written
from marft_envs.errors import did_you_mean

LONGEST = 64 << 20
"""Bytes of a request; a longer one is refused."""


class NoTurn(Exception):
    """A request that is no turn: the status and the words that its program gets."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


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

    @property
    def sees(self) -> tuple[int, ...]:
        """Returns the history indices of the turns whose words it holds."""
        return tuple(sorted({i for message in self.written for i in message.quotes}))


class Loopback(ThreadingHTTPServer):
    """Listens on a free port of 127.0.0.1, to one program at a time.

    Args:
        agents: The team; a request names one of them as its ``model``, or as its ``user``.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, agents: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.agents = tuple(agents)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        self._key = ""
        self._tell: Callable[[TurnRequest | NoTurn], None] = lambda event: None
        self._open: list[TurnRequest] = []
        self._lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.05,), name="marft-program-endpoint", daemon=True).start()

    def begin(self, tell: Callable[[TurnRequest | NoTurn], None]) -> str:
        """Takes requests of a new program; returns its key. Those of the last one are refused from now on.

        Args:
            tell: Is told of each turn that is asked for, and of each request for an agent that there is not.
        """
        self.end()
        self._key, self._tell = secrets.token_urlsafe(24), tell
        return self._key

    def end(self) -> None:
        """Refuses all requests, also those that wait."""
        with self._lock:
            self._key, waiting, self._open = "", self._open, []
        for asked in waiting:
            if not asked.reply.done():
                asked.reply.set_exception(NoTurn(410, "The episode is over, so nobody answers any more."))

    def ask(self, header: str, body: Any, line: socket.socket) -> dict[str, Any]:
        """Waits for the reply to a request, and returns it.

        The same request on a new line, where the line of the first is gone, is a retry and no turn of its own.

        Args:
            header: With the program's key.
            body: Of the request, as JSON is read.
            line: On which it came.

        Raises:
            NoTurn: It is no turn, or the episode is over.
        """
        asked = _read(body, line, self.agents)
        with self._lock:
            if not self._key or not hmac.compare_digest(header.encode(), f"Bearer {self._key}".encode()):
                raise NoTurn(401, "The key is not this episode's. Expected the OPENAI_API_KEY that it was given.")
            if asked.agent not in self.agents:
                says = f"There is no agent '{asked.agent}' in the team; expected as model one of them."
                unknown = NoTurn(404, f"{says} {did_you_mean(asked.agent, self.agents)}")
                self._tell(unknown)
                raise unknown
            again = next((old for old in self._open if old.body == asked.body and _gone(old.line)), None)
            if again is not None:
                asked, again.line = again, line
            else:
                self._open.append(asked)
                self._tell(asked)
        reply = asked.reply.result()
        with self._lock:
            if asked.line is line and asked in self._open and not _gone(line):  # else its retry comes
                self._open.remove(asked)
        return reply

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a line that breaks: its program asks again, or has ended."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _read(body: Any, line: socket.socket, agents: Sequence[str]) -> TurnRequest:
    if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise NoTurn(400, "Expected a JSON object with 'model' and 'messages', a list with a message at least.")
    if body.get("n") not in (None, 1):
        raise NoTurn(400, f"n is {body['n']!r}; expected 1: a request is one turn. Ask several times.")
    tools = body.get("tools") or []
    messages = [_message(message) for message in body["messages"]]
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise NoTurn(400, "tools is no list of objects.")
    agent = str(body.get("model") if body.get("user") not in agents else body["user"])
    return TurnRequest(agent, messages, tools, json.dumps([agent, messages, tools], sort_keys=True), line)


def _message(message: Any) -> dict[str, Any]:
    """Returns a message with its content as one text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise NoTurn(400, "A message is no object with a role.")
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise NoTurn(400, f"The content of a message of '{message['role']}' is no text; agents read text alone.")
    return {**message, "content": "".join(map(str, texts))}


def _gone(line: socket.socket) -> bool:
    """Returns whether the other side has closed a connection."""
    poll = select.poll()
    try:
        poll.register(line, select.POLLIN)
        return bool(poll.poll(0)) and not line.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Loopback

    def do_POST(self) -> None:
        """Answers a turn."""
        try:
            body, reply = self._turn()
        except NoTurn as refused:
            error = {"message": str(refused), "type": "invalid_request_error", "code": refused.status}
            return self._send(refused.status, {"error": error})
        message = {"role": "assistant", **reply["message"]}
        about = {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": int(time.time()), "model": body["model"]}
        choice = {"index": 0, "finish_reason": reply["finish_reason"], "logprobs": None}
        if not body.get("stream"):
            done = {**about, "object": "chat.completion", "choices": [{**choice, "message": message}]}
            return self._send(200, {**done, "usage": reply["usage"]})
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", ()))]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        part = {**about, "object": "chat.completion.chunk"}
        parts = [{**part, "choices": [{**choice, "finish_reason": None, "delta": delta}]}]
        parts += [{**part, "choices": [{**choice, "delta": {}}]}, {**part, "choices": [], "usage": reply["usage"]}]
        lines = "".join(f"data: {json.dumps(one)}\n\n" for one in parts) + "data: [DONE]\n\n"
        self._send(200, lines.encode(), "text/event-stream")

    def _turn(self) -> tuple[Any, dict[str, Any]]:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LONGEST:
            self.close_connection = True  # its body stays unread
            raise NoTurn(413, f"Expected a body of at most {LONGEST >> 20} MiB, and its content-length.")
        data = self.rfile.read(int(length))
        if not self.path.partition("?")[0].endswith("/chat/completions"):
            raise NoTurn(404, f"There is no {self.path}; expected /v1/chat/completions.")
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            raise NoTurn(400, "The body is no JSON.") from None
        return body, self.server.ask(self.headers.get("authorization", ""), body, self.connection)

    def _send(self, status: int, body: Mapping[str, Any] | bytes, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""
