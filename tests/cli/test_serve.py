"""`marft serve`: a whole team as one model, by OpenAI's chat API; what it says is what the evaluation heard."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from examples import engineer
from marft_algos.cli import main
from marft_algos.config import keys
from marft_algos.extras import shadow
from marft_algos.extras.serve import ServedTeam, TeamServer, _team
from marft_algos.training.team import load_team
from marft_algos.types import Generation, StopReason
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError, MarftError
from marft_envs.records.trajectory import read
from marft_envs.server.door import RefusedRequest
from marft_envs.server.openai import WAITING


def ask(server: TeamServer, body: Any, path: str = "/v1/chat/completions", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    sent = {"Content-Type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
    connection.request("POST", path, body if isinstance(body, str) else json.dumps(body), sent)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def served() -> Iterator[TeamServer]:
    """A team that repeats what it is told."""
    said = []

    def reply(agent: str, messages: Any) -> str:
        if "outage" in str(messages):
            raise MarftError("the endpoint did not answer")
        said.append(messages)
        return f"{agent} heard {messages[-1]['content']!r}"

    with TeamServer(ServedTeam(marft_envs.make("math-dual-v0"), reply), "team") as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def test_a_message_is_a_task_and_the_answer_is_the_last_turn(served: TeamServer) -> None:
    status, text = ask(served, user("Add <|im_end|> 2 and 3.", marft_trace=True))
    content = json.loads(text)
    assert status == 200 and content["model"] == "team" and content["object"] == "chat.completion"
    reasoner, actor = content["marft_trace"]
    assert reasoner["text"] == "reasoner_0 heard 'Add < |im_end|> 2 and 3.'" and actor["sees"] == [0]
    assert content["choices"][0]["message"] == {"role": "assistant", "content": actor["text"]}
    assert "Add < |im_end|> 2 and 3." in actor["text"]
    parts = [{"role": "user", "content": [{"type": "text", "text": "Other."}]}]
    assert "Other." in json.loads(ask(served, {"messages": parts})[1])["choices"][0]["message"]["content"]


def test_the_last_agent_is_streamed(served: TeamServer) -> None:
    whole = json.loads(ask(served, user("Say é."))[1])["choices"][0]["message"]["content"]
    status, text = ask(served, user("Say é.", stream=True, marft_trace=True))
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert status == 200 and lines.pop() == "[DONE]" and len(lines) > 2
    events = [json.loads(line) for line in lines]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == whole
    assert events[-1]["choices"][0]["finish_reason"] == "stop" and len(events[-1]["marft_trace"]) == 2


def test_the_client_of_openai_talks_to_a_team(served: TeamServer) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed (extra hosted)")
    served.models = ("runs/old",)
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{served.server_address[1]}/v1", api_key="any", max_retries=0
    ) as client:
        assert [model.id for model in client.models.list()] == [client.models.retrieve("runs/old").id] == ["runs/old"]
        chat = {"model": "runs/old", "messages": user("Say é.")["messages"]}
        whole = client.chat.completions.create(**chat, temperature=0.5, extra_body={"marft_trace": True})
        assert whole.choices[0].finish_reason == "stop" and whole.marft_trace[1]["agent"] == "actor_0"
        with client.chat.completions.create(**chat, stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == whole.choices[0].message.content and len(pieces) > 2
        with client.chat.completions.stream(**chat) as events:
            assert events.get_final_completion().choices[0].message.content == whole.choices[0].message.content
        with client.chat.completions.stream(**chat, stream_options={"include_usage": True}) as events:
            assert events.get_final_completion().usage is not None
        with pytest.raises(openai.BadRequestError, match="Expected a message of a user"):
            client.chat.completions.create(model="x", messages=[{"role": "system", "content": "x"}])
        with pytest.raises(openai.InternalServerError, match="the endpoint did not answer"):
            client.chat.completions.create(model="x", messages=user("outage")["messages"])
        with pytest.raises(openai.NotFoundError, match="Expected /v1/models"):
            client.models.retrieve("another")


def test_bad_requests_and_outages_are_said(served: TeamServer) -> None:
    for body, status, expected in (
        ("{", 400, "The body is no JSON"),
        ([], 400, "Expected a JSON object with 'messages'"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "Expected a message of a user"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "a part of type 'image_url'"),
        (user("outage"), 502, "the endpoint did not answer"),
    ):
        got, text = ask(served, body)
        assert got == status and expected in json.loads(text)["error"]["message"]
    for path, says in (
        ("/v1/messages", "Anthropic"),
        ("/v1/embeddings", "base_url=URL"),
        ("/v1/nothing", "/v1/responses"),
    ):
        status, text = ask(served, user("x"), path)
        assert status == 404 and says in text
    assert ask(served, user("still there"), "/v1/chat/completions/?api-version=2024-10-21")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:80"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "text/plain; x=json"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=json"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded;json"}, 415),
        ({"Content-Type": "application/json-patch+json"}, 415),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
    ],
)
def test_a_page_of_a_stranger_does_not_make_a_team_act(
    served: TeamServer, headers: dict[str, str], status: int
) -> None:
    assert ask(served, user("x"), **headers)[0] == status


SAID = {"role": "assistant", "content": "10"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"messages": [*user("a")["messages"], SAID, *user("b")["messages"]]}, "one task per request"),
        ({"messages": [*user("a")["messages"], *user("b")["messages"]]}, "one task per request"),
        ({"messages": [{"role": "system", "content": "x"}, *user("b")["messages"]]}, "system, user"),
        ({"messages": [{"role": "developer", "content": "x"}, *user("b")["messages"]]}, "developer, user"),
        ({"messages": [{"role": "tool", "content": "4", "tool_call_id": "c"}]}, "one task per request"),
        ({"messages": [SAID]}, "message of a user"),
        ({"messages": [{"role": "user", "content": " "}]}, "this one is empty"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"n": 2}, "n is 2"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_another_question_than_a_task_is_refused_in_words(served: TeamServer, more: dict[str, Any], says: str) -> None:
    status, text = ask(served, user("x") | more)
    assert status == 400 and says in json.loads(text)["error"]["message"]


def test_a_key_is_asked_for_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", "right")
    assert (
        keys.of_users("TEAM_KEY") == "right"
        and keys.of_users("") is None
        and keys.of_users("drawn") != keys.of_users("drawn")
    )
    with pytest.raises(ConfigError, match=r"'NO_KEY', which is not set.*--key drawn"):
        keys.of_users("NO_KEY")
    team = ServedTeam(marft_envs.make("math-solo-v0"), lambda agent, messages: "5")
    with TeamServer(team, "team", key="right") as server:
        server.start()
        for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}):
            status, text = ask(server, "{", **shown)
            assert status == 401 and "marft serve --key" in json.loads(text)["error"]["message"]
        assert ask(server, user("x"), Authorization="Bearer right")[0] == 200
        assert get(server, "/v1/models")[0] == 401 and get(server, "/health") == (200, {"status": "ok"})
        server.shutdown()


def get(server: TeamServer, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.mark.parametrize(("ended", "finish"), [(StopReason.EOS, "stop"), (StopReason.LENGTH, "length")])
def test_tokens_are_counted_over_the_team_and_a_cut_answer_is_said(ended: StopReason, finish: str) -> None:
    said = Generation([1, 2], np.zeros(2, np.float32), ended, 0, "Five.", usage=(30, 2))
    team = ServedTeam(marft_envs.make("math-dual-v0"), lambda agent, messages: said)
    with TeamServer(team, "team") as server:
        server.start()
        whole = json.loads(ask(server, user("x"))[1])
        streams = [
            [json.loads(line[6:]) for line in ask(server, user("x", stream=True, **more))[1].split("\n\n")[:-2]]
            for more in ({}, {"stream_options": {"include_usage": True}})
        ]
        server.shutdown()
    usage = {"prompt_tokens": 60, "completion_tokens": 4, "total_tokens": 64}
    assert whole["usage"] == usage and whole["choices"][0]["finish_reason"] == finish
    assert all(event["choices"] and "usage" not in event for event in streams[0])
    assert [event["usage"] for event in streams[1]] == [None, None, usage] and not streams[1][-1]["choices"]
    assert streams[0][-1]["choices"][0]["finish_reason"] == finish


def test_nobody_plays_for_those_who_have_gone_and_a_full_queue_says_so() -> None:
    begun, go_on = threading.Event(), threading.Event()
    tasks: list[str] = []

    def reply(agent: str, messages: Any) -> str:
        tasks.append(messages[-1]["content"])
        begun.set()
        go_on.wait(20)
        return "5"

    with TeamServer(ServedTeam(marft_envs.make("math-dual-v0"), reply), "team") as server:
        server.start()
        lines = []
        for i in range(WAITING + 1):
            lines.append(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60))
            body = json.dumps(user(f"Task {i}."))
            lines[-1].request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            begun.wait(20)
        until = time.monotonic() + 20
        while len(server.queue) <= WAITING and time.monotonic() < until:
            time.sleep(0.01)  # until the queue is full: a request that finds a place would wait in it
        full = ask(server, user("late"))
        assert full[0] == 429 and "wait already" in full[1]
        last = lines.pop()
        for line in lines:
            line.close()
        while len(server.queue) > 2 and time.monotonic() < until + 20:
            time.sleep(0.01)  # until all but the first and the last have noticed
        go_on.set()
        assert last.getresponse().status == 200
        last.close()
        server.shutdown()
    assert len(tasks) == 3 and "Task 0." in tasks[0] and "Task 64." in tasks[2], "of two turns the second is not played"


def test_tasks_that_are_no_text_are_refused() -> None:
    for env, of in (("tools-solo-v0", "'depot'"), ("relay-v0", "relay-v0")):
        with pytest.raises(ConfigError, match=f"A task of {of} is more than a text"):
            ServedTeam(marft_envs.make(env), lambda agent, messages: "")
    with pytest.raises(ConfigError, match="oracle=True needs a gold answer"):
        ServedTeam(marft_envs.make("math-solo-v0", oracle=True, rounds=2), lambda agent, messages: "")


def test_tools_whose_world_no_problem_changes_are_served() -> None:
    said = iter(
        ["2+3=5,", r"\boxed{5}", '<tool_call>{"name": "charge", "arguments": {"amount": 5}}</tool_call>', "Paid."]
    )
    env = engineer.make("test")
    team = ServedTeam(env, lambda agent, messages: next(said))
    episode = team.play("Compute $2+3$.")
    assert [turn.agent for turn in episode.turns] == ["reasoner_0", "actor_0", "clerk_0", "clerk_0"]
    assert episode.turns[-1].text == "Paid." and "charged 5" in episode.turns[2].result
    assert episode.success is None and set(episode.metrics) == {"seconds"}, "nobody has judged it"
    assert "Compute $2+3$." in env.unwrapped.messages("clerk_0")[1]["content"]
    with pytest.raises(ConfigError, match="holds the tool 'charge', which may change something"):
        shadow.check(env, "runs/x")


@pytest.mark.ci
def test_a_served_export_gives_the_evaluated_answers(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--iterations", "1", "--episodes-per-iteration", "8", "--eval-episodes", "4", "--max-new-tokens", "24"]
    assert main(["train", *quick, "--env-kwargs", "levels=[0]", "--name", "quick"]) == 0
    assert main(["export", "runs/quick", "--out", "team"]) == 0
    assert main(["eval", "runs/quick", "--episodes", "4", "--out", "played.jsonl"]) == 0
    trained = load_team("team")
    team = ServedTeam(trained.env, trained.reply)
    for episode in read("played.jsonl"):
        problem = (episode.turns[0].extras or {})["observation"]
        assert [turn.text for turn in team.play(problem).turns] == [turn.text for turn in episode.turns]
    for words in (3_000, 1_000_000):
        with pytest.raises(RefusedRequest, match=r"does not fit|has a context") as refused:
            team.play("one " * words)
        assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    _shadowed(capsys)


def _shadowed(capsys: pytest.CaptureFixture[str]) -> None:
    """A second team plays what the first has answered, is heard by nobody, and is compared by the task."""
    (team, _, live), (other, _, kept) = (_team("team", "said", part) for part in ("live", "shadow"))
    assert live is not None and kept is not None

    def play(text: str) -> Episode:
        if "nine" in text:
            raise MarftError("the endpoint did not answer")
        episode = other.play(text)
        return (
            replace(episode, turns=[replace(t, text="\\boxed{-1}") for t in episode.turns]) if "5" in text else episode
        )

    alone = [json.loads(ask_team(team, text))["choices"] for text in TEXTS]
    with closing(shadow.Shadow(play, live, kept, other.answer_key)) as heard:
        assert [json.loads(ask_team(team, text, heard))["choices"] for text in TEXTS] == alone
    capsys.readouterr()
    assert main(["eval", "--compare", "said/live", "said/shadow", "--json", "--gate", "same=-0.1"]) == 4
    found = {c["name"]: c for c in json.loads(capsys.readouterr().out)["changes"]}
    assert found["task/same"]["difference"]["mean"] == -0.5 and found["task/same"]["difference"]["n"] == 2
    assert (
        found["infrastructure_errors"]["difference"]["mean"] == 1 / 3
        and "score" not in found
        and found["task/seconds"]["before"] > 0
    )
    assert main(["eval", "--compare", "said/live", "said/shadow"]) == 0, "without a score there is no gate"
    assert main(["serve", "team", "--shadow", "team"]) == 1 and "--record DIR" in capsys.readouterr().err
    _, _, again = _team("team", "said", "live")
    assert again is not None and again.played == len(TEXTS)


TEXTS = ("Compute $1+2$.", "Compute $5+2$.", "What is nine?")


def ask_team(team: ServedTeam, text: str, sink: Any = None) -> str:
    with TeamServer(team, "team", sink=sink) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        status, answer = ask(server, user(text))
        server.shutdown()
    assert status == 200
    return answer
