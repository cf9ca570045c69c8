"""Episodes as OpenTelemetry spans: the tree, the names, D as links, no clock, nothing said unless asked for."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers.tools_tiny import call, tiny
from marft_envs import MissingExtraError
from marft_envs.call_formats import written
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError, DataError
from marft_envs.families.tools import make, oracle
from marft_envs.records import otel, trajectory

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
        "Go on. \ud800", "<tool_call>{", "Stop.", written([call("finish")]),
    ]  # fmt: skip
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
    assert [s.to_json() for s in exported([one], start_ns=1)] == [s.to_json() for s in exported([again], start_ns=1)]
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
    assert {name.partition(".")[0] for name in used} == {"gen_ai", "marft", "error", "agent"}
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


def turns_of(spans: list[Any]) -> list[Any]:
    return [span for span in spans if span.name.startswith("invoke_agent")]


def test_a_trace_begins_now_by_default_and_never_at_no_time(tmp_path: Path) -> None:
    """0 means no time on the wire, and back ends drop spans that are fifty years old."""
    before = time.time_ns()
    for span in (*exported([episode()]), *otel.spans(episode())):
        assert before <= span.start_time <= span.end_time
    for start in (0, -5):
        with pytest.raises(ConfigError, match="above 0"):
            exported([episode()], start_ns=start)


@pytest.mark.parametrize(("reason", "fault", "kind"), [
    ("world_crashed", "world", "world_crashed"), ("world_hung", "world", "world_hung"),
    ("error: the engine died", "engine", "error"), ("", "machine", "machine"),
])  # fmt: skip
def test_an_infrastructure_error_has_no_score(reason: str, fault: Any, kind: str) -> None:
    """Before: ``return`` and ``success`` of 0, which back ends average with those of teams that were judged."""
    one = episode()
    one.turns[1].reward = 0.5
    lost = dataclasses.replace(one, stop_reason=reason, fault=fault, success=False)
    spans = exported([lost])
    root = spans[0]
    assert (root.attributes["marft.fault"], root.attributes["error.type"]) == (fault, kind) and not root.status.is_ok
    assert not any(span.events for span in spans)
    for span in spans:
        scores = {"marft.return", "marft.success", "marft.reward"} & set(span.attributes)
        assert not scores and not any(name.startswith("marft.metric.") for name in span.attributes)
    assert len(spans) == len(exported([one])), "what was said and done is there"


def test_what_a_text_broke_is_an_error_and_is_scored() -> None:
    root = exported([dataclasses.replace(episode(), stop_reason="error: ValueError", fault="text", success=False)])[0]
    assert (root.attributes["marft.fault"], root.attributes["error.type"]) == (
        "text",
        "error",
    ) and not root.status.is_ok
    assert root.attributes["marft.success"] is False and {"return", "success"} <= set(scores_of(root))


def test_a_team_that_fails_is_no_fault_of_the_system() -> None:
    root = exported([dataclasses.replace(episode(), stop_reason="stalled", success=False)])[0]
    assert not {"error.type", "marft.fault"} & set(root.attributes) and root.status.is_ok
    assert scores_of(root)["success"] == 0.0


def scores_of(span: Any) -> dict[str, float]:
    return {
        event.attributes["gen_ai.evaluation.name"]: event.attributes["gen_ai.evaluation.score.value"]
        for event in span.events
    }


def test_steps_agents_and_what_graders_found() -> None:
    one = episode()
    root, *rest = exported([one])
    turns = turns_of(rest)
    assert [span.attributes["agent.trajectory.step"] for span in turns] == [1, 2, 3, 4, 5, 6]
    tools = [span for span in rest if span.name.startswith("execute_tool")]
    assert [span.attributes["agent.trajectory.step"] for span in tools] == [2, 2, 6]
    assert {span.attributes["gen_ai.agent.name"] for span in tools} == {"executor_0"}
    assert {span.attributes["gen_ai.agent.id"] for span in turns} == {"custom/planner_0", "custom/executor_0"}
    assert {event.name for event in root.events} == {"gen_ai.evaluation.result"}
    found = {event.attributes["gen_ai.evaluation.name"]: event.attributes for event in root.events}
    assert found["success"]["gen_ai.evaluation.score.label"] == "pass"
    for name in ("completion", "handoff_loop_rate", "trajectory_score", "tool_selection_accuracy"):
        assert found[name]["gen_ai.evaluation.score.value"] == one.metrics[name]
    assert found["return"]["gen_ai.evaluation.score.value"] == pytest.approx(one.team_return)
    assert all(root.start_time < event.timestamp <= root.end_time for event in root.events)


def test_who_generated_what(tmp_path: Path) -> None:
    one = episode()
    assert {span.attributes["gen_ai.provider.name"] for span in turns_of(exported([one]))} == {"marft"}
    trajectory.write(tmp_path / "episodes" / "eval.jsonl", one)
    (tmp_path / "config.toml").write_text(f'models = "{tmp_path.as_posix()}/base-model"\n')
    turn = turns_of(exported(tmp_path))[0]
    assert turn.attributes["gen_ai.request.model"] == "base-model", "no path of the machine goes out"
    table = '[engines.shared]\nkind = "openai"\nmodel = "gpt-x"\n'
    (tmp_path / "config.toml").write_text(f'models = "qwen"\n{table}')
    turn = turns_of(exported(tmp_path))[0]
    assert (turn.attributes["gen_ai.provider.name"], turn.attributes["gen_ai.request.model"]) == ("openai", "gpt-x")


def test_messages_calls_and_results_in_parts() -> None:
    turns = turns_of(exported([episode()], content=True))
    inputs = [json.loads(span.attributes["gen_ai.input.messages"]) for span in turns]
    assert inputs[0] == [] and inputs[1] == [{"role": "user", "parts": [{"type": "text", "content": "Add 3."}]}]
    [said] = json.loads(turns[1].attributes["gen_ai.output.messages"])
    assert said["finish_reason"] == "tool_call" and [part["type"] for part in said["parts"]] == ["tool_call"] * 2
    assert said["parts"][0] == {
        "type": "tool_call", "id": "call_1_0", "name": "add", "arguments": {"name": "a", "by": 3},
    }  # fmt: skip
    own, came = inputs[3][1:3]
    assert own == {"role": "assistant", "parts": said["parts"]} and came["role"] == "tool"
    assert came["parts"][0] == {"type": "tool_call_response", "id": "call_1_0", "response": '{"a": 3}'}
    assert turns[0].attributes["marft.input"].startswith("record")


def test_played_again_spans_hold_the_whole_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = episode()
    turns = turns_of(exported([one], content=True, env=make("dual", tiny())))
    told = json.loads(turns[1].attributes["gen_ai.input.messages"])
    text = json.dumps(told)
    assert (
        "Add 3 to counter a." in text
        and "Never reset a counter." in text
        and turns[1].attributes["marft.input"] == "replayed"
    )
    assert "You are the Executor" in turns[1].attributes["gen_ai.system_instructions"]
    [add] = [t for t in json.loads(turns[1].attributes["gen_ai.tool.definitions"]) if t["name"] == "add"]
    assert add["type"] == "function" and add["parameters"]["required"] == ["name"] and add["description"]
    assert json.loads(turns[0].attributes["gen_ai.tool.definitions"]) == [], "the planner holds none"
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {name for span in turns for name in span.attributes if name.startswith("gen_ai.")} <= known
    trajectory.write(tmp_path / "one.jsonl", oracle.play(marft_envs.make("tools-solo-v0", levels=0), 0))
    assert otel.main([str(tmp_path / "one.jsonl"), "--content", "--replay"]) == 0
    assert "gen_ai.tool.definitions" in capsys.readouterr().out


OPENED: list[Any] = []


class Holding:
    """The environment of a module: it holds something that has to be closed."""

    def __init__(self, env: Any) -> None:
        OPENED.append(self)
        self.env, self.open = env, True
        task_close, self.task = getattr(env.task, "close", lambda: None), env.task

        def close() -> None:
            self.open = False
            task_close()

        env.task.close = close


def make_holding(**settings: Any) -> Any:
    return Holding(marft_envs.make("relay-v0", **settings)).env


marft_envs.register("test/holding-v0", make_holding)


def test_environments_rebuilt_from_records_are_few_and_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before: one for each record, and none was ever closed."""

    def played(id: str, **settings: Any) -> Episode:
        env = marft_envs.make(id, **settings)
        env.reset(seed=0)
        while not env.done:
            env.step("7")
        return env.episode

    records = [played("test/holding-v0"), played("test/holding-v0"), played("test/holding-v0", max_rounds=1)]
    for record in records:
        trajectory.write(tmp_path / "episodes.jsonl", record)
    OPENED.clear()
    trajectory.to_samples(records[0])
    trajectory.replay(records[0])
    assert len(OPENED) == 2 and not any(made.open for made in OPENED)
    OPENED.clear()
    assert otel.main([str(tmp_path), "--content", "--replay"]) == 0
    assert len(OPENED) == 2 and not any(made.open for made in OPENED)
    OPENED.clear()
    broken = dataclasses.replace(records[0], task_id="another")
    trajectory.write(tmp_path / "episodes.jsonl", broken)
    assert otel.main([str(tmp_path), "--content", "--replay"]) == 1 and "task_id" in capsys.readouterr().err
    assert OPENED and not any(made.open for made in OPENED)


