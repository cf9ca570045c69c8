"""What a span says of a call of a model, by the conventions for its attributes that are in use.

OpenTelemetry's for generative AI: messages in attributes, in the event of the whole request, or in an event each, of
1.26 and later. Traceloop's and OpenInference's numbered keys, and those of the AI SDK and of Logfire.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marft_envs.records.chats import ChatMessage, UnreadableError, chat, first
from marft_envs.records.spans import Event, Span, decoded

_TURNS = {"chat", "text_completion", "generate_content", "invoke_agent"}
"""Operations that may be an agent's turn."""
_KINDS = {"llm", "chat_model", "generation"}
_MODEL = re.compile(r"(?:.*[._])?(?:gen_?ai|llm|ai|langfuse|mlflow|openai|anthropic)[._].*model(?:[._]?(?:name|id))?")
"""Keys of a model's name."""
_NO_TURN = re.compile(r"embed|rerank|create_agent|workflow|retriev|moderat|image|speech|transcri|tool", re.I)
_WRAPPERS = {"message", "message_content", "tool_call", "tool", "json_schema"}
"""Steps in OpenInference's keys that name what stands there."""
_CONVENTIONS = "OpenInference AI Traceloop Logfire MLflow Langfuse LangSmith GCP LLM"
"""What a key of each begins with."""
_WORDS = re.compile(r"(?i)(?:inputs?|outputs?|prompt|completion|request|response|messages?|content)(?:_json|\.value)?$")
"""Keys that may hold words."""
_USAGE = (
    r"(?:.*usage\.)?(?:input|prompt)_?tokens|llm\.token_count\.prompt",
    r"(?:.*usage\.)?(?:output|completion)_?tokens|llm\.token_count\.completion",
    r"(?:.*usage\.)?cost|llm\.cost\.total",
)
"""Keys of tokens of the prompt, of tokens of the reply, and of the cost."""
_DEEPEST = 50
"""Levels of a tool's definition."""


def operation(span: Span) -> str:
    """Returns what a span of a model does; "" if it is none."""
    named = str(first(span.attributes, "gen_ai.operation.name llm.request.type ai.operationId"))
    kinds = [str(value).strip('"') for key, value in span.attributes.items() if key.lower().endswith(("kind", "type"))]
    llm = model(span) or not _KINDS.isdisjoint(kind.lower() for kind in kinds)
    return (named or "chat") if llm else named if named in _TURNS else ""


def is_turn(span: Span) -> bool:
    """Whether it may be an agent's turn, if none is inside it."""
    return bool(done := operation(span)) and not _NO_TURN.search(done)


def convention(span: Span) -> str:
    """Returns whose names a span's attributes have."""
    begun = {key.split(".")[0] for key in span.attributes}
    return next((name for name in _CONVENTIONS.split() if name.lower() in begun), "OpenTelemetry")


def agent(span: Span) -> str:
    """Returns whose turn it is, "" if it does not say."""
    table = span.attributes
    entity = "traceloop.entity.name" if table.get("traceloop.span.kind") == "agent" else ""
    keys = "gen_ai.agent.name agent.name agent_name graph.node.id ai.telemetry.functionId"
    return str(first(table, f"{keys} {entity}"))


def model(span: Span) -> str:
    """Returns the name of the model."""
    found = (key for key, value in span.attributes.items() if value and _MODEL.fullmatch(key))
    return str(span.attributes.get(max(found, default=""), ""))  # "response" is behind "request"


def usage(table: Mapping[str, Any]) -> tuple[int, int, float | None]:
    """Returns tokens of prompt and reply, and the cost, None if it is not said.

    Raises:
        UnreadableError: One is negative, endless, or so large that it is none.
    """
    read = list[float | None]()
    for pattern in _USAGE:
        values = (value for key, value in table.items() if value is not None and re.fullmatch(pattern, key, re.I))
        read.append(number := next(map(float, values), None))
        if number is not None and not 0 <= number < 1e15:
            raise UnreadableError(f"tokens or a cost of '{number:g}'")
    return int(read[0] or 0), int(read[1] or 0), read[2]


def definitions(tools: Any) -> Sequence[Any]:
    """Returns definitions of tools.

    Raises:
        UnreadableError: They are no list of tables, or are too deep.
        ValueError: They hold an endless number.
    """
    found = [decoded(tool) for tool in tools] if isinstance(tools, list | tuple) else [tools]
    level: list[Any] = found
    for _ in range(_DEEPEST):
        tables = (one for one in level if isinstance(one, Mapping | list))
        level = [x for one in tables for x in (one.values() if isinstance(one, Mapping) else one)]
    if level or not all(isinstance(tool, Mapping) for tool in found):
        raise UnreadableError("tools that are no list of definitions")
    json.dumps(found, allow_nan=False)
    return found


