"""Spans of a model by every convention: each is one turn with its words, or it is named as unread."""

from __future__ import annotations

import copy
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.marks import rest_in_ci
from marft_algos.cli import main
from marft_envs.records.traces import read

TOLD = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which day?"}]
PARTS = [{"role": one["role"], "parts": [{"type": "text", "content": one["content"]}]} for one in TOLD]
ANSWER = [
    {"role": "assistant", "parts": [{"type": "thinking", "content": "Hm."}, {"type": "text", "content": "Tuesday."}]}
]
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "Desk", "gen_ai.request.model": "m"}
TURN = {**CHAT, "gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": json.dumps(ANSWER)}
DETAILS = "gen_ai.client.inference.operation.details"
BOTH = {"gen_ai.input.messages": PARTS, "gen_ai.output.messages": ANSWER}
EVENTS = [
    ("gen_ai.system.message", {"content": "Be brief."}), ("gen_ai.user.message", {"content": "Which day?"}),
    ("gen_ai.choice", {"index": 1, "message": {"content": "Sunday."}}),
    ("gen_ai.choice", {"index": 0, "message": {"role": "assistant", "content": "Tuesday."}}),
]  # fmt: skip


def typed(value: Any) -> dict[str, Any]:
    """As OTLP writes a value in JSON."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": typed(one)} for key, one in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(one) for one in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def pairs(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": typed(value)} for key, value in table.items()]


def span(attributes: dict[str, Any], number: Any = 1, parent: str = "", **more: Any) -> dict[str, Any]:
    events = [{"name": name, "attributes": pairs(table)} for name, table in more.pop("events", ())]
    return {
        "traceId": "AB", "spanId": f"s{number}", "parentSpanId": parent, "name": "chat m", "startTimeUnixNano": "1000",
        "endTimeUnixNano": "2000", "attributes": pairs(attributes), "events": events, "status": {}, **more,
    }  # fmt: skip


def otlp(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": list(spans)}]}]}


def sdk(attributes: dict[str, Any], number: int = 1, **more: Any) -> dict[str, Any]:
    """As Python's console exporter writes a span."""
    context = {"trace_id": "0xab", "span_id": f"0xs{number}"}
    return {"name": "x", "context": context, "parent_id": None, "start_time": "2026-01-01T10:00:00Z", "status": {},
            "end_time": "2026-01-01T10:00:01Z", "attributes": attributes, "events": [], **more}  # fmt: skip


def log(name: str, body: Any, **more: Any) -> dict[str, Any]:
    return {"traceId": "ab", "spanId": "s1", "timeUnixNano": "5", "eventName": name, "body": typed(body), **more}


def logs(*records: Any) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def found(tmp_path: Path, *objects: Any) -> tuple[list[tuple[str, list[str], str]], str]:
    """Agent, prompt and reply of each turn; and what is unread."""
    (tmp_path / "x.json").write_text("\n".join(map(json.dumps, objects)))
    traces, unread = read([tmp_path / "x.json"])
    turns = [turn for trace in traces for turn in trace.turns]
    said = [(turn.agent, [m.content for m in turn.prompt], turn.said.content if turn.said else "") for turn in turns]
    return said, "; ".join(unread)


