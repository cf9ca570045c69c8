"""Hosted models that call tools by their API: calls become the environment's text, and its text calls and results."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import marft_envs
from helpers.fake_servers import Answer, chat, serving
from marft_algos import check_engine
from marft_algos.config.endpoints import parse
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.rollout.collector import Collector
from marft_algos.types import SamplingParams, StopReason
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError
from marft_envs.families.tools import ToolCall
from marft_envs.families.tools.dialects import parse as read

PARAMS = SamplingParams(max_new_tokens=64)
Calls = list[tuple[str, str]]


def said(calls: Calls, text: str | None = None, finish: str = "tool_calls") -> dict[str, Any]:
    """A chat completion with calls."""
    answer = chat("", finish=finish)
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    named = [{"id": f"abc{i}", "type": "function", "function": f} for i, f in enumerate(functions)]
    answer["choices"][0]["message"] = {"role": "assistant", "content": text, "tool_calls": named}
    return answer


def responded(calls: Calls, text: str = "", cut: str = "") -> dict[str, Any]:
    """The same of the Responses API."""
    items: list[dict[str, Any]] = [{"type": "reasoning", "id": "r", "summary": []}]
    content = [{"type": "output_text", "text": text, "annotations": []}]
    items += (
        [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}] if text else []
    )
    items += [
        {"type": "function_call", "call_id": f"c{i}", "name": n, "arguments": a} for i, (n, a) in enumerate(calls)
    ]
    answer: dict[str, Any] = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": items}
    answer |= {"status": "incomplete" if cut else "completed", "incomplete_details": {"reason": cut} if cut else None}
    used = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return answer | {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": used}


def play(answer: Callable[[str, dict[str, Any]], Answer], env: str = "tools-solo-v0", **settings: Any) -> Any:
    kwargs = settings.pop("env_kwargs", {})
    with serving(answer) as fake, closing(VectorEnv([lambda: marft_envs.make(env, **kwargs)])) as vec:
        table = {"kind": "openai", "model": "m", "url": fake.url, "retries": 0, "tools": "native", **settings}
        with closing(OpenAIEngine(parse(table))) as engine:
            (trajectory,) = Collector(vec, None, engine, PARAMS).collect([3])
        return trajectory.episode, fake


def expert(env: Any) -> list[list[ToolCall]]:
    """What solves the problem of seed 3, reply by reply."""
    env.reset(seed=3)
    replies = []
    while not env.done:
        replies.append(env.task.expert(env.agent_selection))
        env.step(replies[-1])
    return [list(read(text, "any").calls) for text in replies]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("dialect", ["hermes", "mistral-v13"])
def test_native_calls_solve_what_calls_in_text_solve(api: str, dialect: str) -> None:
    plan = expert(marft_envs.make("tools-solo-v0"))
    asked = iter(plan)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        calls = [(call.name, json.dumps(dict(call.arguments))) for call in next(asked)]
        return 200, said(calls, "So be it.") if path == "/v1/chat/completions" else responded(calls, "So be it.")

    episode, fake = play(answer, api=api, env_kwargs={"dialect": dialect})
    assert episode.success and not episode.fault and not episode.metrics.get("malformed")
    assert len(episode.turns) == len(plan) > 1
    for turn, calls in zip(episode.turns, plan, strict=True):
        assert list(read(turn.text, dialect).calls) == calls
    (path, last) = fake.asked[-1]
    if api == "chat":
        assert [m["role"] for m in last["messages"]][:2] == ["system", "user"]
        assert "To call a tool" not in last["messages"][0]["content"]
        assert {tool["function"]["name"] for tool in last["tools"]} > {call.name for calls in plan for call in calls}
        calls, results = last["messages"][2], last["messages"][3:]
        assert calls["content"] == ("So be it." if dialect == "hermes" else calls["content"])
        assert [call["id"] for call in calls["tool_calls"]] == [
            r["tool_call_id"] for r in results[: len(calls["tool_calls"])]
        ]
        assert results[0]["role"] == "tool" and results[0]["content"] in episode.turns[0].result
        assert last["messages"][-1]["role"] == "tool"
    else:
        assert path == "/v1/responses" and last["store"] is False and "seed" not in last
        kinds = [item.get("type", item.get("role")) for item in last["input"]]
        assert kinds[:2] == ["system", "user"] and "function_call" in kinds and kinds[-1] == "function_call_output"
        assert all(tool["type"] == "function" and "name" in tool for tool in last["tools"])


@pytest.mark.parametrize(
    "calls",
    [[("get_order", "{")], [("get_order", "[1]")], [("no such tool", "{}")], [("get_order", '{"nothing": NaN}')]],
)
def test_malformed_native_calls_are_what_the_model_caused(calls: Calls) -> None:
    episode, _ = play(lambda path, body: (200, said(calls)), env_kwargs={"max_turns": 2})
    assert not episode.fault and episode.success is False
    assert all("error" in turn.result for turn in episode.turns if turn.result) and episode.turns[0].result


def test_a_call_that_the_limit_cut_is_malformed_and_cut() -> None:
    episode, _ = play(lambda path, body: (200, said([("get_order", '{"order_')], finish="length")))
    assert "malformed" in episode.turns[0].result
    assert (episode.turns[0].extras or {})["stop_reason"] == StopReason.LENGTH


def test_without_the_switch_nothing_is_sent_and_native_calls_are_empty_replies() -> None:
    episode, fake = play(lambda path, body: (200, said([("get_order", "{}")])), tools="text")
    assert not episode.fault and all("tools" not in body for _, body in fake.asked)
    assert {turn.text for turn in episode.turns} == {""}


def test_a_conversation_loses_nothing_on_its_way_to_an_endpoint() -> None:
    from marft_algos.engines import calls
    from marft_algos.types import GenerationRequest

    text = 'Two. <tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "ab"]

    def sent(told: str) -> list[dict[str, Any]]:
        history = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": text}]
        asked = GenerationRequest("m", [], 0, messages=[*history, {"role": "user", "content": told}], tools=tools)
        return calls.messages(asked)[2:]

    two = sent("[feedback]\none\ntwo")
    assert [(m["role"], m["content"]) for m in two] == [("tool", "one"), ("tool", "two")]
    more = sent("[feedback, round 2]\none\n\nand more\n\n[peer]\nI see.")
    assert [(m["role"], m["content"]) for m in more] == [
        ("tool", ""),
        ("tool", "one\n\nand more"),
        ("user", "[peer]\nI see."),
    ]
    assert sent("[peer]\nWell?")[-1] == {"role": "user", "content": "[peer]\nWell?"}
    assert {m["tool_call_id"] for m in two} == {"call_1_0", "call_1_1"}


@pytest.mark.parametrize("native", [True, False])
def test_check_engine_finds_out_whether_an_endpoint_calls_tools(native: bool) -> None:
    def answer(path: str, body: dict[str, Any]) -> Answer:
        if "tools" not in body:
            return 200, chat("Hello.")
        if not native:
            return 400, {"error": {"message": "this model does not support tools"}}
        return 200, said([("add", '{"a": 2, "b": 3}')])

    with (
        serving(answer) as fake,
        closing(OpenAIEngine(parse({"kind": "openai", "model": "m", "url": fake.url}))) as one,
    ):
        report = check_engine(one)
    assert report.tools == ("native" if native else "text") and report.passed
    assert f'tools = "{report.tools}"' in str(report)


def test_a_trained_endpoint_takes_no_tools() -> None:
    with pytest.raises(ConfigError, match="train = true"):
        parse({"kind": "openai", "model": "m", "train": True, "tools": "native"})
