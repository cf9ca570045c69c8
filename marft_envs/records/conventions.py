"""What a span says of a call of a model, by the conventions for its attributes that are in use.

OpenTelemetry's for generative AI: messages in attributes, in the event of the whole request, or in an event each, of
1.26 and later. Traceloop's and OpenInference's numbered keys, and those of the AI SDK, of Logfire and of Langfuse.
``conventions.toml`` has the keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marft_envs.records.chats import ChatMessage, UnreadableError, chat, first
from marft_envs.records.exports import TABLE
from marft_envs.records.messages import messages, tools
from marft_envs.records.spans import Event, Span, decoded

_KEYS: dict[str, str] = TABLE["keys"]
_KINDS: dict[str, str] = TABLE["kinds"]
_MODELS = {"llm", "chat_model", "generation"}
"""What a span of a model has under some key whose last letters are "kind" or "type"."""
_TURNS = {"chat", "text_completion", "generate_content", "invoke_agent"}
"""Operations that may be an agent's turn."""
_MODEL = re.compile(r"(?:.*[._])?(?:gen_?ai|llm|ai|langfuse|mlflow|openai|anthropic)[._].*model(?:[._]?(?:name|id))?")
"""Keys of a model's name."""
_NO_TURN = re.compile(r"embed|rerank|create_agent|workflow|retriev|moderat|image|speech|transcri|tool|task", re.I)
_PREPARES = re.compile(r".*\._?prepare_\w+")
"""Names of spans around no call, though they say that they are of a model."""
_OF_AN_AGENT = re.compile(r"\.(?:run|_execute_core)$")
"""What instruments add to an agent's name."""
_WRAPPERS = {"message", "message_content", "tool_call", "tool", "json_schema"}
"""Steps in OpenInference's keys that name what stands there."""
_CONVENTIONS = "OpenInference AI Traceloop Logfire MLflow Langfuse LangSmith GCP LLM"
"""What a key of each begins with."""
_WORDS = re.compile(r"(?i)(?:inputs?|outputs?|prompt|completion|request|response|messages?|content)(?:_json|\.value)?$")
"""Keys that may hold words."""
_WORDS_OF = ("content", "parts", "contents", "tool_calls", "function_call", "refusal")
"""Keys of what a message says."""
_USAGE = (
    r"(?:.*usage(?:_details)?\.)?(?:input|prompt)_?tokens|.*usage_details\.input|llm\.token_count\.prompt",
    r"(?:.*usage(?:_details)?\.)?(?:output|completion)_?tokens|.*usage_details\.output|llm\.token_count\.completion",
    r"(?:.*usage\.)?cost|.*cost_details\.total|llm\.cost\.total",
)
"""Keys of tokens of the prompt, of tokens of the reply, and of the cost."""
_DEEPEST = 50
"""Levels of a tool's definition."""


def operation(span: Span) -> str:
    """Returns what a span of a model, a tool or an agent does; "" if it is none."""
    named, kind = str(first(span.attributes, _KEYS["operation"])), _kind(span)
    if not named and kind in ("execute_tool", "embeddings"):
        return kind
    ends = (str(value).strip('"') for key, value in span.attributes.items() if key.lower().endswith(("kind", "type")))
    llm = model(span) or not _MODELS.isdisjoint(end.lower() for end in ends)
    if llm and not named:
        return "" if _PREPARES.fullmatch(span.name) else "chat"
    return named if llm or named in (*_TURNS, "execute_tool") else ""


def _kind(span: Span) -> str:
    return _KINDS.get(str(first(span.attributes, _KEYS["kind"])).strip('"').lower(), "")


def is_turn(span: Span) -> bool:
    """Whether it may be an agent's turn, if none is inside it."""
    return bool(done := operation(span)) and not _NO_TURN.search(done)


def frame(span: Span) -> str:
    """Returns what a span that is no turn does around or beside calls of models; "" if that needs no word."""
    done = operation(span) or ("an agent without calls" if _kind(span) == "agent" else "")
    return done if done != "execute_tool" else ""


