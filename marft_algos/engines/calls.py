"""Native tool calls of hosted models: the environment's text becomes calls and results, and calls become its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace as Part
from typing import TYPE_CHECKING, Any

from marft_algos.types import GenerationRequest

if TYPE_CHECKING:
    from marft_envs.call_formats import CallFormat, ToolCall

Message = dict[str, Any]
_RESULTS = re.compile(r"\[feedback(?:, round \d+)?\]\n")
_NEXT = re.compile(r"\n\n(?=\[\w[^\]\n]*\]\n)")
"""Before a message of another agent, in a prompt."""
_WRITTEN = '<tool_call>\n{{"name": {}, "arguments": {}}}\n</tool_call>'
"""A call as the endpoint has written it, its arguments a text of JSON: where they are wrong, the call is malformed."""
_BROKEN = re.compile(r'<tool_call>\n\{"name": ".*", "arguments": .*\}\n</tool_call>')

_FUNCTION = ("function", "function_call", None, "")
"""Types of calls of functions; some endpoints leave them out."""
_PROBED = {"name": "add", "description": "Adds two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
}}  # fmt: skip
PROBE = GenerationRequest(
    "", [], 0, messages=[{"role": "user", "content": "Call the tool add with a = 2 and b = 3, and say nothing else."}],
    tools=[{"type": "function", "function": _PROBED}],
)  # fmt: skip
"""What an endpoint that calls tools answers by a call."""


def spoken_in(request: GenerationRequest) -> CallFormat:
    """Returns the call format in which the environment of a request reads calls: that of which its profile tells."""
    from marft_envs.call_formats import CALL_FORMATS, DEFAULT, call_format

    system = "".join(message["content"] for message in request.messages if message["role"] == "system")
    return next((form for form in CALL_FORMATS.values() if form.use in system), call_format(DEFAULT))


def messages(request: GenerationRequest) -> list[Message]:
    """Returns a request's messages in the form of chat completions, with earlier calls and their results as such."""
    from marft_envs.call_formats import parse

    form, schemas, names, out = spoken_in(request), _schemas(request.tools), wire_names(request.tools), list[Message]()
    waiting: list[str] = []
    for message in request.messages:
        role, content = message["role"], message["content"]
        if role == "system":
            content = re.sub(r"\s*" + re.escape(form.use), "", content)
        elif role == "assistant":
            reply = parse(content, "any", schemas)
            calls, words = _broken(content) if reply.error else (reply.calls, reply.words)
            waiting = [f"call_{len(out)}_{k}" for k in range(len(calls))]
            if calls:
                sent = [_call(name, call, names) for name, call in zip(waiting, calls, strict=True)]
                out.append({"role": "assistant", "content": words or None, "tool_calls": sent})
                continue
        elif waiting:
            results, content = _results(content, len(waiting))
            for name, result in zip(waiting, results, strict=True):
                out.append({"role": "tool", "tool_call_id": name, "content": result})
            waiting = []
            if not content:
                continue
        out.append({**message, "content": content})
    return out


