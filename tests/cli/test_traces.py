"""`marft traces`: logs of a team, in OpenAI's form or as spans, become a report, rows to learn from, and cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from marft_algos.cli import main
from marft_algos.rollout.demonstrations import recorded
from marft_envs.errors import DataError
from marft_envs.records import experts, trajectory
from marft_envs.records.chats import chat, plain, read_rows
from marft_envs.records.traces import _went_wrong, read

pytestmark = pytest.mark.usefixtures("here")

KEY = "sk-proj-abcdefghijklmnop1234"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": 7}'}}


def line(file: str, *objects: Any) -> str:
    Path(file).write_text("".join(json.dumps(content) + "\n" for content in objects))
    return file


def log(trace: str, agent: str, messages: list[dict[str, Any]], reply: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    answer = {"choices": [{"message": {"role": "assistant", **reply}}], "usage": usage}
    return {
        "trace_id": trace, "agent": agent, "request": {"model": "m", "messages": messages}, "response": answer, **more,
    }  # fmt: skip


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def support(trace: str, n: int) -> list[dict[str, Any]]:
    """A reader calls a tool, and hands on; a writer answers."""
    ask = [said("system", "Read {it}."), said("user", f"Where is order {n}? My key is {KEY}.")]
    result = {"role": "tool", "tool_call_id": "c1", "content": "error: no such order" if n == 2 else "in Rome"}
    return [
        log(trace, "Reader", ask, {"content": None, "tool_calls": [CALL]}),
        log(trace, "Reader", [*ask, {"role": "assistant", "tool_calls": [CALL]}, result], {"content": "Rome"}),
        log(trace, "Writer", [said("system", "Write."), said("user", "Rome")], {"content": "It is in Rome."}),
    ]


def test_chats_become_a_report_rows_and_cases(capsys: pytest.CaptureFixture[str]) -> None:
    failed = [{**entry, "success": False} for entry in support("t3", 3)]
    line("log.jsonl", *support("t1", 1), *support("t2", 2), *failed)
    Path("log.jsonl").write_text(Path("log.jsonl").read_text() + '{"half": \n' + json.dumps({"x": 1}) + "\n")
    words = ["traces", "log.jsonl", "--sft", "rows.jsonl", "--cases", "cases.jsonl", "--price", "1,10"]
    assert main(words) == 0
    out = capsys.readouterr().out
    for expected in (
        "traces:    3, 9 turns, 0 of 1 judged ones succeeded",
        "agent:     Reader, 6 turns, 100 + 10 tokens each, m",
        "handoff:   Reader -> Writer, 3 times",
        "tool:      look, 3 calls, 1 went wrong",
        "cost:      0.0018",
        "unread:    log.jsonl, line 10: not JSON",
        "unread:    log.jsonl, line 11: neither a span nor a chat",
        "cases.jsonl: 2 (left out: 1 failed), 2 with secrets masked",
        "rows.jsonl: 6 (left out: 3 of failed traces), 4 with secrets masked",
    ):
        assert expected in out
    rows = [json.loads(row) for row in Path("rows.jsonl").read_text().splitlines()]
    assert rows[0]["agent"] == "reader_0" and rows[0]["action"].startswith("<tool_call>\n")
    assert [m["role"] for m in rows[1]["messages"]] == ["system", "user", "assistant", "user"]
    assert rows[1]["messages"][3]["content"] == "<tool_response>\nin Rome\n</tool_response>"
    case = json.loads(Path("cases.jsonl").read_text().splitlines()[0])
    assert case["problem"] == "Where is order 1? My key is ***." and case["answer"] == "It is in Rome."
    assert not any(KEY in file.read_text() for file in Path().iterdir() if file.name != "log.jsonl")
    assert main(words) == 1 and "is there already" in capsys.readouterr().err
    env = marft_envs.make("cases-v0", data="cases.jsonl", profiles="cases-team.json")
    assert env.possible_agents == ["reader_0", "writer_0"] and env.unwrapped.profile("reader_0").prompt == "Read {it}."
    env.reset(seed=0, options={"task_id": case["id"]})
    for text in ("Rome", "it is in rome"):
        env.step(text)
    assert env.episode.success and env.episode.metrics["f1"] == 1.0


def test_rows_are_learnt_from_without_playing_anything_again(capsys: pytest.CaptureFixture[str]) -> None:
    line("log.jsonl", *(entry for i in range(30) for entry in support(f"t{i}", i)))
    assert main(["traces", "log.jsonl", "--sft", "rows.jsonl", "--cases", "cases.jsonl"]) == 0
    env = ["--env", "cases-v0", "--env-kwargs", "data=cases.jsonl", "profiles=cases-team.json"]
    quick = ["--iterations", "1", "--episodes-per-iteration", "8", "--eval-episodes", "4", "--max-new-tokens", "64"]
    words = ["sft", *env, "--demonstrations", "rows.jsonl", "--models", "embedded", *quick, "--name", "taught"]
    assert main(words) == 0
    capsys.readouterr()
    for source in ("rows.jsonl", "runs/taught"):
        assert all(episode.success and "prompt" in episode.info for _, episode in recorded(source))
    other = ["sft", "--env", "relay-v0", "--demonstrations", "rows.jsonl", *quick, "--models", "embedded"]
    assert main(other) == 1 and "a reply of 'reader_0', who is not in the team" in capsys.readouterr().err


def test_what_is_no_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    line(
        "rows.jsonl", {"messages": [said("user", "x")], "action": "y", "agent": "a_0"}, {"messages": [], "action": "y"}
    )
    with pytest.raises(DataError, match=r"rows.jsonl, line 2: expected a row with 'messages'"):
        list(read_rows(Path("rows.jsonl")))
    assert main(["traces", "rows.jsonl", "nowhere.jsonl"]) == 1
    assert "nowhere.jsonl cannot be read" in capsys.readouterr().err
    line("none.jsonl", {"a": 1})
    assert main(["traces", "none.jsonl"]) == 1
    assert (
        "There is no trace in none.jsonl. Unread: none.jsonl, line 1: neither a span nor a chat"
        in capsys.readouterr().err
    )


# Spans -----------------------------------------------------------------------------------------------


def span(number: int, parent: int | None, **attributes: Any) -> dict[str, Any]:
    """As the collector's file exporter writes it."""

    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, int):
            return {"intValue": str(value)}
        return {"stringValue": value if isinstance(value, str) else json.dumps(value)}

    keys = {key.replace("__", "."): typed(value) for key, value in attributes.items() if not key.startswith("_")}
    return {
        "traceId": "ab", "spanId": f"{number:02}", "parentSpanId": "" if parent is None else f"{parent:02}",
        "startTimeUnixNano": str(10**18 + number), "name": "x", "status": attributes.get("_status", {}),
        "attributes": [{"key": key, "value": value} for key, value in keys.items()],
        "events": attributes.get("_events", []),
    }  # fmt: skip


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": "desk"}}]}
    return {"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": list(spans)}]}]}