def is_call(span: Span) -> bool:
    """Whether it is of one call of a model, if it is a turn."""
    return operation(span) != "invoke_agent"


def notes_the_same(outer: Span, inner: Span) -> bool:
    """Whether two spans are of one call, and the outer one alone has its words; it takes the rest from the inner."""
    same = is_call(outer) and is_call(inner) and not _speaks(inner) and _speaks(outer)
    if same:
        outer.attributes = inner.attributes | outer.attributes
    return same


def _speaks(span: Span) -> bool:
    try:
        prompt, reply, _, _ = words(span)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        return True  # it has something, which is named where the turn is read
    return any(message.content for message in (*prompt, reply) if message)


def convention(span: Span) -> str:
    """Returns whose names a span's attributes have."""
    begun = {key.split(".")[0] for key in span.attributes}
    return span.source or next((name for name in _CONVENTIONS.split() if name.lower() in begun), "OpenTelemetry")


def agent(span: Span) -> str:
    """Returns whose turn it is, "" if it does not say.

    Raises:
        ValueError: A table in it is no JSON.
    """
    table = _whole(span.attributes)
    entity = "traceloop.entity.name" if table.get("traceloop.span.kind") == "agent" else ""
    named = first(table, f"{_KEYS['agent']} {entity}")
    return str(named or (_kind(span) == "agent" and _OF_AN_AGENT.sub("", span.name)) or "").strip('"')


def tool(span: Span) -> str:
    """Returns the name of the tool that a span calls."""
    return str(first(span.attributes, _KEYS["tool"], "") or span.name or "tool")


def model(span: Span) -> str:
    """Returns the name of the model."""
    found = (key for key, value in span.attributes.items() if value and _MODEL.fullmatch(key))
    return str(span.attributes.get(max(found, default=""), ""))  # "response" is behind "request"


def usage(table: Mapping[str, Any]) -> tuple[int, int, float | None]:
    """Returns tokens of prompt and reply, and the cost, None if it is not said.

    Raises:
        UnreadableError: One is negative, endless, or so large that it is none.
    """
    table, read = _whole(table), list[float | None]()
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


def joined(spans: Sequence[Span]) -> list[Span]:
    """Returns spans without those in which Logfire notes a streamed reply: it is of the span of its request."""
    kept, asked = list[Span](), dict[tuple[str, str], list[Span]]()
    spans = _once(spans)
    for span in spans:
        key = span.parent, str(first(span.attributes, "gen_ai.input.messages request_data"))
        if span.name.startswith("streaming response from") and asked.get(key):
            asked[key].pop(0).attributes.update(span.attributes)
            continue
        kept.append(span)
        if convention(span) == "Logfire" and not first(span.attributes, "gen_ai.output.messages response_data"):
            asked.setdefault(key, []).append(span)
    return kept


def _once(spans: Sequence[Span]) -> list[Span]:
    """Returns spans without the silent ones of a reply that another span has with its words, as clients note it too."""
    of_a_reply: dict[str, list[Span]] = {}
    for span in spans:
        if (key := _reply_id(span)) and is_turn(span):
            of_a_reply.setdefault(key, []).append(span)
    silent = set[Span]()
    for those in (those for those in of_a_reply.values() if len(those) > 1):
        quiet = [span for span in those if not _speaks(span)]
        worded = {convention(span) for span in set(those) - set(quiet)}  # of one alone: servers that repeat an id
        silent |= {span for span in quiet if worded - {convention(span)}}
    return [span for span in spans if span not in silent]


def _reply_id(span: Span) -> str:
    """Returns the id that the model's server gave to a reply."""
    whole = span.attributes.get("output.value")
    found = re.match(r'\{"id": ?"([^"]{1,200})"', whole) if isinstance(whole, str) else None
    return str(first(span.attributes, "gen_ai.response.id") or (found[1] if found else ""))


