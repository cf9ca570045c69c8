"""Policies served by their agents' names: a program reads and writes there what it does as an environment."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from contextlib import closing
from typing import Any

import pytest

import marft_envs
from marft_envs.adapters.inward import program
from marft_envs.adapters.inward import served as policies
from marft_envs.adapters.inward.served import PolicyReply, PolicyServer

TEAM = ["lead_0", "aide_0"]
WEIGH = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object", "properties": {}}}}
CALL = (
    '<think>Heavy?</think>I weigh it. <tool_call>\n{"name":  "weigh", "arguments": {"of": "fig \\u00e9"}}\n</tool_call>'
)
Api = dict[str, str]


def asked(api: Api, agent: str, messages: list[Any], **fields: Any) -> dict[str, Any]:
    data = json.dumps({"model": agent, "messages": messages, **fields}).encode()
    head = {"Authorization": f"Bearer {api['api_key']}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{api['base_url']}/chat/completions", data, head)) as answer:
        return dict(json.load(answer)["choices"][0]["message"])


def hands_over(problem: dict[str, Any], api: Api) -> str:
    """A lead calls, reads, and hands its whole conversation over; calls of a stranger are among it."""
    stranger = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "x", "type": "function", "function": {"name": "weigh", "arguments": '{"of": "pear"}'}},
    ]}  # fmt: skip
    talk: list[Any] = [
        {"role": "system", "content": "Lead <|im_end|>"},
        {"role": "user", "content": problem["problem"]},
        stranger,
        {"role": "tool", "tool_call_id": "x", "content": "150 g"},
    ]
    for _ in range(2):
        talk.append(asked(api, "lead_0", talk, tools=[WEIGH], parallel_tool_calls=False))
        made = talk[-1].get("tool_calls", ())
        talk += [{"role": "tool", "tool_call_id": call["id"], "content": "210 g"} for call in made]
    cut = asked(api, "aide_0", [*talk[1:], {"role": "user", "content": "Sum up."}], stop=["END"])["content"]
    other = {**talk[4], "tool_calls": [{**talk[4]["tool_calls"][0], "function": {"name": "weigh", "arguments": "{}"}}]}
    asked(api, "lead_0", [talk[1], other, {"role": "user", "content": f"He says: {cut}"}])
    return str(cut)


REPLIES = (CALL + CALL, "It is heavy. <tool_call> is what I write.", "All is heavy.\nEND of it", "Well.")


def served(team: Any, *replies: str, **settings: Any) -> tuple[Any, list[tuple[str, Any, Any]]]:
    """Runs a program against the policies; returns what it answers, and what the policies were asked."""
    left, shown = iter(replies), []

    def say(agent: str, messages: Any, tools: Any, asked: Any) -> PolicyReply:
        shown.append((agent, messages, tools))
        return PolicyReply(next(left), {"prompt_tokens": 5, "tokens": 2, "stop_reason": "eos"})

    members = [marft_envs.AgentSpec(name, name[:-2]) for name in TEAM]
    with PolicyServer(members, say, key="right", **settings) as server:
        server.start()
        api = {"base_url": f"http://127.0.0.1:{server.server_address[1]}/v1", "api_key": "right"}
        try:
            return team({"problem": "How heavy is it?"}, api), shown
        finally:
            server.shutdown()


@pytest.mark.parametrize("share_thoughts", [False, True])
def test_a_program_reads_the_same_inside_and_outside(share_thoughts: bool) -> None:
    inside = []
    rows = [{"problem": "How heavy is it?", "answer": ""}]
    settings: Any = {"agents": TEAM, "data": rows, "share_thoughts": share_thoughts}
    with closing(program.make(hands_over, grader=lambda *_: 1.0, **settings)) as env:
        env.reset(seed=0)
        for reply in REPLIES:
            agent = env.agent_selection
            inside.append((agent, env.messages(agent), env.tools[agent]))
            env.step(reply)
        answer = env.episode.info["answer"]
    outside = served(hands_over, *REPLIES, share_thoughts=share_thoughts)
    assert outside == (answer, inside) and answer == "All is heavy.\n"
    assert {"role": "assistant", "content": CALL + CALL} in inside[1][1], "as it was said, calls and thoughts"
    assert any("Heavy?" in message["content"] for message in inside[2][1]) is share_thoughts, "another agent's thoughts"
    assert not any(CALL in message["content"] for message in inside[3][1]), (
        "a call that the program has changed is no longer the turn"
    )


def test_calls_are_forgotten_at_a_number_and_ids_never_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "KEPT", 1)
    ids: list[str] = []

    def team(problem: dict[str, Any], api: Api) -> Any:
        made = [asked(api, "lead_0", [{"role": "user", "content": "x"}], tools=[WEIGH]) for _ in range(2)]
        ids.extend(message["tool_calls"][0]["id"] for message in made)
        for message in made:
            asked(api, "lead_0", [{"role": "user", "content": "x"}, message])

    _, shown = served(team, CALL, CALL, "a", "b")
    written = 'I weigh it.\n<tool_call>\n{"name": "weigh", "arguments": {"of": "fig é"}}\n</tool_call>'
    assert [messages[1]["content"] for _, messages, _ in shown[2:]] == [written, CALL] and ids[0] != ids[1]


@pytest.mark.parametrize(
    ("agent", "fields", "status", "says"),
    [
        ("nobody_0", {}, 404, "no agent 'nobody_0'"),
        ("lead_0", {"tools": [WEIGH], "tool_choice": "required"}, 400, "lead_0 has called none"),
        ("lead_0", {"n": 2}, 400, "n is 2"),
        ("lead_0", {"top_logprobs": 2}, 400, "top_logprobs"),
    ],
)
def test_what_is_not_given_is_refused(agent: str, fields: dict[str, Any], status: int, says: str) -> None:
    def team(problem: dict[str, Any], api: Api) -> tuple[int, str]:
        try:
            asked(api, agent, [{"role": "user", "content": "x"}], **fields)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["message"]
        return 200, ""

    (got, words), _ = served(team, "Well.")
    assert got == status and says in words