def test_spans_of_others_in_otlp() -> None:
    told = [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
    answer = [
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "Yo"}]}
    ]
    picture = [{"role": "user", "parts": [{"type": "blob", "content": "…"}]}]
    chats: dict[str, Any] = {"gen_ai__operation__name": "chat", "gen_ai__request__model": "m"}
    event = [{"key": "role", "value": {"stringValue": "user"}}, {"key": "content", "value": {"stringValue": "Old"}}]
    choice = [{"key": "message", "value": {"stringValue": '{"role": "assistant", "content": "New"}'}}]
    line(
        "spans.jsonl",
        otlp(
            span(3, 2, **chats, gen_ai__input__messages=told, gen_ai__output__messages=answer, gen_ai__usage__input_tokens=5),
            span(2, 1, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="Greeter", gen_ai__output__messages=answer),
            span(1, None, gen_ai__operation__name="invoke_workflow"),
        ),
        otlp(
            span(4, 2, gen_ai__operation__name="execute_tool", gen_ai__tool__name="ring", _status={"code": 2}),
            span(5, 1, **chats, gen_ai__input__messages=picture, gen_ai__output__messages=answer),
            span(6, 1, **chats, _events=[{"name": "gen_ai.user.message", "attributes": event},
                                         {"name": "gen_ai.choice", "attributes": choice}]),
            span(7, 1, llm__request__type="chat", gen_ai__prompt__0__role="user", gen_ai__prompt__0__content="Q",
                 gen_ai__completion__0__tool_calls__0__name="look", gen_ai__completion__0__tool_calls__0__arguments="{}"),
            span(8, 1, **chats, gen_ai__output__messages="[no json"),
        ),
    )  # fmt: skip
    (trace,), unread = read(["spans.jsonl"])
    assert trace.kind == "desk" and trace.calls == [("ring", True)]
    turns = [(t.agent, plain(t.prompt), t.said and t.said.content) for t in trace.turns]
    assert turns[0] == ("Greeter", [said("user", "Hi")], "Yo") and trace.turns[0].prompt_tokens == 5
    assert turns[2] == ("agent", [said("user", "Old")], "New")
    assert turns[3][1] == [said("user", "Q")] and str(turns[3][2]).startswith("<tool_call>")
    assert len(unread) == 2 and "span 05: a part of type 'blob' that is no text" in unread[0] and "span 08" in unread[1]