def received(chat: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns messages without empty replies, which strict endpoints refuse; what stood around one is one message."""
    out: list[Message] = []
    for message in chat:
        if out and message["role"] == out[-1]["role"] == "user":
            content = "\n\n".join(filter(None, (out[-1]["content"], message["content"])))
            out[-1] = {**message, **out[-1], "content": content}
        elif message["role"] != "assistant" or "tool_calls" in message or message["content"].strip():
            out.append(dict(message))
    return out


def wire_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns of each tool the name that endpoints take: 64 letters, digits, _ and - at most, each another."""
    out: dict[str, str] = {}
    for name in sorted(_schemas(tools), key=lambda name: _legal(name) != name):  # who has such a name keeps it
        wire, n = _legal(name), 2
        while wire in out.values():
            wire, n = f"{_legal(name)[:58]}_{n}", n + 1
        out[name] = wire
    return out


def offered(request: GenerationRequest, *, responses: bool) -> list[Message]:
    """Returns a request's tools as one of the two APIs takes them."""
    names = wire_names(request.tools)
    functions = [{**tool["function"], "name": names[tool["function"]["name"]]} for tool in request.tools]
    if responses:
        return [{"type": "function", "strict": False, **function} for function in functions]
    return [{**tool, "function": function} for tool, function in zip(request.tools, functions, strict=True)]


def shown(message: Mapping[str, Any], *, responses: bool) -> Message:
    """Returns a message whose images are parts of its content, as the two APIs take them."""
    if "images" not in message:
        return dict(message)
    text, kind = ("input_text", "input_image") if responses else ("text", "image_url")
    images = [{"type": kind, "image_url": url if responses else {"url": url}} for url in message["images"]]
    return {"role": message["role"], "content": [{"type": text, "text": message["content"]}, *images]}


def items(chat: Sequence[Message]) -> Iterator[Message]:
    """Yields messages of chat completions as input items of the Responses API."""
    for message in chat:
        if message["role"] == "tool":
            yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        elif message["content"] or "tool_calls" not in message:
            spoken = shown(message, responses=True)
            yield {"role": spoken["role"], "content": spoken["content"] or ""}
        for call in message.get("tool_calls", ()):
            yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def named(message: Any) -> list[tuple[str, Any]]:
    """Returns the calls of a message, in either of its forms: name, and arguments as the endpoint has written them."""
    calls = [call for call in message.tool_calls or () if call.type in _FUNCTION]
    functions = [getattr(call, "function", None) or call for call in calls or filter(None, [message.function_call])]
    return [(str(each.name), getattr(each, "arguments", None)) for each in functions if getattr(each, "name", None)]


def text_of(request: GenerationRequest, words: str, calls: Sequence[tuple[str, Any]]) -> str:
    """Returns a reply with native calls, each a name and arguments, as its environment reads it.

    What a model has written wrong stays wrong: arguments that are no JSON object make it malformed. A call that its
    words hold, too, is one.
    """
    from marft_envs.call_formats import ToolCall, parse

    form, schemas = spoken_in(request), _schemas(request.tools)
    names = {wire: name for name, wire in wire_names(request.tools).items()}
    pairs = [(json.dumps(names.get(name, name)), json.dumps(arguments)) for name, arguments in calls]
    written = "\n".join(_WRITTEN.format(*pair) for pair in pairs)
    reply, beside = parse(written), parse(words, "any", schemas)
    if not reply.error:
        more = [ToolCall(names.get(name, name), arguments) for name, arguments in beside.calls]
        more = [call for call in more if call not in reply.calls]
        words = beside.words if beside.calls else words
        with suppress(ValueError):  # a name that the call format cannot write: it is malformed
            written = form.write([*more, *reply.calls], schemas)
    return written if form.alone or not words else f"{words}\n{written}"


def completion(answer: Any) -> Any:
    """Returns an answer of the Responses API as the completion that it would be."""
    parts = [part for item in answer.output if item.type == "message" for part in item.content]
    calls = [item for item in answer.output if item.type in _FUNCTION]
    cut = answer.incomplete_details.reason if answer.incomplete_details else ""
    finish = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(cut, "stop")
    finish = finish if answer.status in ("completed", "incomplete") else "error"
    text, refusal = ("".join(getattr(part, kind, "") for part in parts) for kind in ("text", "refusal"))
    message = Part(content=text, refusal=refusal, tool_calls=calls, function_call=None)
    used = answer.usage
    usage = used and Part(prompt_tokens=used.input_tokens, completion_tokens=used.output_tokens)
    return Part(choices=[Part(finish_reason=finish, message=message)], usage=usage)


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def _legal(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"


def _call(name: str, call: ToolCall, names: Mapping[str, str]) -> Message:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    function = {"name": names.get(call.name, _legal(call.name)), "arguments": arguments}
    return {"id": name, "type": "function", "function": function}


def _broken(content: str) -> tuple[list[ToolCall], str]:
    """Returns the calls of a malformed reply as their endpoint wrote them, if it did, and its words.

    Arguments that are no JSON object stand in one, as endpoints refuse all else.
    """
    from marft_envs.call_formats import ToolCall, parse

    out: list[ToolCall] = []
    try:
        for text in _BROKEN.findall(content):
            call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            out += parse(text).calls or [ToolCall(call["name"], {"INVALID_JSON": call.get("arguments")})]
    except (ValueError, RecursionError):
        return [], content
    return out, _BROKEN.sub("", content).strip()


def _results(content: str, n: int) -> tuple[list[str], str]:
    """Returns the results of n calls, and the rest of the prompt; nothing of it is lost.

    They are its first contribution, a line each; one line is the result of all. Where lines are fewer or more, the last
    call gets all of them.
    """
    if (begins := _RESULTS.match(content)) is None:
        return [""] * n, content
    shown, *rest = _NEXT.split(content[begins.end() :], maxsplit=1)
    lines = shown.split("\n")
    lines = lines * n if len(lines) == 1 else lines
    return lines if len(lines) == n else [*[""] * (n - 1), shown], "".join(rest)