def test_replay_without_content_says_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory.write(tmp_path / "one.jsonl", episode())
    assert otel.main([str(tmp_path / "one.jsonl"), "--replay"]) == 1
    said = capsys.readouterr()
    assert f"python -m marft_envs.records.otel {tmp_path / 'one.jsonl'} --replay --content" in said.err and not said.out


def test_a_strangers_records_run_nothing_until_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "evil_records.py").write_text(
        f"import pathlib, marft_envs\npathlib.Path({str(ran)!r}).touch()\n"
        "def relay(**settings): return marft_envs.make('relay-v0', **settings)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = marft_envs.make("relay-v0")
    env.reset(seed=0)
    while not env.done:
        env.step("7")
    record = dataclasses.replace(env.episode, env_id="evil_records:relay")
    server = dataclasses.replace(
        record, env_id="tools-solo-v0", env_kwargs={"domain": "mcp", "domain_args": {"server": ["touch", "it"]}}
    )
    trajectory.write(tmp_path / "one.jsonl", [record, server])
    typed = [str(tmp_path / "one.jsonl"), "--content", "--replay"]
    assert otel.main(typed) == 1
    said = capsys.readouterr()
    assert 'env = "evil_records:relay"' in said.err and 'env_kwargs.domain_args.server = ["touch", "it"]' in said.err
    assert f"{' '.join(typed)} --trust" in said.err and not said.out and not ran.exists()
    for use in (trajectory.rebuild, trajectory.replay, trajectory.to_samples):
        with pytest.raises(ConfigError, match=r"evil_records:relay.*(?s:.*)trusted=True"):
            use(record)
    assert not ran.exists()
    trajectory.write(tmp_path / "other.jsonl", record)
    assert otel.main([str(tmp_path / "other.jsonl"), "--content", "--replay", "--trust"]) == 0 and ran.exists()
    said = capsys.readouterr()
    assert "trusted, from" in said.err and '"replayed"' in said.out
    assert trajectory.replay(record, trusted=True).task_id == record.task_id


def test_an_exporter_that_fails_is_an_error() -> None:
    class Broken(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.FAILURE

    with pytest.raises(DataError, match="Broken did not take"):
        otel.export([episode()], Broken())


def test_without_the_extra_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[otel\]'"):
        otel.spans(episode())
