"""Reads what a team in production has logged: chats in OpenAI's form, and OpenTelemetry spans of generative AI.

Spans may be this project's own (``marft_envs.records.otel``), those of an SDK's console exporter, or OTLP in JSON as a
collector writes it; content may stand in ``gen_ai.input.messages`` and ``gen_ai.output.messages``, in events, or under
numbered keys (``gen_ai.prompt.0.content``). What cannot be read is named, and the rest is read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError
from marft_envs.records.chats import ChatMessage, UnreadableError, chat

CASES = "cases-v0"
"""The environment of a team's own tasks."""
_SAID = frozenset({"chat", "text_completion", "generate_content", "invoke_agent"})
"""Operations that may be an agent's turn."""


@dataclass(slots=True)
class TracedTurn:
    """One reply, with what its agent was told."""

    where: str
    agent: str
    said: ChatMessage | None = None
    """None: the trace does not hold it."""
    told: Sequence[ChatMessage] = ()
    """Empty: the trace does not hold it."""
    tools: Sequence[Any] = ()
    model: str = ""
    prompt_tokens: int = 0
    tokens: int = 0
    cost: float | None = None


@dataclass(slots=True)
class Trace:
    """One task that the team has worked on."""

    id: str
    kind: str = "trace"
    turns: list[TracedTurn] = field(default_factory=list)
    """In the order in which they began."""
    calls: list[tuple[str, bool]] = field(default_factory=list)
    """Tool, and whether the call went wrong."""
    success: bool | None = None
    """As an evaluation in the trace says."""


def read(paths: Sequence[str | Path]) -> tuple[list[Trace], list[str]]:
    """Reads files.

    Returns:
        The traces, in the order in which they begin in the files, and what could not be read: where, and why.

    Raises:
        DataError: A file cannot be opened.
    """
    traces, spans, unread = dict[str, Trace](), list[_Span](), list[str]()
    for path in paths:
        for where, content in _objects(Path(path), unread):
            with _noted(where, unread):
                found = list(_spans(content, where))
                spans += found
                if not found:
                    _logged(content, where, traces)
    _add(spans, traces, unread)
    for trace in traces.values():
        trace.calls = trace.calls or list(_calls(trace.turns))
    return [trace for trace in traces.values() if trace.turns], unread


