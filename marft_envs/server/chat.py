"""Requests of OpenAI's chat-completions API: each field is read and heeded, or refused in words; and the answers."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from marft_envs.server.door import DoorHandler, FrontDoor, RefusedRequest

PATH = "/v1/chat/completions"
_PIECE = 16
"""Characters of a piece of a streamed answer."""
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "n": ((1,), "1: a request is one turn. Ask several times"),
    "response_format": (({"type": "text"},), "text. Say in a message which form the answer is to have"),
    "logprobs": ((False,), "none: an answer is its words"),
    "top_logprobs": ((0,), "none: an answer is its words"),
    "functions": (([],), "'tools', which have come in their place"),
    "function_call": (("none", "auto"), "'tool_choice', which has come in its place"),
    "modalities": ((["text"],), "text"),
    "web_search_options": ((), "none: an agent searches by a tool of its own"),
}
"""Fields that change what is answered -> the values that are heeded, and what to send."""
_TYPES = {"stream": bool, "parallel_tool_calls": bool, "stream_options": dict, "model": str, "user": str}
_SPELT: Mapping[type, str] = {bool: "true or false", dict: "an object", str: "text"}
_INSTEAD = {
    "/responses": " With OpenAI's Agents SDK: OpenAIChatCompletionsModel.",
    "/embeddings": " Agents chat; embed with a server of your own.",
    "/completions": " Send the prompt as a message of 'user'.",
}


@dataclass(frozen=True)
class ChatRequest:
    """What a client asks."""

    messages: list[dict[str, Any]]
    """Each with ``role`` and ``content`` (text), and what else the client wrote."""
    tools: list[dict[str, Any]]
    choice: str
    """``auto``, ``none`` or ``required``: whether the answer is to be a call."""
    function: str
    """The one to be called; "": any."""
    body: dict[str, Any]
    """All fields."""
    raw: bytes
    """As it came."""


def read(data: bytes) -> ChatRequest:
    """Reads a request's body.

    Raises:
        RefusedRequest: It is none, or asks for what cannot be given; the words name the field.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "The body is no JSON.") from None
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        says = "Expected a JSON object with 'messages', a list with a message at least."
        raise RefusedRequest(400, says, field="messages")
    for name, (heeded, expected) in _ONLY.items():
        if body.get(name) is not None and body[name] not in heeded:
            raise _wrong(body, name, expected)
    for name, kind in _TYPES.items():
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise _wrong(body, name, _SPELT[kind])
    tools = body.get("tools") or []
    names = [_name(tool) for tool in tools] if isinstance(tools, list) else [""]
    if "" in names:
        raise _wrong(body, "tools", "a list of functions with names")
    choice, function = _choice(body, names)
    return ChatRequest([_message(message) for message in body["messages"]], tools, choice, function, body, data)


def _name(tool: Any) -> str:
    """Returns the name of a function; "" of what is none."""
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _choice(body: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str]:
    """Returns whether there is to be a call, and the function that it is to be of."""
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none") or (choice == "required" and names):
        return choice or "auto", ""
    if (name := _name(choice)) not in names:
        raise _wrong(body, "tool_choice", "auto, none, or, of tools that are there, required or a function's name")
    return "required", name


def _wrong(body: Mapping[str, Any], name: str, expected: str) -> RefusedRequest:
    return RefusedRequest(400, f"{name} is {_shown(body[name])}; expected {expected}.", field=name)


def _shown(value: Any) -> str:
    return json.dumps(value)[:80] if isinstance(value, str | int | float) else f"a {type(value).__name__}"


def _message(message: Any) -> dict[str, Any]:
    """Returns a message with its content as one text."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RefusedRequest(400, f"A message is no object with a role: {', '.join(_ROLES)}.", field="messages")
    content = message.get("content")
    texts = []
    for part in content if isinstance(content, list) else [{"text": content or ""}]:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            says = f"A message of '{message['role']}' has a part of type '{str(kind)[:40]}' that is no text"
            raise RefusedRequest(400, f"{says}; agents read text alone.", field="messages")
        texts.append(text)
    return {**message, "content": "".join(texts)}


class ChatServer(FrontDoor):
    """A server of models."""

    models: Sequence[str]
    """Names that are listed."""


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
            raise RefusedRequest(404, f"There is no {asked[:100]}. Expected /v1/models, or {PATH} by POST.")
        self.send_json(200, known[asked])

    def chat(self) -> ChatRequest:
        """Reads a request.

        Raises:
            RefusedRequest: It is none; its body stays unread where the head shows that.
        """
        if not self.route.endswith("/chat/completions"):
            instead = next((words for path, words in _INSTEAD.items() if self.route.endswith(path)), "")
            raise RefusedRequest(404, f"There is no {self.route[:100]}. Expected {PATH}.{instead}")
        if self.for_browsers and self.headers.get_content_type() != "application/json":
            raise RefusedRequest(415, "Expected Content-Type: application/json.")
        return read(self.body(self.most))

    def answer(
        self, asked: ChatRequest, model: str, message: Mapping[str, Any], finish: str, usage: Any, **more: Any
    ) -> None:
        """Sends an answer, whole or as events.

        Args:
            asked: The request.
            model: The name that the answer bears.
            message: ``content``, and ``tool_calls`` if there are some.
            finish: Why it ends.
            usage: ``prompt_tokens`` and so on.
            **more: Further fields, of the last event.
        """
        about = {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": int(time.time()), "model": model}
        choice = {"index": 0, "logprobs": None, "finish_reason": finish}
        if not asked.body.get("stream"):
            choices = [{**choice, "message": {"role": "assistant", **message}}]
            about |= {"object": "chat.completion", "choices": choices, "usage": usage}
            return self.send_json(200, {**about, **more})
        counted = (asked.body.get("stream_options") or {}).get("include_usage")
        about |= {"object": "chat.completion.chunk", **({"usage": None} if counted else {})}
        words = message["content"] or ""
        deltas: list[dict[str, Any]] = [{"content": words[at : at + _PIECE]} for at in range(0, len(words), _PIECE)]
        if calls := message.get("tool_calls"):
            deltas.append({"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
        deltas = [{"role": "assistant", **(deltas[0] if deltas else {"content": ""})}, *deltas[1:]]
        events = [{**about, "choices": [{**choice, "finish_reason": None, "delta": delta}]} for delta in deltas]
        events.append({**about, "choices": [{**choice, "delta": {}}], **more})
        if counted:
            events.append({**about, "choices": [], "usage": usage})
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.send(200, "text/event-stream", lines.encode())

    def failure(self, refused: RefusedRequest) -> Any:
        """Returns a refusal in OpenAI's form."""
        kind = "invalid_request_error" if refused.status < 500 else "server_error"
        about = {"type": kind, "param": refused.field or None, "code": refused.code or refused.status}
        return {"error": {"message": str(refused), **about}}
