"""Reads what a team in production has logged: chats in OpenAI's form, and OpenTelemetry spans of generative AI.

Spans may be this project's own (``marft_envs.records.otel``) or others' (``spans``, ``conventions``), runs of LangSmith
or observations of Langfuse (``exports``). What cannot be read is named, and the rest is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marft_envs.errors import DataError, reading
from marft_envs.records import conventions, exports
from marft_envs.records.chats import ChatMessage, Unread, UnreadableError, chat, first
from marft_envs.records.spans import Span, Spans

CASES = "cases-v0"
"""The environment of a team's own tasks."""
_NEITHER = "neither a span nor a chat: there is no 'messages'"
_WRONG = ("error", "exception", "traceback")
_LEFT = "choices beside the first of a reply are left out"


@dataclass(slots=True)
class TracedTurn:
    """One reply, with its agent's prompt."""

    where: str
    agent: str
    said: ChatMessage | None = None
    """None: the trace does not hold it."""
    prompt: Sequence[ChatMessage] = ()
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
    """Reads files, each once.

    Returns:
        The traces, in the order in which they begin in the files, and what could not be read: where, and why.

    Raises:
        DataError: A file cannot be opened.
    """
    unread, traces, seen = Unread(), dict[str, Trace](), set[str]()
    spans = Spans(unread)
    for path in {Path(path).resolve(): Path(path) for path in paths}.values():
        for where, content in _objects(path, unread):
            with unread.noted(where):
                if not isinstance(content, Mapping):
                    raise UnreadableError(_NEITHER)
                if not spans.take(content, where):
                    _logged(content, where, traces, unread, seen)
    _add(conventions.joined(spans.in_order()), traces, unread)
    for trace in traces.values():
        trace.calls = trace.calls or list(_calls(trace.turns))
    return [trace for trace in traces.values() if trace.turns], unread.lines()


def _objects(path: Path, unread: Unread) -> Iterator[tuple[str, Any]]:
    """Yields the objects of a file with their places: one a line, or over several lines, or in one list."""
    with reading(f"{path} cannot be read", "Expected JSONL of chats or spans.", DataError):
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    at, line, decoder = 0, 1, json.JSONDecoder()
    while rest := text[at : at + 1]:
        where, end = f"{path}, line {line}", at + 1
        if not rest.isspace():
            try:
                content, end = decoder.raw_decode(text, at)
                yield from ((where, part) for part in exports.listed(content))
            except (ValueError, RecursionError) as error:
                unread.count(f"not JSON ({getattr(error, 'msg', error)})", where=where)
                end = text.find("\n", at) % (len(text) + 1)
        line, at = line + text.count("\n", at, end), end


# Chats -----------------------------------------------------------------------------------------------


def _logged(content: Mapping[str, Any], where: str, traces: dict[str, Trace], unread: Unread, seen: set[str]) -> None:
    """Reads a request with its reply, or a whole chat, of which every assistant message is a turn."""
    request, response = first(content, "request body", content), first(content, "response completion")
    if "messages" not in request:
        raise UnreadableError(_NEITHER)
    messages, answer = chat(request["messages"]), response if isinstance(response, Mapping) else content
    if answer is response and answer.get("id"):
        if (text := json.dumps(content, sort_keys=True)) in seen:
            return unread.count("chats are logged twice, and read once")
        seen.add(text)
    choices = sorted(first(answer, "choices", []), key=lambda choice: choice.get("index") or 0)
    if isinstance(response, str) and response:
        choices = [{"message": {"role": "assistant", "content": response}}]
    unread.count(_LEFT, max(0, len(choices) - 1))
    turns = [(messages, said) for said in chat(choice["message"] for choice in choices[:1])]
    if request is content and content.keys().isdisjoint(("response", "completion", "choices")):  # a whole chat
        turns = [(messages[:i], said) for i, said in enumerate(messages) if said.role == "assistant"]
    if not turns:
        raise UnreadableError("a chat without a reply")
    more = {**first(request, "metadata", {}), **first(content, "metadata", {}), **content}
    trace_id = str(first(more, "trace_id conversation_id session_id thread_id id", where))
    trace = traces.setdefault(trace_id, Trace(trace_id, str(first(more, "kind workflow", "trace"))))
    trace.success = more["success"] if isinstance(more.get("success"), bool) else trace.success
    for prompt, said in turns:
        agent = str(first(more, "agent agent_name") or said.name or "agent")
        trace.turns.append(turn := TracedTurn(where, agent, said, prompt, (), str(first(request, "model"))))
        with unread.noted(where):
            turn.tools = conventions.definitions(request.get("tools") or ())
    used = {**first(answer, "usage", {}), "cost": more.get("cost")}
    turn.prompt_tokens, turn.tokens, turn.cost = conventions.usage(used)


def _calls(turns: Sequence[TracedTurn]) -> Iterator[tuple[str, bool]]:
    """Yields the calls whose results stand in chats, each once, and whether it is an error or JSON with one."""
    names = {call: name for turn in turns if turn.said is not None for call, name in turn.said.calls}
    results = (result for turn in turns for message in turn.prompt for result in message.results)
    for call, text in dict.fromkeys(results):
        yield names.get(call, "tool"), _went_wrong(text)