INFERENCE = {
    "openinference.span.kind": "LLM", "llm.model_name": "m", "graph.node.id": "Desk", "llm.token_count.prompt": 7,
    **{f"llm.input_messages.{i}.message.{key}": one[key] for i, one in enumerate(TOLD) for key in one},
    "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "Tuesday.",
    "llm.tools.0.tool.json_schema": '{"type": "function"}',
}  # fmt: skip
AI_SDK = {
    "ai.operationId": "ai.generateText.doGenerate", "ai.model.id": "m", "ai.telemetry.functionId": "Desk",
    "ai.prompt.messages": json.dumps([TOLD[0], {"role": "user", "content": [{"type": "text", "text": "Which day?"}]}]),
    "ai.response.text": "Tuesday.", "ai.usage.promptTokens": 7,
}  # fmt: skip
TRACELOOP = {
    "llm.request.type": "chat", "gen_ai.request.model": "m", "gen_ai.agent.name": "Desk", "gen_ai.completion.0.content": "Tuesday.",
    **{f"gen_ai.prompt.{i}.{key}": one[key] for i, one in enumerate(TOLD) for key in one},
}  # fmt: skip
AGENTS = [
    {"object": "trace", "id": "trace_1", "workflow_name": "desk", "group_id": None, "metadata": None},
    {"object": "trace.span", "id": "span_2", "trace_id": "trace_1", "parent_id": "span_3", "started_at": "2026-01-01T10:00:00Z",
     "ended_at": "2026-01-01T10:00:01Z", "error": None, "span_data": {
         "type": "generation", "input": TOLD, "output": [{"role": "assistant", "content": "Tuesday."}], "model": "m",
         "usage": {"input_tokens": 7, "output_tokens": 3}}},
    {"object": "trace.span", "id": "span_3", "trace_id": "trace_1", "parent_id": None, "started_at": "2026-01-01T09:00:00Z",
     "ended_at": "2026-01-01T10:00:02Z", "error": None, "span_data": {"type": "agent", "name": "Desk", "tools": [], "handoffs": []}},
]  # fmt: skip
CHAIN = [
    [{"lc": 1, "id": ["SystemMessage"], "kwargs": {"content": "Be brief.", "type": "system"}},
     {"lc": 1, "id": ["HumanMessage"], "kwargs": {"content": "Which day?", "type": "human"}}],
]  # fmt: skip
GENERATED = {"generations": [[{"text": "Tuesday.", "message": {"lc": 1, "kwargs": {
    "content": "Tuesday.", "type": "ai", "tool_calls": [], "usage_metadata": {"input_tokens": 7, "output_tokens": 3}}}}]]}  # fmt: skip
