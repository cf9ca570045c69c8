"""Requests of OpenAI's chat-completions API: each field is read and heeded, or refused in words; and the answers."""

from __future__ import annotations

import json
import secrets
import time
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from marft_envs.server.door import RefusedRequest

_PIECE, _PIECES = 16, 256
"""Characters of a piece of a streamed answer, at the least; and most pieces."""
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
Reply = Mapping[str, Any]
"""``message`` (``content``, and ``tool_calls`` if there are some), ``finish_reason`` (``stop``, ``length`` or
``tool_calls``), ``usage`` (``prompt_tokens``, ``completion_tokens``, ``total_tokens``); where there are some,
``logprobs`` of its tokens, and ``more`` fields of the answer."""
Only = Mapping[str, Sequence[Any]]
"""Field that changes what is answered -> the values that are heeded, and what to send."""
TABLE = tomllib.loads((resources.files("marft_envs.server") / "requests.toml").read_text(encoding="utf-8"))


def fields(api: str) -> Only:
    """Returns the fields of ``requests.toml`` that an API has, or that any has."""
    entries = {**TABLE["any"], **TABLE[api]}
    return {name: entry for names, entry in entries.items() for name in names.split()}


_ONLY = fields("chat")
_TYPES = {"stream": bool, "parallel_tool_calls": bool, "stream_options": dict, "model": str, "user": str}
_SPELT: Mapping[type, str] = {bool: "true or false", dict: "an object", str: "text"}


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
    stop: tuple[str, ...]
    """Texts before the first of which an answer ends."""
    body: dict[str, Any]
    """All fields."""
    raw: bytes
    """As it came."""


def cut(text: str, stop: Sequence[str]) -> str:
    """Returns an answer up to the first of the texts that are to end it."""
    return text[: min((at for one in stop if (at := text.find(one)) >= 0), default=None)]


def read(data: bytes, heeds: Collection[str] = ()) -> ChatRequest:
    """Reads a request's body.

    Args:
        data: As it came.
        heeds: Fields that the server heeds itself, among those that are otherwise refused.

    Raises:
        RefusedRequest: It is none, or asks for what cannot be given; the words name the field.
    """
    body = loaded(data, "messages")
    if not isinstance(body["messages"], list):
        raise wrong(body, "messages", "a list with a message at least")
    checked(body, _ONLY, heeds)
    return request([message_of(message) for message in body["messages"]], body, data)


def loaded(data: bytes, field: str) -> dict[str, Any]:
    """Returns a body with what an answer is to be given to; raises ``RefusedRequest`` for what is none."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "The body is no JSON.") from None
    if not isinstance(body, dict) or not body.get(field):
        says = f"Expected a JSON object with '{field}', with a message at least."
        raise RefusedRequest(400, says, field=field)
    return body


def checked(body: Mapping[str, Any], only: Only, heeds: Collection[str] = ()) -> None:
    """Raises ``RefusedRequest`` for a field with a value that is not heeded, or of a wrong type."""
    for name, (heeded, expected) in only.items():
        if name not in heeds and body.get(name) is not None and body[name] not in heeded:
            raise wrong(body, name, expected)
    for name, kind in _TYPES.items():
        if body.get(name) is not None and not isinstance(body[name], kind):
            raise wrong(body, name, _SPELT[kind])


def request(messages: list[dict[str, Any]], body: dict[str, Any], raw: bytes) -> ChatRequest:
    """Returns a request whose tools and choice of one are as the chat API writes them."""
    tools = body.get("tools") or []
    names = [_name(tool) for tool in tools] if isinstance(tools, list) else [""]
    if "" in names:
        given = tools if isinstance(tools, list) else []
        kind = next((t.get("type") for t in given if isinstance(t, dict) and not _name(t)), None)
        none = "" if kind in (None, "function") else f": a tool of type '{str(kind)[:40]}' runs nowhere here"
        raise wrong(body, "tools", f"a list of functions with names{none}")
    choice, function = _choice(body, names)
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(one, str) and one for one in stop):
        raise wrong(body, "stop", "a text, or a list of texts")
    return ChatRequest(messages, tools, choice, function, tuple(stop), body, raw)


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
        raise wrong(body, "tool_choice", "auto, none, or, of tools that are there, required or a function's name")
    return "required", name


def wrong(body: Mapping[str, Any], name: str, expected: str) -> RefusedRequest:
    """Returns the refusal of a field."""
    value = body[name]
    shown = json.dumps(value)[:80] if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return RefusedRequest(400, f"{name} is {shown}; expected {expected}.", field=name)


def message_of(message: Any) -> dict[str, Any]:
    """Returns a message with its content as one text; raises ``RefusedRequest`` for what is none."""
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise RefusedRequest(400, f"A message is no object with a role: {', '.join(_ROLES)}.", field="messages")
    content = message.get("content") or message.get("refusal")
    texts = []
    for part in content if isinstance(content, list) else [{"text": content or ""}]:
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            says = f"A message of '{message['role']}' has a part of type '{str(kind)[:40]}' that is no text"
            raise RefusedRequest(400, f"{says}; agents read text alone.", field="messages")
        texts.append(text)
    return {**message, "content": "".join(texts)}


def whole(asked: ChatRequest, model: str, reply: Reply) -> dict[str, Any]:
    """Returns an answer that bears the name of a model."""
    choice = {"index": 0, "logprobs": reply.get("logprobs"), "finish_reason": reply["finish_reason"]}
    choices = [{**choice, "message": {"role": "assistant", **reply["message"]}}]
    about = {**_about(model), "object": "chat.completion", "choices": choices}
    return {**about, "usage": reply["usage"], **reply.get("more", {})}


def events(asked: ChatRequest, model: str, reply: Reply) -> str:
    """Returns the same as a stream of events; what is ``more`` is part of the last that has a choice."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None}
    counted = (asked.body.get("stream_options") or {}).get("include_usage")
    about = {**_about(model), "object": "chat.completion.chunk", **({"usage": None} if counted else {})}
    deltas: list[dict[str, Any]] = [{"content": piece} for piece in pieces(reply["message"]["content"] or "")]
    if calls := reply["message"].get("tool_calls"):
        deltas.append({"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
    deltas = [{"role": "assistant", **(deltas[0] if deltas else {"content": ""})}, *deltas[1:]]
    made = [{**about, "choices": [{**choice, "delta": delta}]} for delta in deltas]
    made[0]["choices"][0]["logprobs"] = reply.get("logprobs")
    last = {**choice, "finish_reason": reply["finish_reason"], "delta": {}}
    made.append({**about, "choices": [last], **reply.get("more", {})})
    if counted:
        made.append({**about, "choices": [], "usage": reply["usage"]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in made) + "data: [DONE]\n\n"


def pieces(text: str) -> list[str]:
    """Returns a text as pieces to be streamed."""
    size = max(_PIECE, -(-len(text) // _PIECES))
    return [text[at : at + size] for at in range(0, len(text), size)]


def _about(model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{secrets.token_hex(8)}", "created": int(time.time()), "model": model}