def joined(spans: Iterable[Span]) -> list[Span]:
    """Returns spans without those in which Logfire notes a streamed reply: it is of the span of its request."""
    kept, asked = list[Span](), dict[tuple[str, str], list[Span]]()
    for span in spans:
        key = span.parent, str(first(span.attributes, "gen_ai.input.messages request_data"))
        if span.name.startswith("streaming response from") and asked.get(key):
            asked[key].pop(0).attributes.update(span.attributes)
            continue
        kept.append(span)
        if convention(span) == "Logfire" and not first(span.attributes, "gen_ai.output.messages response_data"):
            asked.setdefault(key, []).append(span)
    return kept


def words(span: Span) -> tuple[Sequence[ChatMessage], ChatMessage | None, Sequence[Any], int]:
    """Returns a model's prompt, its reply, its tools, and how many choices there are beside the first.

    Raises:
        UnreadableError: A message cannot be read.
    """
    table = _stated(span)
    prompt = _side(table, "user", "gen_ai.input.messages gen_ai.prompt ai.prompt.messages input request_data")
    said = _side(table, "assistant", "gen_ai.output.messages gen_ai.completion output response_data")
    text, called = first(table, "ai.response.text ai.response.object"), decoded(table.get("ai.response.toolCalls"))
    if not said and (text or called):
        said = [{"role": "assistant", "content": text, "tool_calls": called}]
    listed = ((str(event.get("event.name")), event) for event in decoded(first(table, "events", ())))
    asked, answered = _in_events([*span.events, *listed])
    prompt, said = prompt or asked, said or answered
    if system := decoded(table.get("gen_ai.system_instructions")):
        prompt = [{"role": "system", "parts": system}, *prompt]
    more = max(0, len(said) - 1) if all(one["role"] in ("assistant", "model") for one in said) else 0
    if not more:  # of a conversation the last message is the reply
        prompt, said = [*prompt, *said[:-1]], said[-1:]
    reply = chat(said[:1])[0] if said else None
    if table.get("marft.input", "replayed") != "replayed":
        return (), reply, (), more
    tools = decoded(first(table, "gen_ai.tool.definitions ai.prompt.tools", ())) or _nested(table, "llm.tools.")
    return chat(prompt), reply, definitions(tools), more


def elsewhere(span: Span) -> str:
    """Returns a key under which there may be words that are not read, or ""."""
    texts = (key for key, value in _stated(span).items() if value and isinstance(value, str | list | dict))
    return next((key for key in texts if _WORDS.search(key) and not key.startswith("gen_ai.")), "")


def _stated(span: Span) -> dict[str, Any]:
    """Returns a span's attributes with those of its events, without what was taken out."""
    table = {key: value for _, event in span.events for key, value in event.items() if key.startswith("gen_ai.")}
    return {key: value for key, value in (table | span.attributes).items() if value != "__REDACTED__"}


def _side(table: Mapping[str, Any], role: str, keys: str) -> list[dict[str, Any]]:
    """Returns what stands under one of these keys, or under numbered ones, as messages."""
    value = decoded(first(table, keys, ()))
    if isinstance(value, Mapping):
        value = first(value, "messages message combined_chunk_content", [value] if "content" in value else ())
    listed = value if isinstance(value, list) else [value] if value else ()
    side = ("prompt", "input") if role == "user" else ("completion", "output")
    listed = listed or _nested(table, f"gen_ai.{side[0]}.") or _nested(table, f"llm.{side[1]}_messages.")
    return [{"role": role, **({"content": one} if isinstance(one, str) else one)} for one in listed]


def _nested(table: Mapping[str, Any], prefix: str) -> list[Any]:
    """Returns what stands under keys such as ``llm.output_messages.0.message.tool_calls.0.tool_call.id``."""
    root = dict[str, Any]()
    for key, value in table.items():
        if key.startswith(prefix):
            *path, last = [step for step in key.removeprefix(prefix).split(".") if step not in _WRAPPERS]
            place = root
            for step in path:
                place = place.setdefault(step, {})
            place[last] = value
    return list(_lists(root)) if root else []


def _lists(table: Any) -> Any:
    """Returns tables whose keys are numbers as lists."""
    if not isinstance(table, dict):
        return table
    inner = {key: _lists(value) for key, value in table.items()}
    numbered = all(key.isdecimal() for key in inner)
    return [inner[key] for key in sorted(inner, key=int)] if numbered and inner else inner


def _in_events(events: Iterable[Event]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the messages of the prompt, and the choices by their index."""
    prompt, choices = list[dict[str, Any]](), list[tuple[int, dict[str, Any]]]()
    for name, event in events:
        body = {**event, **(decoded(event.get("gen_ai.event.content")) or {})}
        if name == "gen_ai.choice":
            message = decoded(body.get("message")) or body
            choices.append((int(first(body, "index gen_ai.choice.index", 0)), {"role": "assistant", **message}))
        elif name.startswith("gen_ai.") and name.endswith(".message"):
            prompt.append({"role": name.split(".")[1], **body})
    return prompt, [message for _, message in sorted(choices, key=lambda choice: choice[0])]
