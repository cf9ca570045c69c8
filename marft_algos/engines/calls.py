"""Native tool calls of hosted models: the environment's text becomes calls and results, and calls become its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace as Part
from typing import Any

from marft_algos.types import GenerationRequest
from marft_envs.families.tools import ToolCall
from marft_envs.families.tools.dialects import DEFAULT, DIALECTS, Dialect, dialect, parse

Message = dict[str, Any]
_RESULTS = re.compile(r"\[feedback(?:, round \d+)?\]\n")
_NEXT = re.compile(r"\n\n(?=\[\w[^\]\n]*\]\n)")
"""Before a contribution of somebody else, in what an agent is told."""
_FALLBACK = '<tool_call>\n{{"name": {}, "arguments": {}}}\n</tool_call>'
"""A call that no dialect can write, as its environment reads it: malformed, whatever is between the braces."""

_PROBED = {"name": "add", "description": "Adds two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
}}  # fmt: skip
PROBE = GenerationRequest(
    "", [], 0, messages=[{"role": "user", "content": "Call the tool add with a = 2 and b = 3, and say nothing else."}],
    tools=[{"type": "function", "function": _PROBED}],
)  # fmt: skip
"""What an endpoint that calls tools answers by a call."""


def spoken_in(request: GenerationRequest) -> Dialect:
    """Returns the dialect in which the environment of a request reads calls: that of which its profile tells."""
    system = "".join(message["content"] for message in request.messages if message["role"] == "system")
    return next((form for form in DIALECTS.values() if form.use in system), dialect(DEFAULT))


def messages(request: GenerationRequest) -> list[Message]:
    """Returns a request's messages in the form of chat completions, with earlier calls and their results as such."""
    form, schemas, out = spoken_in(request), _schemas(request.tools), list[Message]()
    waiting: list[str] = []
    for message in request.messages:
        role, content = message["role"], message["content"]
        if role == "system":
            content = re.sub(r"\s*" + re.escape(form.use), "", content)
        elif role == "assistant":
            reply = parse(content, "any", schemas)
            waiting = [f"call_{len(out)}_{k}" for k in range(len(reply.calls))]
            if reply.calls:
                calls = [_call(name, call) for name, call in zip(waiting, reply.calls, strict=True)]
                out.append({"role": "assistant", "content": reply.words or None, "tool_calls": calls})
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


def shown(message: Mapping[str, Any], responses: bool) -> Message:
    """Returns a message whose images are parts of its content, as the two APIs take them."""
    if "images" not in message:
        return dict(message)
    kind = "input_{}" if responses else "{}"
    parts: list[Message] = [{"type": kind.format("text"), "text": message["content"]}]
    for url in message["images"]:
        image = {"type": "input_image", "image_url": url}
        parts.append(image if responses else {"type": "image_url", "image_url": {"url": url}})
    return {"role": message["role"], "content": parts}


def items(chat: Sequence[Message]) -> Iterator[Message]:
    """Yields messages of chat completions as input items of the Responses API."""
    for message in chat:
        if message["role"] == "tool":
            yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
        elif message["content"] or "tool_calls" not in message:
            spoken = shown(message, True)
            yield {"role": spoken["role"], "content": spoken["content"] or ""}
        for call in message.get("tool_calls", ()):
            yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def text_of(request: GenerationRequest, words: str, calls: Sequence[tuple[str, str]]) -> str:
    """Returns a reply with native calls, each a name and arguments in JSON, as its environment reads it.

    What a model has written wrong stays wrong: arguments that are no JSON object make it malformed.
    """
    form = spoken_in(request)
    try:
        read = [ToolCall(name, json.loads(arguments or "{}")) for name, arguments in calls]
        if not all(isinstance(call.arguments, Mapping) for call in read):
            raise ValueError("no object")
        written = form.write(read, _schemas(request.tools))
    except (ValueError, RecursionError):
        written = "\n".join(_FALLBACK.format(json.dumps(name), arguments) for name, arguments in calls)
    return written if form.alone or not words else f"{words}\n{written}"


def completion(answer: Any) -> Any:
    """Returns an answer of the Responses API as the completion that it would be."""
    parts = [part for item in answer.output if item.type == "message" for part in item.content]
    named = [Part(type="function", function=item) for item in answer.output if item.type == "function_call"]
    cut = answer.incomplete_details.reason if answer.incomplete_details else ""
    finish = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(cut, "stop")
    finish = finish if answer.status in ("completed", "incomplete") else "error"
    text, refusal = ("".join(getattr(part, kind, "") for part in parts) for kind in ("text", "refusal"))
    message = Part(content=text, refusal=refusal, tool_calls=named, function_call=None)
    used = answer.usage
    usage = used and Part(prompt_tokens=used.input_tokens, completion_tokens=used.output_tokens)
    return Part(choices=[Part(finish_reason=finish, message=message)], usage=usage)


def _schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


def _call(name: str, call: ToolCall) -> Message:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _results(content: str, n: int) -> tuple[list[str], str]:
    """Returns the results of n calls, and what else an agent was told; nothing of it is lost.

    They are its first contribution, a line each. Where lines are fewer or more, the last call gets all of them.
    """
    begins = _RESULTS.match(content)
    if begins is None:
        return [""] * n, content
    shown, *rest = _NEXT.split(content[begins.end() :], maxsplit=1)
    lines = shown.split("\n")
    return lines if len(lines) == n else [*[""] * (n - 1), shown], "".join(rest)
