"""Requests of OpenAI's Responses API, read as those of a chat; and answers in its form.

Nothing is kept here: a client sends the whole conversation as ``input``, as libraries of agents do.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from marft_envs.server.chat import ChatRequest, Reply, checked, fields, loaded, message_of, pieces, request, wrong
from marft_envs.server.door import RefusedRequest

_ONLY = fields("responses")


def read(data: bytes, heeds: Collection[str] = ()) -> ChatRequest:
    """Reads a request's body; see :func:`marft_envs.server.chat.read`."""
    body = loaded(data, "input")
    checked(body, _ONLY)
    text, include = body.get("text") or {}, body.get("include") or []
    if not isinstance(text, dict) or (text.get("format") or {"type": "text"}) != {"type": "text"}:
        raise wrong(body, "text", "the format 'text'. Say in a message which form the answer is to have")
    logprobs = isinstance(include, list) and "message.output_text.logprobs" in include
    if not isinstance(include, list) or (logprobs and "logprobs" not in heeds):
        raise wrong(body, "include", "a list without logprobs: an answer is its words")
    messages = [*_messages(body)]
    if body.get("instructions"):
        messages.insert(0, message_of({"role": "system", "content": body["instructions"]}))
    tools = body.get("tools") or []
    nested = [_nested(tool) for tool in tools] if isinstance(tools, list) else tools
    choice = _nested(body.get("tool_choice"))
    return request(messages, {**body, "tools": nested, "tool_choice": choice, "logprobs": logprobs}, data)


def _nested(tool: Any) -> Any:
    """Returns a function as the chat API writes it; what is none, as it is."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}}


def _flat(tool: Any) -> Any:
    """Returns the same as this API writes it."""
    return {"type": "function", **tool["function"]} if isinstance(tool, dict) and "function" in tool else tool


def _messages(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the items of ``input`` as messages: calls of one answer are one, behind its words."""
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list):
        raise wrong(body, "input", "a text, or a list of items")
    said, last = dict[str, Any](), ""
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "reasoning":  # thoughts of an agent, which others do not read
            continue
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if said and (not (last and _answer_of(item)) or last == _answer_of(item)):
                said = {**said, "tool_calls": [*said.get("tool_calls", ()), call]}
            else:
                yield from filter(None, [said])
                said = {"role": "assistant", "content": "", "tool_calls": [call]}
            last = _answer_of(item)
            continue
        yield from filter(None, [said])
        if kind == "function_call_output":
            written = {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        elif kind == "message":
            written = {name: item[name] for name in ("role", "content") if name in item}
        else:
            says = f"'input' has an item of type '{str(kind)[:40]}'; expected messages, calls and their outputs."
            raise RefusedRequest(400, says, field="input")
        message, said, last = message_of(written), {}, _answer_of(item)
        if message["role"] == "assistant":
            said = message
        else:
            yield message
    yield from filter(None, [said])


def _answer_of(item: Mapping[str, Any]) -> str:
    """Returns what the ids of one answer's items have in common; "" where a client has left them out."""
    return "".join(str(item.get("id") or "").split("_")[1:2])


def whole(asked: ChatRequest, model: str, reply: Reply) -> dict[str, Any]:
    """Returns an answer that bears the name of a model."""
    name, message, usage = secrets.token_hex(12), reply["message"], reply["usage"]
    output, done = list[dict[str, Any]](), {"status": "completed"}
    if message["content"] or not message.get("tool_calls"):
        logprobs = (reply.get("logprobs") or {}).get("content", [])
        part = {"type": "output_text", "text": message["content"] or "", "annotations": [], "logprobs": logprobs}
        output.append({"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part], **done})
    for i, call in enumerate(message.get("tool_calls", ())):
        about = {"id": f"fc_{name}_{i}", "type": "function_call", "call_id": call["id"], **done}
        output.append(about | call["function"])
    cut = reply["finish_reason"] == "length"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
        **{field: asked.body.get(field) for field in ("instructions", "metadata", "temperature", "top_p")},
        "parallel_tool_calls": asked.body.get("parallel_tool_calls") is not False,
        "tools": [_flat(tool) for tool in asked.tools],
        "tool_choice": _flat(asked.body.get("tool_choice") or "auto"),
        **reply.get("more", {}),
    }


def events(asked: ChatRequest, model: str, reply: Reply) -> str:
    """Returns the same as a stream of events."""
    answer = whole(asked, model, reply)
    begun = answer | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    made = [{"type": "response.created", "response": begun}, {"type": "response.in_progress", "response": begun}]
    for i, item in enumerate(answer["output"]):
        made += _of_item(item, i)
    made.append({"type": f"response.{answer['status']}", "response": answer})
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': n})}\n\n"
        for n, event in enumerate(made)
    )


def _of_item(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Yields the events of one item of an answer."""
    where: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    if item["type"] == "message":
        kind, at, (part,) = "response.output_text", {**where, "content_index": 0}, item["content"]
        begun: dict[str, Any] = {"content": []}
        inner = [{"type": "response.content_part.added", **at, "part": {**part, "text": "", "logprobs": []}}]
        inner += [{"type": f"{kind}.delta", **at, "delta": p, "logprobs": []} for p in pieces(part["text"])]
        inner.append({"type": f"{kind}.done", **at, "text": part["text"], "logprobs": part["logprobs"]})
        inner.append({"type": "response.content_part.done", **at, "part": part})
    else:
        kind, begun, arguments = "response.function_call_arguments", {"arguments": ""}, item["arguments"]
        inner = [{"type": f"{kind}.delta", **where, "delta": arguments}]
        inner.append({"type": f"{kind}.done", **where, "name": item["name"], "arguments": arguments})
    begun = {**item, **begun, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    yield from inner
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