RUN = {
    "id": "r2", "run_type": "llm", "name": "ChatOpenAI", "trace_id": "r1", "parent_run_id": "r1", "start_time": "2026-01-01T10:00:00",
    "end_time": "2026-01-01T10:00:01", "inputs": {"messages": CHAIN}, "outputs": GENERATED, "error": None,
    "extra": {"metadata": {"lc_agent_name": "Desk", "ls_model_name": "m"}, "invocation_params": {"tools": [{"name": "look"}]}},
}  # fmt: skip
ROOT = {
    **RUN,
    "id": "r1",
    "run_type": "chain",
    "parent_run_id": None,
    "inputs": {"question": "?"},
    "extra": {},
    "outputs": {},
}
OBSERVED = {
    "id": "o1", "traceId": "t", "type": "GENERATION", "name": "OpenAI-generation", "startTime": "2026-01-01T10:00:00.000Z",
    "endTime": "2026-01-01T10:00:01.000Z", "model": "m", "input": json.dumps({"messages": TOLD, "tools": [{"name": "look"}]}),
    "output": json.dumps({"role": "assistant", "content": "Tuesday."}), "metadata": {"lc_agent_name": "Desk"}, "level": "DEFAULT",
    "usageDetails": {"input": 7, "output": 3}, "parentObservationId": None,
}  # fmt: skip
SNAKE = {"traceId": "trace_id", "startTime": "start_time", "endTime": "end_time", "usageDetails": "usage_details"}
ANSWERED = {"id": "resp", "object": "response", "output": [
    {"type": "reasoning", "id": "x", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Tuesday."}]}]}  # fmt: skip
SILENT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.response.id": "r-1"}
OUTER = {**INFERENCE, "output.value": '{"id":"r-1","role":"assistant"}'}
LISTED = [{"event.name": name, **table} for name, table in EVENTS]
LEFT = "1 choices beside the first"


@pytest.mark.parametrize(
    ("objects", "unread"),
    [
        ([otlp(span(CHAT, events=EVENTS))], LEFT),  # 1.28
        ([sdk({**CHAT, "events": json.dumps(LISTED)})], LEFT),
        ([sdk({**CHAT, "gen_ai.prompt": json.dumps(TOLD), "gen_ai.completion": "Tuesday."})], ""),  # 1.26
        ([otlp(span(TURN))], ""),  # 1.37
        ([otlp(span(CHAT, events=[(DETAILS, {key: json.dumps(value) for key, value in BOTH.items()})]))], ""),
        ([otlp(span(CHAT, events=[(DETAILS, BOTH)]))], ""),
        ([otlp(span({**CHAT, **BOTH}))], ""),
        ([sdk({**CHAT, **BOTH})], ""),
        ([otlp(span({**TURN, "gen_ai.output.messages": [*ANSWER, *ANSWER, *ANSWER]}))], "2 choices beside the first"),
        ([otlp(span(INFERENCE))], ""),
        ([otlp(span({"x": 1}, 0), span(AI_SDK, 1, "s0"))], ""),
        ([otlp(span({"ai.model.id": "m", "ai.operationId": "ai.generateText"}, 0), span(AI_SDK, 1, "s0"))], ""),
        ([otlp(span(TRACELOOP))], ""),
        ([sdk({"gen_ai.request.model": "m", "agent_name": "Desk", "input": TOLD, "output": json.dumps([{"content": "Tuesday."}])})], ""),
        ([otlp(span(CHAT)), logs(*(log(*event) for event in EVENTS))], LEFT),
        ([logs(*(log(*event) for event in EVENTS)), otlp(span(CHAT))] * 2, LEFT),
        ([otlp(span(CHAT)), logs(log(DETAILS, None, attributes=pairs(BOTH)))], ""),
        ([sdk(CHAT), *({"body": body, "event_name": name, "attributes": {}, "trace_id": "0xab", "span_id": "0xs1",
                        "observed_timestamp": f"2026-01-01T10:00:00.{i}Z"} for i, (name, body) in enumerate(EVENTS))], LEFT),
        ([otlp(span(TURN))] * 3, ""),
        ([otlp(span(CHAT, endTimeUnixNano="0", events=[])), otlp(span(TURN))], ""),
        ([otlp(span(TURN)), otlp(span({**CHAT, "more": "x" * 999}, endTimeUnixNano="0")), sdk(CHAT, end_time=None)], ""),
        ([sdk({**TURN, "logfire.span_type": "pending_span", "logfire.pending_parent_id": "0"}, 2, parent_id="0xs1"), sdk(TURN)], ""),
        ([sdk({**CHAT, "logfire.msg": "x", "gen_ai.input.messages": TURN["gen_ai.input.messages"]}),
          sdk({**TURN, "logfire.msg": "y"}, 2, name="streaming response from {x}")], ""),
        ([otlp(span(TURN, parent="s1"))], ""),
        ([otlp({**span(TURN), "startTimeUnixNano": "soon"})], "a start that is no time: 'soon'"),
        (AGENTS, ""),
        ([{"data": AGENTS}] * 2, ""),
        ([{**AGENTS[1], "span_data": {**AGENTS[1]["span_data"], "output": [ANSWERED]}}, *AGENTS[:1], *AGENTS[2:]], ""),
        ([ROOT, RUN], ""),
        ([{**ROOT, "child_runs": [{**RUN, "child_runs": None}]}, RUN], ""),
        ([{"runs": [RUN, ROOT]}], ""),
        ([{"items": [{**RUN, "parent_run_id": None, "parent_run_ids": ["r0", "r1"], "run_type": "LLM"}, ROOT]}], ""),
        ([{**RUN, "parent_run_id": None, "inputs": {"input": TOLD[1:], "instructions": "Be brief."}, "outputs": ANSWERED}], ""),
        ([OBSERVED] * 2, ""),
        ([{"id": "t", "name": "desk", "observations": [OBSERVED]}], ""),
        ([{"data": [{SNAKE.get(key, key): value for key, value in OBSERVED.items()}], "meta": {}}], ""),
        ([{**OBSERVED, "input": TOLD, "output": "Tuesday."}], ""),
        ([sdk({**OUTER, "output.value": '{"answer": 1}'}), sdk(SILENT, 2, parent_id="0xs1")], ""),  # a client notes it too
        ([sdk(OUTER), sdk(SILENT, 2)], ""),
        ([sdk({**INFERENCE, "graph.node.id": "", "metadata": '{"langgraph_node": "Desk"}'})], ""),
        ([logs(log(DETAILS, None, attributes=pairs({**BOTH, **CHAT})))], "read from log records alone"),
        ([otlp(span(TURN, parent="gone"))], "1 spans are inside one that was not read"),
        ([otlp(span(TURN), {"spanId": 5, "events": 7, "attributes": 3}, 4)], "TypeError"),
    ],
)  # fmt: skip
def test_each_span_of_a_model_is_one_turn(objects: list[Any], unread: str, tmp_path: Path) -> None:
    turns, why = found(tmp_path, *objects)
    assert turns == [("Desk", ["Be brief.", "Which day?"], "Tuesday.")]
    assert unread in why and bool(unread) == bool(why), why


@pytest.mark.parametrize(
    ("objects", "turns", "unread"),
    [
        ([otlp(span(CHAT, 1), span(CHAT, 2))], 2, "2 turns have no words: content capture is off"),
        ([otlp(span(CHAT, status={"code": 2}))], 0, "1 calls of a model failed, without a reply"),
        ([sdk({"openinference.span.kind": "LLM", "input.value": "x"})], 1, "1 turns have no words: OpenInference's 'input.value' is not read"),
        ([sdk({"openinference.span.kind": "LLM", "input.value": "__REDACTED__"})], 1, "content capture is off"),
        ([sdk({"mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanInputs": "{}"})], 1, "MLflow's 'mlflow.spanInputs' is not read"),
        ([sdk({"langfuse.observation.type": "generation"})], 1, "no words"),
        ([sdk({"gen_ai.request.model": "m", "gen_ai.operation.name": "embeddings"}, i) for i in (1, 2)], 0,
         "2 spans of 'embeddings' (OpenTelemetry) are no turns"),
        ([logs(log(*EVENTS[0]), log(*EVENTS[1]))], 0, "2 log records of generative AI are of no span"),
        ([{"object": "trace.span", "id": "a", "span_data": {"type": "generation"}}] * 3, 1, "1 turns have no words"),
        ([{"object": "trace", "id": "a"}], 0, "neither a span nor a chat"),
        ([sdk({"openinference.span.kind": "AGENT"})], 0, "1 spans of 'an agent without calls' (OpenInference) are no turns"),
        ([sdk({**TURN, "gen_ai.response.id": "r-1"}), sdk(SILENT, 2)], 2, "1 turns have no words"),  # a server repeats an id
        ([sdk({**TURN, "gen_ai.output.messages": ""})], 1, "1 turns have a prompt and no reply"),
        ([sdk({**TURN, "gen_ai.input.messages": ""})], 1, "1 turns have a reply and no prompt"),
        ([sdk({**TURN, "gen_ai.output.messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look"}}]}]})], 1,
         "a call of 'look' without its arguments"),
        ([sdk({**CHAT, "gen_ai.input.messages": PARTS}, status={"status_code": "ERROR"})], 0, "1 calls of a model failed"),
        ([{**RUN, "parent_run_id": None, "outputs": {"output": None}, "error": "BadRequest"}], 0, "1 calls of a model failed"),
        ([{**RUN, "parent_run_id": None, "inputs": {"question": "?"}}], 1, "no messages under question"),
        ([{"runs": [{"x": 1}]}, {"data": [5]}], 0, "and 1 more: neither a span nor a chat"),
        ([{"x": 1}, 5, {"y": 2}], 0, "and 2 more: neither a span nor a chat"),
        ([{"resourceSpans": 5}], 0, "'resourceSpans' is no list"),
        ([otlp({key: value for key, value in span({}).items() if key != "attributes"}), sdk({"http.url": "x"})], 0, ""),
        ([otlp(span(CHAT, 1, "s2"), span(TURN, 2, "s1"))], 1, ""),
    ],
)  # fmt: skip
def test_what_has_no_words_is_named(objects: list[Any], turns: int, unread: str, tmp_path: Path) -> None:
    said, why = found(tmp_path, *objects)
    assert (len(said), unread in why, bool(unread)) == (turns, True, bool(why)), why
    assert "; " not in why, "a reason is said once"