def test_our_own_spans_give_what_the_agents_were_told(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")
    from marft_envs.records import otel

    env = marft_envs.make("math-dual-v0", levels=[0])
    episode = experts.play(env, 3)
    rows = trajectory.to_samples(episode, env)
    for name, replayed in (("whole", env), ("part", None)):
        spans = otel.spans(episode, content=True, env=replayed)
        Path(name).write_text("\n".join(one.to_json(indent=2) for one in spans))
    assert main(["traces", "whole", "--sft", "rows.jsonl", "--cases", "cases.jsonl"]) == 0
    assert "agent:     reasoner_0, 1 turns" in capsys.readouterr().out
    written = [json.loads(row) for row in Path("rows.jsonl").read_text().splitlines()]
    assert [(r["agent"], r["action"], r["messages"], r["task_id"]) for r in written] == [
        (r["agent"], r["action"], r["messages"], r["task_id"]) for r in rows
    ]
    assert json.loads(Path("cases.jsonl").read_text())["id"] == episode.task_id
    assert main(["traces", "part", "--sft", "few.jsonl"]) == 1
    assert "left out: 2 without prompt or reply" in capsys.readouterr().err


def test_a_loop_and_a_whole_chat(capsys: pytest.CaptureFixture[str]) -> None:
    again = [m for _ in range(3) for m in ({**said("assistant", "Again."), "name": "Boss"}, said("user", "No."))]
    line("chat.jsonl", {"messages": [said("user", "Go."), *again, said("assistant", "Done.")], "cost": 0.5})
    assert main(["traces", "chat.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "loop:      Boss says the same 3 times" in out and "handoff:   Boss -> agent, 1 times" in out
    assert "cost:      0.5000, of 1 turns" in out


@pytest.mark.parametrize("response", [None, {"error": "overloaded"}, {"choices": []}, [{"choices": []}]])
def test_a_call_without_a_reply_is_no_turn_of_an_earlier_reply(
    response: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = {"messages": [said("user", "2+2?"), said("assistant", "4"), said("user", "3+3?")]}
    line("chat.jsonl", {"id": "t", "request": chat, "response": response}, {"id": "u", **chat})
    assert main(["traces", "chat.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "traces:    1, 1 turns" in out and "line 1: a chat without a reply" in out


def test_messages_of_one_role_are_one() -> None:
    assert plain(chat([said("developer", "a"), said("system", "b")])) == [said("system", "a\nb")]


@pytest.mark.parametrize(("text", "wrong"), [
    ('{"error": null, "result": 5}', False), ('{"errors": [], "rows": [1]}', False), ('{"error": "gone"}', True),
    ('{"result": null, "errorMessage": "gone"}', True), ("Error: gone", True), ("{'error': 'gone'}", False),
    ("[" * 100_000, False), ("an error", False),
])  # fmt: skip
def test_a_result_went_wrong_if_it_says_so(text: str, wrong: bool) -> None:
    assert _went_wrong(text) == wrong