def _went_wrong(text: str) -> bool:
    with suppress(ValueError, RecursionError):
        if isinstance(content := json.loads(text), dict):
            return any(value for key, value in content.items() if key.lower().startswith(_WRONG))
    return text.lstrip(' {"').lower().startswith(_WRONG)


# Spans -----------------------------------------------------------------------------------------------


def _add(spans: Sequence[Span], traces: dict[str, Trace], unread: Unread) -> None:
    """Adds what spans say to the traces: a turn for each that may be one and has none inside."""
    outer, agents, known = _outwards(spans), dict[Span, str](), {(span.trace, span.id) for span in spans}
    for span, one_around in outer.items():
        with unread.noted(span.where):
            agents[span] = conventions.agent(span)
        agents[span] = agents.get(span) or (agents[one_around] if one_around else "")
        lost = span.parent.strip("0") and (span.trace, span.parent) not in known
        unread.count("spans are inside one that was not read: their agent may be missing", int(bool(lost)))
    turns, around = _turns(outer)
    calling = {(span.trace, agents[span]) for span in turns if conventions.is_call(span)}
    for span in spans:
        trace = traces.setdefault(span.trace, Trace(span.trace))
        with unread.noted(span.where):
            _trace_facts(span, trace)
        if span in turns:
            turn = TracedTurn(span.where, agents[span] or "agent")
            whole = _fill(turn, span, unread)
            nothing = not (turn.said or turn.tokens)
            if nothing and conventions.is_call(span) and span.failed:
                unread.count("calls of a model failed, without a reply")
            elif nothing and not conventions.is_call(span) and (span.trace, agents[span]) in calling:
                continue  # a frame around calls, which lie beside it
            else:
                trace.turns.append(turn)
                if whole:
                    _name_gaps(turn, span, unread)
        elif span not in around and (done := conventions.frame(span)):
            unread.count(f"spans of '{done}' ({conventions.convention(span)}) are no turns")


def _turns(outer: dict[Span, Span | None]) -> tuple[set[Span], set[Span | None]]:
    """Returns the spans that are turns, and those that are none because of what is inside or around them.

    Several instruments may note one call, inside each other: the innermost span that has its words is the turn.
    """
    turns, others, inside = set[Span](), set[Span | None](), dict[Span | None, tuple[int, Span]]()
    for span, one_around in reversed(outer.items()):
        count, inner = inside.pop(span, (0, span))
        if conventions.is_turn(span) and (not count or (count == 1 and conventions.notes_the_same(span, inner))):
            if count:
                turns.discard(inner)
                others.add(inner)
            turns.add(span)
            count, inner = 1, span
        if span not in turns and count:
            others.add(span)
        if count:
            before, _ = inside.get(one_around, (0, span))
            inside[one_around] = before + count, inner
    return turns, others


def _outwards(spans: Sequence[Span]) -> dict[Span, Span | None]:
    """Returns the span around each; one stands behind that around it. Rings of parents are cut."""
    by_id, outer = {(span.trace, span.id): span for span in spans}, dict[Span, Span | None]()
    for span in spans:
        path, one = dict[Span, Span | None](), by_id.get((span.trace, span.id))
        while one is not None and one not in outer and one not in path:
            path[one] = by_id.get((one.trace, one.parent))
            one = path[one]
        if one in path:
            path[next(reversed(path))] = None
        outer.update(reversed(path.items()))
    return outer


def _trace_facts(span: Span, trace: Trace) -> None:
    """Reads what a span says of its trace: a call, an evaluation, a name."""
    table = span.attributes
    if conventions.operation(span) == "execute_tool":
        trace.calls.append((conventions.tool(span), span.failed))
    trace.id = str(first(table, "marft.task_id", trace.id))
    named = first(table, "gen_ai.workflow.name traceloop.workflow.name")
    trace.kind = str(named or (trace.kind if trace.kind != "trace" else first(table, "service.name", "trace")))
    for name, event in span.events:
        label = event.get("gen_ai.evaluation.score.label")
        if name == "gen_ai.evaluation.result" and label in ("pass", "fail"):
            trace.success = label == "pass"


def _fill(turn: TracedTurn, span: Span, unread: Unread) -> bool:
    """Reads tokens, costs and messages of a turn; False: its messages cannot be read, which is noted."""
    turn.model, whole = conventions.model(span), False
    with unread.noted(span.where):
        turn.prompt_tokens, turn.tokens, turn.cost = conventions.usage(span.attributes)
    with unread.noted(span.where):
        turn.prompt, turn.said, turn.tools, more = conventions.words(span)
        unread.count(_LEFT, more)
        whole = True
    return whole


def _name_gaps(turn: TracedTurn, span: Span, unread: Unread) -> None:
    """Counts a turn of which the trace does not hold both sides."""
    prompt, reply = (any(message.content for message in side if message) for side in (turn.prompt, [turn.said]))
    if not prompt and not reply:
        key = conventions.elsewhere(span)
        off = "content capture is off, or log records are missing"
        why = f"{conventions.convention(span)}'s '{key}' is not read" if key else off
        unread.count(f"turns have no words: {'the call failed' if span.failed else why}")
    elif prompt and turn.said is None:
        unread.count("turns have a prompt and no reply")
    elif reply and not prompt:
        unread.count("turns have a reply and no prompt")
