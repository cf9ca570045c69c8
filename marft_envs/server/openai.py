"""A server that clients of OpenAI's API talk to: chat completions, responses and models."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from marft_envs.errors import did_you_mean
from marft_envs.server import chat, responses
from marft_envs.server.chat import ChatRequest, Reply
from marft_envs.server.door import LOOK_S, DoorHandler, FrontDoor, RefusedRequest, gone

WAITING = 64
"""Requests that may wait where one is answered after another; one more is refused."""
_FORMS = {"/chat/completions": chat, "/responses": responses}
_INSTEAD: dict[str, str] = chat.TABLE["instead"]
"""End of a path that is not served -> what is said of it."""


class ChatServer(FrontDoor):
    """A server of models."""

    models: Sequence[str]
    """Names that are listed."""
    heeds: Collection[str] = ()
    """Fields that it heeds, beside those that every such server does."""

    def named(self, asked: ChatRequest) -> str:
        """Returns whom a request asks: its ``user`` if that is one of the models, else its ``model``.

        Raises:
            RefusedRequest: There is none of that name.
        """
        user, model = (asked.body.get(name) or "" for name in ("user", "model"))
        if (agent := user if user in self.models else model) not in self.models:
            says = f"There is no agent '{agent}' in the team; expected as model one of them."
            raise RefusedRequest(404, f"{says} {did_you_mean(agent, self.models)}", "model_not_found")
        return agent


class OneByOne(ChatServer):
    """A server that answers one request after another.

    Args:
        handler: Answers requests.
        port: 0: any that is free.
        key: What clients show; None: nothing.
    """

    def __init__(self, handler: type[ChatHandler], port: int = 0, key: str | None = None) -> None:
        self.queue: list[socket.socket] = []
        """Lines of requests; the first is answered."""
        super().__init__(handler, port, key=key)

    @contextmanager
    def turn(self, line: socket.socket) -> Iterator[None]:
        """Waits until a request may be answered.

        Raises:
            ConnectionAbortedError: Its client has gone.
            RefusedRequest: Too many wait.
        """
        with self._moved:
            if len(self.queue) > WAITING:
                says = f"{WAITING} requests wait already. Ask again later."
                raise RefusedRequest(429, says, "queue_full", headers={"Retry-After": "5"})
            self.queue.append(line)
        try:
            with self._moved:
                while self.queue[0] is not line:
                    if gone(line):
                        raise ConnectionAbortedError
                    self._moved.wait(LOOK_S)
            yield
        finally:
            with self._moved:
                self.queue.remove(line)
                self._moved.notify_all()


class ChatHandler(DoorHandler):
    """Speaks OpenAI's API: lists models, reads requests, writes answers and errors."""

    server: ChatServer
    most = 64 << 20
    """Bytes of a request."""

    def do_GET(self) -> None:
        """Lists the models, which clients ask for before they talk to one; ``/health`` says that somebody is here."""
        about = {"object": "model", "created": 0, "owned_by": "marft"}
        made = {f"/v1/models/{name}": {"id": name, **about} for name in self.server.models}
        known = {"/health": {"status": "ok"}, "/v1/models": {"object": "list", "data": [*made.values()]}, **made}
        if (asked := unquote(self.route)) not in known:
            paths = " or ".join(f"/v1{path}" for path in _FORMS)
            raise RefusedRequest(404, f"There is no {asked[:100]}. Expected /v1/models, or {paths} by POST.")
        self.send_json(200, known[asked])

    def chat(self) -> ChatRequest:
        """Reads a request.

        Raises:
            RefusedRequest: It is none; its body stays unread where the head shows that.
        """
        form = self._form
        if self.for_browsers and self.headers.get_content_type() != "application/json":
            raise RefusedRequest(415, "Expected Content-Type: application/json.")
        return form.read(self.body(self.most), self.server.heeds)

    @property
    def _form(self) -> Any:
        for path, form in _FORMS.items():
            if self.route.endswith(path):
                return form
        instead = next((f" {words}" for path, words in _INSTEAD.items() if self.route.endswith(path)), "")
        paths = " or ".join(f"/v1{path}" for path in _FORMS)
        raise RefusedRequest(404, f"There is no {self.route[:100]}. Expected {paths}.{instead}", field="path")

    def answer(self, asked: ChatRequest, model: str, reply: Reply) -> None:
        """Sends an answer that bears the name of a model, whole or as events."""
        if asked.body.get("stream"):
            return self.send(200, "text/event-stream", self._form.events(asked, model, reply).encode())
        self.send_json(200, self._form.whole(asked, model, reply))

    def failure(self, refused: RefusedRequest) -> Any:
        """Returns a refusal in OpenAI's form."""
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        about = {"type": kind, "param": refused.field or None, "code": refused.code or refused.status}
        return {"error": {"message": str(refused), **about}}
