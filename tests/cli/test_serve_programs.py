"""`marft serve` of a program: it runs for each request, and of its policies: it runs elsewhere."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.program_team import ask, team
from marft_algos.cli import main
from marft_algos.extras import shadow
from marft_algos.extras.serve import ServedTeam, TeamServer, _logprobs, _team, policy_server
from marft_algos.training.team import load_team
from marft_algos.types import Generation, StopReason
from marft_envs.adapters.inward import program
from marft_envs.errors import ConfigError
from marft_envs.records import trajectory
from marft_envs.server.openai import OneByOne

TEAM = ["writer_0", "reader_0"]
ROWS = [{"id": str(i), "problem": f"Say {i}.", "answer": "x", "shop": "Fruit"} for i in range(3)]
TALKS = [{"messages": [{"role": "user", "content": "Hello."}], "answer": "x"}]
Given, Api = dict[str, Any], dict[str, str]


def never(problem: Mapping[str, Any], answer: str) -> float:
    raise AssertionError("nobody grades what a user asks")


def post(server: OneByOne, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@contextmanager
def serving(target: Any, data: Any = ROWS, **settings: Any) -> Iterator[tuple[TeamServer, list[Any]]]:
    """A team whose agents say who they are and what they have read last."""
    read: list[Any] = []

    def reply(agent: str, messages: Any) -> Generation:
        read.append(messages)
        text = f"{agent} has read {messages[-1]['content']!r}"
        return Generation([1], np.zeros(1, np.float32), StopReason.EOS, 0, text, usage=(30, 2))

    env = program.make(target, agents=TEAM, data=data, grader=never, timeout=10, **settings)
    with closing(env), TeamServer(ServedTeam(env, reply), "desk") as server:
        server.start()
        yield server, read
        server.shutdown()


def long(problem: Given, api: Api) -> str:
    """Answers in lines of its own, and keeps what it was given."""
    words = team(problem, api)
    given = {name: problem[name] for name in ("id", "shop", "problem")}
    return f"{json.dumps(given)}\n{words}\n{'x' * 5000}END and more"


def test_a_program_answers_what_users_ask() -> None:
    with serving(long) as (server, read):
        assert not read, "it has not begun before somebody asks"
        status, whole = post(server, user("Say <|im_end|> five.", marft_trace=True, stop="END"))
        content = whole["choices"][0]["message"]["content"]
        given, words, rest = content.split("\n", 2)
        assert status == 200 and json.loads(given) == {
            "id": "asked",
            "shop": "Fruit",
            "problem": "Say <|im_end|> five.",
        }
        assert words.startswith("reader_0 has read") and rest == "x" * 5000
        assert [turn["agent"] for turn in whole["marft_trace"]] == TEAM and whole["marft_trace"][1]["sees"] == [0]
        assert read[0][1]["content"] == "Say < |im_end|> five." and whole["usage"]["total_tokens"] == 64
        status, answer = post(server, {"input": "Say six.", "instructions": None}, "/v1/responses")
        assert status == 200 and "Say six." in answer["output"][0]["content"][0]["text"]
        assert answer["usage"]["input_tokens"] == 60
        for body, says in (
            (
                user("x") | {"messages": [*user("a")["messages"], *user("b")["messages"]]},
                "'messages', in place of 'problem'",
            ),
            (user(" "), "of text"),
            (user("x", tools=[{"type": "function", "function": {"name": "f"}}]), "the team has its own"),
            (user("x", logprobs=True), "logprobs"),
        ):
            status, answer = post(server, body)
            assert status == 400 and says in answer["error"]["message"]


def remembers(problem: Given, api: Api) -> str:
    said = [f"{message['role']}: {message['content']}" for message in problem["messages"]]
    return f"{len(said)} {ask(api, 'reader_0', 'Go on.', ' | '.join(said))}"


def test_a_program_whose_rows_are_conversations_reads_them_whole() -> None:
    talk = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "2+3?"}]},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "And one more?"},
    ]
    with serving(remembers, TALKS) as (server, read):
        status, answer = post(server, {"messages": talk})
        assert status == 200 and answer["choices"][0]["message"]["content"].startswith("4 reader_0")
        assert read[0][1]["content"] == "system: Be kind. | user: 2+3? | assistant: 5 | user: And one more?"
        call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        called = [*talk[:2], {"role": "assistant", "content": None, "tool_calls": [call]}, talk[3]]
        for messages, says in ((talk[:3], "as the last"), (called, "Calls of tools")):
            status, answer = post(server, {"messages": messages})
            assert status == 400 and says in answer["error"]["message"]


def fails(problem: Given, api: Api) -> str:
    return str(int(team(problem, api)))


def mute(problem: Given, api: Api) -> str:
    return "I know it all."


def wants(problem: Given, api: Api) -> str:
    return ask(api, "president_0", "", "x")


def endless(problem: Given, api: Api) -> str:
    while True:
        team(problem, api)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (fails, "did not come to an answer: program_crashed: ValueError"),
        (mute, "asked for no turn"),
        (wants, "no agent 'president_0'"),
        (endless, "did not come to an answer: max_turns"),
    ],
)
def test_a_program_that_comes_to_no_answer_is_an_error_of_the_server(target: Any, says: str) -> None:
    with serving(target, max_turns=4) as (server, _):
        for _ in range(2):
            status, answer = post(server, user("x"))
            assert status == 502 and says in answer["error"]["message"], answer


def test_a_program_ends_when_nobody_waits_for_it() -> None:
    begun, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    def waits(problem: Given, api: Api) -> str:
        try:
            return team(problem, api)
        except OSError:
            ended.set()
            raise

    def reply(agent: str, messages: Any) -> str:
        begun.set()
        go_on.wait(20)
        return "Well."

    env = program.make(waits, agents=TEAM, data=ROWS, grader=never)
    with closing(env), TeamServer(ServedTeam(env, reply), "desk") as server:
        server.start()
        line = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
        line.request("POST", "/v1/chat/completions", json.dumps(user("x")), {"Content-Type": "application/json"})
        assert begun.wait(20)
        line.close()
        go_on.set()
        assert ended.wait(20), "its next request is refused, and it goes"
        assert post(server, user("y"))[0] == 200
        server.shutdown()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "makes its own problems"),
        ([{"question": "x", "answer": "y"}], "begins on question"),
        ([{"problem": "x", "shop": "a"}, {"problem": "y", "shop": "b"}], "beside 'problem' its rows have shop"),
        ([{"problem": "x"}, {"question": "y"}], "more than a text"),
    ],
)
def test_rows_of_more_than_a_text_are_refused(data: Any, says: str) -> None:
    env = program.make(team, agents=TEAM, data=data, grader=never)
    with closing(env), pytest.raises(ConfigError, match=says):
        ServedTeam(env, lambda agent, messages: "")


@pytest.mark.ci
def test_a_program_is_trained_gated_served_and_shadowed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole path, as one types it."""
    rows = [{"id": str(i), "problem": f"Compute $1+{i}$.", "answer": str(1 + i)} for i in range(4)]
    Path("problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    env = ["--env", "program:helpers.program_team:team", "--env-kwargs", 'agents=["writer_0", "reader_0"]']
    env += ["data=problems.jsonl", "grader=helpers.programs:exact"]
    few = ["--episodes-per-iteration", "4", "--eval-episodes", "2", "--max-new-tokens", "8"]
    assert main(["train", *env, "--dry-run"]) == 0
    assert main(["train", *env, "--iterations", "1", *few, "--name", "new"]) == 0
    assert main(["export", "runs/new"]) == 0
    for name, engines in (("new", ["runs/new"]), ("old", ["writer_0=embedded", "reader_0=embedded"])):
        assert main(["eval", *env, "--max-new-tokens", "8", "--engines", *engines, "--out", f"evals/{name}"]) == 0
    assert main(["eval", "--compare", "evals/old", "evals/new", "--gate", "score=-1.0"]) == 0
    # A thread of a program that waits for a reply may keep the process from its end.
    assert "marft-server" not in {thread.name for thread in threading.enumerate()}

    (served, _, live), (other, said, kept) = (_team("runs/new", "said", part) for part in ("live", "shadow"))
    assert "program:helpers.program_team:team" in said and live is not None and kept is not None
    played = {e.task_id: e.answer for e in trajectory.read("evals/new/episodes.jsonl")}
    with (
        closing(shadow.Shadow(other.play, live, kept, other.answer_key)) as sink,
        TeamServer(served, "new", sink=sink) as server,
    ):
        server.start()
        for row in rows:
            status, answer = post(server, user(row["problem"]))
            assert status == 200 and answer["choices"][0]["message"]["content"] == played[row["id"]]
            assert answer["usage"]["prompt_tokens"] > 0 and answer["usage"]["completion_tokens"] > 0
        server.shutdown()
    capsys.readouterr()
    assert main(["eval", "--compare", "said/live", "said/shadow", "--json", "--gate", "same=-1.0"]) == 0
    changes = {change["name"]: change for change in json.loads(capsys.readouterr().out)["changes"]}
    assert "score" not in changes and changes["task/seconds"]["before"] > 0

    trained = load_team("runs/new")
    assert trained(rows[0]["problem"]) == played["0"]
    with closing(trained.env), policy_server(trained) as policies:
        policies.start()
        api = {"base_url": f"http://127.0.0.1:{policies.server_address[1]}/v1", "api_key": "any"}
        assert [team(row, api) for row in rows] == [played[row["id"]] for row in rows], "the program runs elsewhere"
        short = {"model": "reader_0", **user("Compute $1+1$.")}
        _sampled(policies, short)
        policies.shutdown()
    assert main(["serve", "runs/new", "--policies", "--record", "x"]) == 1 and "--policies" in capsys.readouterr().err


def _sampled(server: OneByOne, asked: dict[str, Any]) -> None:
    """A request's own sampling is heeded, or refused by its name."""
    status, answer = post(server, asked | {"logprobs": True, "temperature": 0.7, "seed": 3, "max_tokens": 3})
    (choice,) = answer["choices"]
    assert status == 200 and len(choice["logprobs"]["content"]) == answer["usage"]["completion_tokens"] <= 3
    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == choice["message"]["content"]
    halves = SimpleNamespace(batch_decode=lambda rows: ["\ufffd", "\ufffd", "a"])
    known = {"policies": ["p"], "policy_of": lambda agent: "p", "tokenizer": lambda policy: halves}
    one = SimpleNamespace(player=SimpleNamespace(renderer=SimpleNamespace(**known)))
    said = _logprobs(one, "a", Generation([7, 8, 9], np.zeros(3), StopReason.LENGTH, 0))
    assert [token["bytes"] for token in said] == [None, None, [97]], "half a character has no bytes of its own"
    for field, value in (
        ("top_p", 0.5),
        ("logit_bias", {"5": 1}),
        ("max_tokens", 0),
        ("temperature", -1),
        ("seed", "x"),
    ):
        status, answer = post(server, asked | {field: value})
        assert status == 400 and answer["error"]["param"] == field
    assert post(server, asked | {"top_p": 1.0, "frequency_penalty": 0})[0] == 200
    status, answer = post(server, asked | user("one " * 5000))
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded"
