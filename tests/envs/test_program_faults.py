"""Programs that behave badly at the endpoint: each is typed and counted, and nothing of it is lost."""

from __future__ import annotations

import json
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from helpers.program_team import ask
from marft_envs.adapters.inward import program
from marft_envs.errors import ConfigError

TEAM = ["writer_0", "reader_0"]
ROWS = [{"problem": "Name who reads.", "answer": ""}]
Given, Api = dict[str, Any], dict[str, str]


def post(api: Api, path: str = "/chat/completions", **fields: Any) -> Any:
    body = {"model": "writer_0", "messages": [{"role": "user", "content": "x"}], **fields}
    head = {"Authorization": f"Bearer {api['api_key']}"}
    sent = urllib.request.Request(api["base_url"] + path, json.dumps(body).encode(), head)
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)


def swallows(problem: Given, api: Api) -> str:
    """Goes on after a refusal, and trusts a model later."""
    with suppress(urllib.error.HTTPError):
        post(api, n=2)
    return str(int(ask(api, "writer_0", "", "Say a number.")))


def retries(problem: Given, api: Api) -> str:
    ask(api, "writer_0", "", "x")
    while True:
        with suppress(urllib.error.HTTPError):
            return str(post(api, response_format={"type": "json_object"}))


def insists(problem: Given, api: Api) -> str:
    """Asks for ever whom a model has named."""
    named = ask(api, "writer_0", "", problem["problem"])
    while True:
        with suppress(urllib.error.HTTPError):
            return ask(api, named, "", "Well?")


def embeds(problem: Given, api: Api) -> str:
    ask(api, "writer_0", "", "x")
    return str(post(api, "/embeddings", input="x"))


def hangs_up(problem: Given, api: Api) -> str:
    """Leaves two requests: one before its reply, one in the middle of its stream."""
    where = urlsplit(api["base_url"])
    for stream in (False, True):
        body = {"model": "writer_0", "messages": [{"role": "user", "content": f"{stream}"}], "stream": stream}
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {api['api_key']}\r\nContent-Length: {len(data)}"
        with socket.create_connection((where.hostname, where.port)) as line:
            line.sendall(head.encode() + b"\r\n\r\n" + data)
            if stream:
                assert line.recv(40).startswith(b"HTTP/1.1 200")
    return ask(api, "reader_0", "", "And now?")


@pytest.mark.parametrize(
    ("team", "replies", "fault", "why", "metrics"),
    [
        (swallows, ["seven"], "text", "program_crashed: ValueError", {"unknown_agents": 0}),
        (swallows, ["7"], "", "task", {}),
        (insists, ["the president"], "text", "world_hung: no request and no end", {}),
        (hangs_up, ["a" * 100_000, "b" * 300_000, "c"], "", "task", {"unknown_agents": 0}),
    ],
)
def test_what_words_cause_is_scored_and_every_turn_is_recorded(
    team: Any, replies: list[str], fault: str, why: str, metrics: dict[str, float]
) -> None:
    env = program.make(team, agents=TEAM, data=ROWS, grader=lambda *_: 1.0, timeout=2)
    with closing(env):
        env.reset(seed=0)
        for reply in replies:
            env.step(reply)
        episode = env.episode
    assert episode.fault == fault and episode.stop_reason.startswith(why), episode.stop_reason
    assert [turn.text for turn in episode.turns] == replies
    assert episode.reward == (0.0 if fault else 1.0)
    assert fault or metrics.items() <= episode.metrics.items()


@pytest.mark.parametrize(
    ("team", "says"),
    [
        (retries, "retries does not go on after a request that is refused: response_format is"),
        (embeds, r"embeds has ended by a request that is refused: There is no /v1/embeddings.*OpenAI\(base_url=URL"),
    ],
)
def test_what_code_asks_for_ends_the_run_whatever_the_program_makes_of_it(team: Any, says: str) -> None:
    env = program.make(team, agents=TEAM, data=ROWS, grader=lambda *_: 1.0, timeout=1)
    with closing(env):
        env.reset(seed=0)
        with pytest.raises(ConfigError, match=says):
            env.step("A.")


def test_a_program_that_forks_has_the_turns_of_both_and_leaves_nobody(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        f"import json, os, sys, time\nsys.path.insert(0, {str(Path(__file__).parent.parent)!r})\n"
        "from helpers.program_team import ask\n"
        "api = {'base_url': os.environ['OPENAI_BASE_URL'], 'api_key': os.environ['OPENAI_API_KEY']}\n"
        "json.loads(input())\n"
        "child = os.fork()\n"
        "words = ask(api, 'writer_0' if child else 'reader_0', '', 'Both at once.')\n"
        f"open({str(tmp_path)!r} + '/' + str(os.getpid()), 'w').close()\n"
        "if child == 0: time.sleep(600)\n"
        "print(words)\n"
    )
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"
    env = program.make(command, agents=TEAM, data=ROWS, grader=lambda row, words: float(words == "A."), window=2.0)
    with closing(env):
        env.reset(seed=0)
        assert env.ready_agents == TEAM
        env.step("A.")
        env.step("B.")
        assert env.episode.success and [turn.text for turn in env.episode.turns] == ["A.", "B."]
    pids, until = [int(file.name) for file in tmp_path.iterdir() if file.name.isdecimal()], time.monotonic() + 20
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return b"forks.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
