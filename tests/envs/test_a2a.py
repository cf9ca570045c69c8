"""A member behind an Agent2Agent endpoint: a stand-in speaks JSON-RPC on the loopback."""

from __future__ import annotations

import socketserver
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from examples import a2a_member
from helpers.fake_servers import Answer, serving
from marft_algos.engines import http
from marft_envs.core.partners import PartnerError

PARTS = [{"text": "7+8="}, {"data": {"x": 1}}, {"text": "15,"}]
DONE = {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [{"artifactId": "a", "parts": PARTS}]}


@pytest.mark.parametrize(
    "result", [{"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": PARTS}}, {"task": DONE}]
)
def test_an_agent_behind_a2a_is_a_member(result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(Path(a2a_member.__file__).read_text(encoding="utf-8").splitlines()) < 40
    with serving(lambda path, body: (200, {"jsonrpc": "2.0", "id": body["id"], "result": result})) as fake:
        monkeypatch.setenv("A2A_URL", fake.url)
        env = marft_envs.make("math-dual-v0", levels=[0], partners={"reasoner_0": "examples.a2a_member:ask"})
        env.reset(seed=0)
    assert env.agent_selection == "actor_0" and "[reasoner]\n7+8=\n15," in env.messages("actor_0")[-1]["content"]
    ((_, asked),) = fake.asked
    assert asked["method"] == "SendMessage" and fake.headers[0]["a2a-version"] == "1.0"
    message = asked["params"]["message"]
    assert message["role"] == "ROLE_USER" and "Reasoner" in message["parts"][0]["text"]


@pytest.mark.parametrize("content", [
    {"error": {"code": -32603, "message": "Internal error"}},
    {"result": {"task": {"status": {"state": "TASK_STATE_FAILED"}}}},
])  # fmt: skip
def test_an_agent_that_fails_is_an_infrastructure_error(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        return 200, {"jsonrpc": "2.0", "id": 1, **content}

    with serving(answer) as fake:
        monkeypatch.setenv("A2A_URL", fake.url)
        env = marft_envs.make("math-dual-v0", levels=[0], partners={"reasoner_0": "examples.a2a_member:ask"})
        with pytest.raises(PartnerError, match="did not answer"):
            env.reset(seed=0)


def test_an_agent_is_asked_past_proxies_and_its_redirects_and_lengths_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(http, "ANSWER_BYTES", 1000)
    found = {"result": {"message": {"parts": PARTS}}}
    with serving(lambda path, body: (200, found)) as other:
        answers: list[Answer] = [(200, found), (307, {}, {"Location": other.url}), (200, {"result": "x" * 2000})]
        with serving(lambda path, body: answers.pop(0)) as fake:
            monkeypatch.setenv("A2A_URL", fake.url + "/agents/v1?tenant=1")
            assert a2a_member.ask([{"role": "user", "content": "7+8?"}]) == "7+8=\n15,"
            for words in ("redirects are not followed", "sent more than"):
                with pytest.raises((http.ServerDown, http.ServerRefused), match=words):
                    a2a_member.ask([{"role": "user", "content": "7+8?"}])
        assert not other.asked and {path for path, _ in fake.asked} == {"/agents/v1?tenant=1"}


class Drips(socketserver.BaseRequestHandler):
    """Begins an answer, and gives a byte of it each tenth of a second."""

    def handle(self) -> None:
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            time.sleep(0.1)
            self.request.sendall(b" ")


def test_an_agent_that_never_ends_is_waited_for_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_member, "TIMEOUT", 0.5)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drips) as server:
        server.daemon_threads, server.handle_error = True, lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("A2A_URL", f"http://127.0.0.1:{server.server_address[1]}")
        began = time.monotonic()
        with pytest.raises(http.ServerDown, match="in time"):
            a2a_member.ask([{"role": "user", "content": "7+8?"}])
        assert time.monotonic() - began < 3
        server.shutdown()