def words(span: Span) -> tuple[Sequence[ChatMessage], ChatMessage | None, Sequence[Any], int]:
    """Returns a model's prompt, its reply, its tools, and how many choices there are beside the first.

    Raises:
        UnreadableError: A message cannot be read.
    """
    table = _stated(span)
    prompt, beside = _side(table, "user")
    said, _ = _side(table, "assistant")
    text, called = first(table, "ai.response.text ai.response.object"), decoded(table.get("ai.response.toolCalls"))
    if not said and (text or called):
        said = [{"role": "assistant", "content": text, "tool_calls": called}]
    listed = ((str(event.get("event.name")), event) for event in decoded(first(table, "events", ())))
    asked, answered = _in_events([*span.events, *listed])
    if not answered and asked and "events" in table and asked[-1]["role"] == "assistant":  # Logfire has no choices
        answered = [asked.pop()]
    prompt, said = prompt or asked, said or answered
    if system := decoded(table.get("gen_ai.system_instructions")):
        prompt = [{"role": "system", "parts": system}, *prompt]
    more = max(0, len(said) - 1) if all(one["role"] in ("assistant", "model") for one in said) else 0
    if not more:  # of a conversation the last message is the reply
        prompt, said = [*prompt, *said[:-1]], said[-1:]
    held = said and any(said[0].get(key) is not None for key in _WORDS_OF)  # a role alone is no reply
    reply = chat(said[:1])[0] if held else None
    if table.get("marft.input", "replayed") != "replayed":
        return (), reply, (), more
    given = decoded(first(table, _KEYS["tools"], ())) or _nested(table, "llm.tools.") or beside
    return chat(prompt), reply, definitions(given), more


def elsewhere(span: Span) -> str:
    """Returns a key under which there may be words that are not read, or ""."""
    texts = (key for key, value in _stated(span).items() if value and isinstance(value, str | list | dict))
    return next((key for key in texts if _WORDS.search(key) and not key.startswith("gen_ai.")), "")


def _stated(span: Span) -> dict[str, Any]:
    """Returns a span's attributes with those of its events, without what was taken out."""
    table = {key: value for _, event in span.events for key, value in event.items() if key.startswith("gen_ai.")}
    return {key: value for key, value in (table | span.attributes).items() if value != "__REDACTED__"}


def _whole(table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns attributes with the entries of the tables in them that say more of the span."""
    more = ((key, decoded(table.get(key))) for key in _KEYS["more"].split())
    inner = ((key, name, value) for key, one in more if isinstance(one, Mapping) for name, value in one.items())
    return {name if key == "metadata" else f"{key}.{name}": value for key, name, value in inner} | dict(table)


def _side(table: Mapping[str, Any], role: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Returns the messages of one side, by the first key that has some or by numbered ones, and the tools beside."""
    key = next((key for key in _KEYS["input" if role == "user" else "output"].split() if table.get(key)), "")
    if not key:
        side = ("prompt", "input") if role == "user" else ("completion", "output")
        listed = _nested(table, f"gen_ai.{side[0]}.") or _nested(table, f"llm.{side[1]}_messages.")
        whole = decoded(table.get("output.value")) if role == "assistant" and not listed else ()
        found = messages(whole if isinstance(whole, list | dict) else listed or (), role)
        return [one for one in found if listed or first(one, "content parts tool_calls")], []
    value = table[key]
    try:
        value = decoded(value)
        found = messages(value, role)
    except ValueError:
        if key.endswith("messages") or not isinstance(table[key], str):
            raise
        return [{"role": role, "content": table[key]}], []  # a text that only looks like JSON of messages
    definitions = [one["content"] for one in found if _defines(one)]  # as Langfuse notes LangChain's
    return [one for one in found if not _defines(one)], [*tools(value), *definitions]


def _defines(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return message.get("role") == "tool" and isinstance(content, Mapping) and content.get("type") == "function"


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
    listed = list(_lists(root)) if root else []
    for call in (call for one in listed if prefix.endswith("_messages.") for call in one.get("tool_calls") or ()):
        call["function"] = {"arguments": "{}"} | call["function"]  # OpenInference leaves arguments of {} out
    return listed


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
