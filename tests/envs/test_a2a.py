"""A member behind an Agent2Agent endpoint: a stand-in speaks JSON-RPC on the loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import marft_envs
from examples import a2a_member
from helpers.fake_servers import Answer, serving
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


@pytest.mark.parametrize(
    "content",
    [
        {"error": {"code": -32603, "message": "Internal error"}},
        {"result": {"task": {"status": {"state": "TASK_STATE_FAILED"}}}},
    ],
)
def test_an_agent_that_fails_is_an_outage(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        return 200, {"jsonrpc": "2.0", "id": 1, **content}

    with serving(answer) as fake:
        monkeypatch.setenv("A2A_URL", fake.url)
        env = marft_envs.make("math-dual-v0", levels=[0], partners={"reasoner_0": "examples.a2a_member:ask"})
        with pytest.raises(PartnerError, match="did not answer"):
            env.reset(seed=0)
