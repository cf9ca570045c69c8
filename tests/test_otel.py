"""Episodes as OpenTelemetry spans: the tree, the names, D as links, no clock, nothing said unless asked for."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from tools_tiny import call, tiny

import marft_envs
from marft_envs import MissingExtraError, otel, trajectory
from marft_envs.errors import DataError
from marft_envs.tools import make, oracle
from marft_envs.tools.parse import written
from marft_envs.types import Episode

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas


def episode() -> Episode:
    """Dual: a plan; a change and a call that fails; another plan; a reply that cannot be read; a plan; the end."""
    env = make("dual", tiny())
    env.reset(seed=0, options={"task_id": "tiny/one"})
    replies = [
        "Add 3.",
        written([call("add", name="a", by=3), call("add", name="z")]),
        "Go on. \ud800",
        "<tool_call>{",
        "Stop.",
        written([call("finish")]),
    ]
    for text in replies:
        env.attach(env.agent_selection, {"prompt_tokens": 7, "tokens": 5, "stop_reason": "eos", "policy": "shared"})
        env.step(text)
    assert env.done and env.episode.success
    return env.episode


def exported(source: Any, **settings: Any) -> list[Any]:
    exporter = InMemorySpanExporter()
    otel.export(source, exporter, **settings)
    return list(exporter.get_finished_spans())


def test_the_tree_of_an_episode() -> None:
    one = episode()
    spans = exported([one])
    root, *rest = spans
    assert root.name == "invoke_workflow custom" and root.parent is None
    assert (
        root.attributes["marft.return"] == pytest.approx(one.team_return) and root.attributes["marft.success"] is True
    )
    assert root.attributes["marft.metric.malformed"] == 1 and root.attributes["marft.stop_reason"] == "task"
    turns = [span for span in rest if span.attributes["gen_ai.operation.name"] == "invoke_agent"]
    tools = [span for span in rest if span.attributes["gen_ai.operation.name"] == "execute_tool"]
    assert len(turns) + len(tools) == len(rest)
    assert [span.name for span in turns] == [f"invoke_agent {turn.agent}" for turn in one.turns]
    assert [span.name for span in tools] == ["execute_tool add", "execute_tool add", "execute_tool finish"]
    assert {span.context.trace_id for span in spans} == {root.context.trace_id}
    assert len({span.context.span_id for span in spans}) == len(spans)
    assert all(span.parent == root.context for span in turns)
    assert [turns.index(next(t for t in turns if t.context == s.parent)) for s in tools] == [1, 1, 5]
    assert [span.attributes.get("error.type") for span in tools] == [None, "tool_error", None]
    assert [span.attributes.get("error.type") for span in turns] == [None, None, None, "malformed", None, None]
    assert [span.status.is_ok for span in tools] == [True, False, True]
    assert (
        turns[0].attributes["gen_ai.usage.input_tokens"] == 7 and turns[0].attributes["gen_ai.usage.output_tokens"] == 5
    )


def test_links_are_what_a_turn_saw() -> None:
    one = episode()
    turns = [span for span in exported([one]) if span.name.startswith("invoke_agent")]
    for turn, span in zip(one.turns, turns, strict=True):
        assert [link.context for link in span.links] == [turns[index].context for index in turn.sees]
        assert span.attributes["marft.sees"] == turn.sees
    assert any(span.links for span in turns)


def test_time_is_logical_and_says_so() -> None:
    start = 1_700_000_000_000_000_000
    spans = exported([episode()], start_ns=start)
    root = spans[0]
    assert root.attributes["marft.clock"].startswith("logical") and root.start_time == start
    by_id = {span.context.span_id: span for span in spans}
    for span in spans[1:]:
        parent = by_id[span.parent.span_id]
        assert parent.start_time <= span.start_time < span.end_time <= parent.end_time
    turns = [span for span in spans if span.name.startswith("invoke_agent")]
    assert [span.start_time - start for span in turns] == [layer * otel.LAYER_NS for layer in range(6)]


def test_turns_of_a_layer_are_simultaneous() -> None:
    env = make("debate", tiny())
    spans = [
        span
        for span in exported([oracle.play(env, 0, {"task_id": "tiny/one"})])
        if span.name.startswith("invoke_agent proposer")
    ]
    assert len(spans) == 2 and len({(span.start_time, span.end_time) for span in spans}) == 1


def test_the_same_record_gives_the_same_spans_and_others_do_not() -> None:
    one = episode()
    again = trajectory.from_dict(trajectory.to_dict(one))
    assert [s.to_json() for s in exported([one])] == [s.to_json() for s in exported([again])]
    first, second = exported([one])[0], exported([one, again])
    assert second[0].context == first.context
    assert len({span.context.trace_id for span in second}) == 2, "an episode that happened twice is two traces"


def test_nothing_is_said_unless_asked_for() -> None:
    one = episode()
    plain, full = exported([one]), exported([one], content=True)
    assert any("Go on. " in str(span.attributes) for span in full)
    text = "".join(span.to_json() for span in plain)
    assert "Add 3." not in text and "There is no counter" not in text and "You are the Planner" not in text
    tools = [span for span in full if span.name.startswith("execute_tool")]
    assert json.loads(tools[0].attributes["gen_ai.tool.call.arguments"]) == {"name": "a", "by": 3}
    assert tools[0].attributes["gen_ai.tool.call.result"] == '{"a": 3}'
    [message] = json.loads(full[1].attributes["gen_ai.output.messages"])
    assert message["role"] == "assistant" and message["parts"] == [{"type": "text", "content": "Add 3."}]
    assert "You are the Planner" in full[1].attributes["gen_ai.system_instructions"]
    for span in (*plain, *full):
        span.to_json().encode()
        for value in span.attributes.values():
            assert not isinstance(value, str) or value.encode(), "halves of surrogate pairs cannot be exported"


def test_names_are_those_of_the_conventions() -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in exported([episode()], content=True) for name in span.attributes}
    assert {name for name in used if name.startswith("gen_ai.")} <= known
    assert {name.partition(".")[0] for name in used} == {"gen_ai", "marft", "error"}
    operations = {span.attributes["gen_ai.operation.name"] for span in exported([episode()])}
    assert operations <= {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    scope = exported([episode()])[0].instrumentation_scope
    assert scope.schema_url == f"https://opentelemetry.io/schemas/{otel.SEMCONV}"
    assert scope.schema_url in {schema.value for schema in Schemas}


def test_files_run_folders_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = episode(), oracle.play(make("solo", tiny()), 1)
    trajectory.write(tmp_path / "episodes" / "train-000001.jsonl", one)
    trajectory.write(tmp_path / "episodes" / "eval-000001.jsonl", other)
    spans = exported(tmp_path)
    assert len({span.context.trace_id for span in spans}) == 2
    assert len(exported(tmp_path / "episodes" / "train-000001.jsonl")) == 1 + 6 + 3
    assert otel.main([str(tmp_path), "--start-ns", "5"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [span["name"] for span in printed] == [span.name for span in spans]
    assert otel.main([str(tmp_path / "nothing")]) == 1 and "no JSONL file" in capsys.readouterr().err
    with pytest.raises(DataError, match="no episode to export"):
        exported([])


def test_episodes_without_tools_have_no_tool_spans() -> None:
    env = marft_envs.make("relay-v0")
    env.reset(seed=0)
    while not env.done:
        env.step("7")
    assert {span.name.split()[0] for span in exported([env.episode])} == {"invoke_workflow", "invoke_agent"}


def test_an_exporter_that_fails_is_an_error() -> None:
    class Broken(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.FAILURE

    with pytest.raises(DataError, match="Broken did not take"):
        otel.export([episode()], Broken())


def test_without_the_extra_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'marft\[otel\]'"):
        otel.spans(episode())