def test_turns_are_in_the_order_of_time(tmp_path: Path) -> None:
    day = "2026-03-01T"
    starts = [f"{day}10:00:00.1234567Z", f"{day}10:00:00.123456789Z", f"{day}11:00:01+01:00", f"{day}05:00:02.5-0500",
              f"{day}10:00:05Z", f"{day}10:00:06", int(1772359207 * 1e9), str(1772359208 * 10**9), "9" * 20]  # fmt: skip
    spans = [sdk({**TURN, "gen_ai.agent.name": str(i)}, i, start_time=start) for i, start in enumerate(starts)]
    random.Random(1).shuffle(spans)
    turns, unread = found(tmp_path, *spans)
    assert [turn[0] for turn in turns] == [str(i) for i in range(len(starts))] and not unread


def test_files_are_read_once_and_logged_choices_by_their_index(tmp_path: Path) -> None:
    choices = [{"index": i, "message": {"role": "assistant", "content": str(i)}} for i in (2, 0, 1)]
    line = {"trace_id": "t", "request": {"messages": TOLD}, "response": {"id": "r", "choices": choices}}
    turns, unread = found(tmp_path, line, line)
    assert [turn[2] for turn in turns] == ["0"] and "2 choices" in unread and "1 chats are logged twice" in unread
    file = tmp_path / "x.json"
    (tmp_path / "copy").write_text(file.read_text())
    (traces, _) = read([file, tmp_path / "." / "x.json", tmp_path / "copy"])
    assert len(traces[0].turns) == 1