@contextmanager
def _noted(where: str, unread: list[str]) -> Iterator[None]:
    """Notes what is wrong with what others wrote, and goes on."""
    try:
        yield
    except (UnreadableError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        unread.append(f"{where}: {error if isinstance(error, ValueError) else f'{type(error).__name__}: {error}'}")


def _objects(path: Path, unread: list[str]) -> Iterator[tuple[str, Any]]:
    """Yields the objects of a file with their places: one a line, or over several lines, or in one list."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}. Expected JSONL of chats or spans.") from error
    at, line, decoder = 0, 1, json.JSONDecoder()
    while rest := text[at : at + 1]:
        where, end = f"{path}, line {line}", at + 1
        if not rest.isspace():
            try:
                content, end = decoder.raw_decode(text, at)
                yield from ((where, part) for part in (content if isinstance(content, list) else [content]))
            except (ValueError, RecursionError) as error:
                unread.append(f"{where}: not JSON ({error})")
                end = text.find("\n", at) % (len(text) + 1)
        line, at = line + text.count("\n", at, end), end


def _first(table: Mapping[str, Any], keys: str, default: Any = "") -> Any:
    """Returns what stands under the first of these keys that is there and not empty."""
    return next((table[key] for key in keys.split() if table.get(key)), default)


# Chats -----------------------------------------------------------------------------------------------


def _logged(content: Any, where: str, traces: dict[str, Trace]) -> None:
    """Reads a request with its reply, or a whole chat, of which every assistant message is a turn."""
    request, response = _first(content, "request body", content), _first(content, "response completion")
    if "messages" not in request:
        raise UnreadableError("neither a span nor a chat: there is no 'messages'")
    messages, answer = chat(request["messages"]), response if isinstance(response, Mapping) else content
    if isinstance(response, str) and response:
        replies: Sequence[Any] = [{"role": "assistant", "content": response}]
    else:
        replies = [choice["message"] for choice in answer.get("choices") or ()][:1]
    turns = [(messages, said) for said in chat(replies)]
    turns = turns or [(messages[:i], said) for i, said in enumerate(messages) if said.role == "assistant"]
    if not turns:
        raise UnreadableError("a chat without a reply")
    more = {**_first(request, "metadata", {}), **_first(content, "metadata", {}), **content}
    trace_id = str(_first(more, "trace_id conversation_id session_id thread_id id", where))
    trace = traces.setdefault(trace_id, Trace(trace_id, str(_first(more, "kind workflow", "trace"))))
    trace.success = more["success"] if isinstance(more.get("success"), bool) else trace.success
    for told, said in turns:
        agent = str(_first(more, "agent agent_name") or said.name or "agent")
        turn = TracedTurn(where, agent, said, told, request.get("tools") or (), str(_first(request, "model")))
        trace.turns.append(turn)
    usage = _first(answer, "usage", {})
    turn.prompt_tokens, turn.tokens = (int(_first(usage, f"{kind}_tokens", 0)) for kind in ("prompt", "completion"))
    turn.cost = None if more.get("cost") is None else float(more["cost"])


def _calls(turns: Sequence[TracedTurn]) -> Iterator[tuple[str, bool]]:
    """Yields the calls whose results stand in chats, each once; a result that begins with an error went wrong."""
    names = {call: name for turn in turns if turn.said is not None for call, name in turn.said.calls}
    results = (result for turn in turns for message in turn.told for result in message.results)
    for call, text in dict.fromkeys(results):
        yield names.get(call, "tool"), text.lstrip(' {"').lower().startswith(("error", "exception", "traceback"))


# Spans -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Span:
    where: str
    trace: str
    id: str
    parent: str
    start: str
    attributes: Mapping[str, Any]
    events: list[tuple[str, Mapping[str, Any]]]
    failed: bool

    @property
    def operation(self) -> str:
        return str(_first(self.attributes, "gen_ai.operation.name llm.request.type"))


def _spans(content: Any, where: str) -> Iterator[_Span]:
    """Yields the spans in an object: of OTLP's JSON, or one of an SDK's."""
    for resource in content.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield from _spans({**span, "resource": resource.get("resource", {})}, where)
    context, status = content.get("context") or content, content.get("status") or {}
    span_id = str(_first(context, "span_id spanId"))
    if span_id and "attributes" in content:
        service = _attributes(_first(content, "resource", {}).get("attributes")).get("service.name")
        attributes = {"service.name": service, **_attributes(content["attributes"])}
        yield _Span(
            f"{where}, span {span_id}",
            str(_first(context, "trace_id traceId")),
            span_id,
            str(_first(content, "parent_id parentSpanId")),
            str(_first(content, "start_time startTimeUnixNano")),
            attributes,
            [(str(event["name"]), _attributes(event.get("attributes"))) for event in content.get("events") or ()],
            _first(status, "status_code code") in ("ERROR", "STATUS_CODE_ERROR", 2) or "error.type" in attributes,
        )


def _attributes(given: Any) -> dict[str, Any]:
    """Returns attributes by name; OTLP writes a list of keys and typed values."""
    pairs = given.items() if isinstance(given, Mapping) else ((pair["key"], _value(pair)) for pair in given or ())
    return dict(pairs)


def _value(pair: Mapping[str, Any]) -> Any:
    kind, value = next(iter((pair.get("value") or {"": None}).items()))
    if kind == "arrayValue":
        return [_value({"value": inner}) for inner in value.get("values", ())]
    return int(value) if kind == "intValue" else value


def _add(spans: Sequence[_Span], traces: dict[str, Trace], unread: list[str]) -> None:
    """Adds what spans say to the traces: a turn for each that may be one and has none inside."""
    by_id, around = {(span.trace, span.id): span for span in spans}, set[int]()

    def above(span: _Span | None) -> list[_Span]:
        found: list[_Span] = []
        while span is not None and span not in found:
            found.append(span)
            span = by_id.get((span.trace, span.parent))
        return found

    for span in spans:
        around |= {id(outer) for outer in above(span)[1:]} if span.operation in _SAID else set()
    for span in sorted(spans, key=lambda span: (len(span.start), span.start)):
        trace = traces.setdefault(span.trace, Trace(span.trace))
        with _noted(span.where, unread):
            _told_of(span, trace)
            if span.operation in _SAID and id(span) not in around:
                trace.turns.append(turn := TracedTurn(span.where, _agent(above(span))))
                _fill(turn, span)


def _told_of(span: _Span, trace: Trace) -> None:
    """Reads what a span says of its trace: a call, an evaluation, a name."""
    if span.operation == "execute_tool":
        trace.calls.append((str(_first(span.attributes, "gen_ai.tool.name", "tool")), span.failed))
    trace.id = str(_first(span.attributes, "marft.task_id", trace.id))
    named = _first(span.attributes, "gen_ai.workflow.name traceloop.workflow.name")
    trace.kind = str(
        named or (trace.kind if trace.kind != "trace" else _first(span.attributes, "service.name", "trace"))
    )
    for name, event in span.events:
        label = event.get("gen_ai.evaluation.score.label")
        if name == "gen_ai.evaluation.result" and label in ("pass", "fail"):
            trace.success = label == "pass"


def _agent(spans: Sequence[_Span]) -> str:
    """Returns whose turn the first of these spans is; the others are around it."""
    for table in (span.attributes for span in spans):
        entity = "traceloop.entity.name" if table.get("traceloop.span.kind") == "agent" else ""
        if name := _first(table, f"gen_ai.agent.name {entity}"):
            return str(name)
    return "agent"


def _fill(turn: TracedTurn, span: _Span) -> None:
    """Reads tokens, costs and messages of a turn."""
    table = span.attributes
    turn.model = str(_first(table, "gen_ai.response.model gen_ai.request.model"))
    turn.prompt_tokens = int(_first(table, "gen_ai.usage.input_tokens gen_ai.usage.prompt_tokens", 0))
    turn.tokens = int(_first(table, "gen_ai.usage.output_tokens gen_ai.usage.completion_tokens", 0))
    turn.cost = None if table.get("gen_ai.usage.cost") is None else float(table["gen_ai.usage.cost"])
    told, said = (_decoded(table.get(f"gen_ai.{side}.messages")) or [] for side in ("input", "output"))
    told, said = told or _numbered(table, "gen_ai.prompt."), said or _numbered(table, "gen_ai.completion.")
    if system := _decoded(table.get("gen_ai.system_instructions")):
        told = [{"role": "system", "parts": system}, *told]
    for name, event in span.events if not told and not said else ():
        body = {**event, **(_decoded(event.get("gen_ai.event.content")) or {})}
        if name == "gen_ai.choice":
            said = [{"role": "assistant", **(_decoded(body.get("message")) or body)}]
        elif name.startswith("gen_ai.") and name.endswith(".message"):
            told.append({"role": name.split(".")[1], **body})
    turn.said = chat(said)[-1] if said else None
    if told and table.get("marft.input", "replayed") == "replayed":
        turn.told, turn.tools = chat(told), _decoded(table.get("gen_ai.tool.definitions")) or ()


def _numbered(table: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Returns messages whose fields stand under keys such as ``gen_ai.prompt.0.tool_calls.0.name``."""
    messages: dict[str, dict[str, Any]] = defaultdict(lambda: {"role": "assistant"})
    for key, value in table.items():
        number, *path = key.removeprefix(prefix).split(".") if key.startswith(prefix) else [""]
        if len(path) == 3:
            messages[number].setdefault(path[0], defaultdict(dict))[path[1]][path[2]] = value
        elif len(path) == 1:
            messages[number][path[0]] = value
    numbered = sorted(messages.items(), key=lambda pair: int(pair[0]))
    return [{**message, "tool_calls": [*message.get("tool_calls", {}).values()]} for _, message in numbered]


def _decoded(value: Any) -> Any:
    """Returns what a text of JSON holds; anything else as it is."""
    return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") else value