def test_deep_spans_take_linear_time(tmp_path: Path) -> None:
    deep = [span(TURN if i == 4999 else CHAT, i, f"s{i - 1}") for i in range(5000)]
    begun = time.perf_counter()
    turns, unread = found(tmp_path, otlp(*reversed(deep)))
    assert len(turns) == 1 and unread.startswith("1 spans are inside one that was not read")
    assert time.perf_counter() - begun < 10


BAD = [None, 5, -1, 1.5, "", "x", True, [], {}, [[]], [None], {"a": {"b": 1}}, float("inf"), float("nan"), 10**400, "1e400",
       {"intValue": 10**400}, {"arrayValue": 5}, "[" * 9, "\ud800"]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


TOOLS = [{"name": "look", "parameters": {"type": "object"}}]
LINE = {
    "trace_id": "t", "agent": "a", "cost": 0.5, "metadata": {"x": 1}, "success": True,
    "request": {"model": "m", "messages": [*TOLD, {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "n", "arguments": "{}"}}]},
                                           {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "y"}]}], "tools": TOOLS},
    "response": {"id": "r", "choices": [{"index": 0, "message": {"role": "assistant", "content": "y"}}], "usage": {"prompt_tokens": 5}},
}  # fmt: skip
FULL = {**TURN, "gen_ai.usage.input_tokens": 5, "gen_ai.tool.definitions": TOOLS}


@pytest.mark.parametrize(
    "whole",
    rest_in_ci([LINE, otlp(span(FULL, events=EVENTS)), sdk({**FULL, **BOTH, "gen_ai.usage.cost": 0.1}), otlp(span({**CHAT, **BOTH})), sdk(INFERENCE), sdk(AI_SDK), AGENTS[1], RUN, OBSERVED], 2),
    ids=["chat", "otlp", "sdk", "structured", "openinference", "ai-sdk", "agents", "langsmith", "langfuse"],
)  # fmt: skip
def test_whatever_stands_in_a_file_there_is_no_raw_error(
    whole: Any, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep: Any = 5
    for _ in range(400):
        deep = [{"a": deep}]
    for number, place in enumerate(places(whole)[1:]):
        for bad in random.Random(number).sample(BAD, 4) + ([deep] if number % 4 == 0 else []):
            broken = copy.deepcopy(whole)
            inner = broken
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = bad
            for old in here.iterdir():
                old.unlink()
            Path("x").write_text(
                json.dumps(broken) + "\n" + json.dumps({"messages": [*TOLD, {"role": "assistant", "content": "z"}]})
            )
            traces, unread = read(["x"])
            turns = sum(len(trace.turns) for trace in traces)
            known = {
                "attributes", "key", "spans", "scopeSpans", "resourceSpans", "openinference.span.kind", *CHAT,
                *INFERENCE, *AI_SDK, *AGENTS[1], *RUN, *OBSERVED,
            }  # fmt: skip
            assert turns >= 2 or unread or known & set(map(str, place)), (place, bad)
            if number % 5 == 0:
                assert main(["traces", "x", "--sft", "rows", "--cases", "cases"]) == 0, (place, bad)
                rows = [json.loads(row, parse_constant=pytest.fail) for row in Path("rows").read_text().splitlines()]
                assert rows and "Traceback" not in capsys.readouterr().err
