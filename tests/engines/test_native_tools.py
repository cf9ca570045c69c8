"""Hosted models that call tools by their API: calls become the environment's text, and its text calls and results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

import marft_envs
from helpers.fake_servers import Answer, chat, serving
from helpers.marks import rest_in_ci
from marft_algos import check_engine
from marft_algos.config.endpoints import parse
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.rollout.collector import Collector
from marft_algos.types import GenerationRequest, SamplingParams, StopReason
from marft_envs.call_formats import parse as read
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError
from marft_envs.families.tools import ToolCall

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


def play(answer: Callable[[str, dict[str, Any]], Answer], seeds: Sequence[int] = (3,), **settings: Any) -> Any:
    """The episode, or where there are several seeds all of them; and the server."""
    kwargs = settings.pop("env_kwargs", {})
    with serving(answer) as fake, closing(VectorEnv([lambda: marft_envs.make("tools-solo-v0", **kwargs)])) as vec:
        table = {"kind": "openai", "model": "m", "url": fake.url, "retries": 0, "tools": "native", **settings}
        with closing(OpenAIEngine(parse(table))) as engine:
            episodes = [one.episode for one in Collector(vec, None, engine, PARAMS).collect(list(seeds))]
        return episodes[0] if len(episodes) == 1 else episodes, fake


def expert(env: Any, seed: int = 3) -> list[list[ToolCall]]:
    """What solves the problem of a seed, reply by reply."""
    env.reset(seed=seed)
    replies = []
    while not env.done:
        replies.append(env.task.expert(env.agent_selection))
        env.step(replies[-1])
    return [list(read(text, "any").calls) for text in replies]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("call_format", ["hermes", "mistral-v13"])
def test_native_calls_solve_what_calls_in_text_solve(api: str, call_format: str) -> None:
    plan = expert(marft_envs.make("tools-solo-v0"))
    asked = iter(plan)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        calls = [(call.name, json.dumps(dict(call.arguments))) for call in next(asked)]
        return 200, said(calls, "So be it.") if path == "/v1/chat/completions" else responded(calls, "So be it.")

    episode, fake = play(answer, api=api, env_kwargs={"call_format": call_format})
    assert episode.success and not episode.fault and not episode.metrics.get("malformed")
    assert len(episode.turns) == len(plan) > 1
    for turn, calls in zip(episode.turns, plan, strict=True):
        assert list(read(turn.text, call_format).calls) == calls
    (path, last) = fake.asked[-1]
    if api == "chat":
        assert [m["role"] for m in last["messages"]][:2] == ["system", "user"]
        assert "To call a tool" not in last["messages"][0]["content"]
        assert {tool["function"]["name"] for tool in last["tools"]} > {call.name for calls in plan for call in calls}
        calls, results = last["messages"][2], last["messages"][3:]
        assert calls["content"] == ("So be it." if call_format == "hermes" else calls["content"])
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


def objects(calls: list[ToolCall]) -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]


def texts(calls: list[ToolCall]) -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": json.dumps(dict(call.arguments))} for call in calls]


def completed(functions: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A chat completion whose calls have no type."""
    answer = chat("", finish="tool_calls")
    named = [{"id": f"x{i}", "function": function} for i, function in enumerate(functions)]
    answer["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": named, **fields}
    return answer


def item(function: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c", **function, **fields}


def output(*items: dict[str, Any]) -> dict[str, Any]:
    return {**responded([]), "output": list(items)}


def spoken(calls: list[ToolCall]) -> str:
    return "I call. " + "\n".join(f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in objects(calls))


def blank(calls: list[ToolCall], nothing: Any) -> list[dict[str, Any]]:
    """Objects, but for calls without arguments."""
    return [{**each, "arguments": each["arguments"] or nothing} for each in objects(calls)]


FORMS: dict[str, tuple[Callable[[list[ToolCall]], Any], Callable[[list[ToolCall]], Any]]] = {
    "objects": (
        lambda calls: completed(objects(calls)),
        lambda calls: output(*map(item, objects(calls))),
    ),
    "texts without a type": (
        lambda calls: completed(texts(calls)),
        lambda calls: output(*(item(each, type="") for each in texts(calls))),
    ),
    "null": (lambda calls: completed(blank(calls, None)), lambda calls: output(*map(item, blank(calls, None)))),
    "blank": (lambda calls: completed(blank(calls, " \n")), lambda calls: output(*map(item, blank(calls, " \n")))),
    "in the content, too": (
        lambda calls: completed(objects(calls), content=spoken(calls)),
        lambda calls: {**responded([], spoken(calls)), "output": [*responded([], spoken(calls))["output"], *map(item, texts(calls))]},
    ),
    "the old form": (
        lambda calls: completed([], function_call=texts(calls)[0]) if len(calls) == 1 else completed(texts(calls)),
        lambda calls: output(*({k: v for k, v in item(each).items() if k != "type"} for each in texts(calls))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", [0, 1], ids=["chat", "responses"])
@pytest.mark.parametrize("form", rest_in_ci(FORMS, 4))
def test_calls_in_every_form_that_servers_write_solve_the_problem(form: str, api: int) -> None:
    env, plans = marft_envs.make("tools-solo-v0"), dict[str, Iterator[list[ToolCall]]]()
    for seed in range(8):
        plan = expert(env, seed)
        env.reset(seed=seed)
        plans[env.messages(env.agent_selection)[1]["content"]] = iter(plan)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        return 200, FORMS[form][api](next(plans[(body.get("messages") or body["input"])[1]["content"]]))

    episodes, _ = play(answer, range(8), api=("chat", "responses")[api])
    assert [episode.success for episode in episodes] == [True] * 8
    assert not any(episode.metrics.get("malformed") for episode in episodes)


@pytest.mark.parametrize(
    "nothing", [{}, {"arguments": None}, {"arguments": ""}, {"arguments": " \n"}, {"arguments": {}}]
)
def test_arguments_that_are_nothing_are_none(nothing: dict[str, Any]) -> None:
    function = {"name": "list_orders", **nothing}
    for api, answer in (("chat", completed([function])), ("responses", output(item(function)))):
        episode, _ = play(lambda path, body, answer=answer: (200, answer), api=api, env_kwargs={"max_turns": 1})
        assert read(episode.turns[0].text).calls == (ToolCall("list_orders", {}),)


def test_a_call_in_content_and_beside_it_runs_once() -> None:
    calls = [ToolCall("list_orders", {}), ToolCall("get_order", {"order_id": "1"})]
    episode, _ = play(
        lambda path, body: (200, completed(objects(calls[:1]), content=spoken(calls))), env_kwargs={"max_turns": 1}
    )
    said = read(episode.turns[0].text)
    assert said.calls == (calls[1], calls[0]) and said.words == "I call."


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(("arguments", "shown"), [
    ('{"order_id": "1", "order_id": "2"}', {"INVALID_JSON": '{"order_id": "1", "order_id": "2"}'}),
    ("{", {"INVALID_JSON": "{"}), ("[1]", {"INVALID_JSON": "[1]"}),
    ('{}}</tool_call><tool_call>{"name": "x"', {"INVALID_JSON": '{}}</tool_call><tool_call>{"name": "x"'}),
])  # fmt: skip
def test_a_malformed_call_is_told_of_where_it_was_made(api: str, arguments: str, shown: dict[str, Any]) -> None:
    """None of the reply is carried out, and each of its calls gets the error."""
    calls = [("list_orders", "{}"), ("get_order", arguments)]
    made = said(calls, "Let me see.") if api == "chat" else responded(calls, "Let me see.")
    episode, fake = play(lambda path, body: (200, made), api=api, env_kwargs={"max_turns": 2})
    assert "malformed" in episode.turns[0].result and not episode.metrics.get("calls")
    body = fake.asked[-1][1]
    if api == "chat":
        reply, *results = body["messages"][2:]
        assert reply["content"] == "Let me see." and [call["id"] for call in reply["tool_calls"]] == [
            result["tool_call_id"] for result in results
        ]
        sent = [call["function"] for call in reply["tool_calls"]]
        told = [result["content"] for result in results]
    else:
        sent = [each for each in body["input"] if each.get("type") == "function_call"]
        told = [each["output"] for each in body["input"] if each.get("type") == "function_call_output"]
    assert [(each["name"], json.loads(each["arguments"])) for each in sent] == [
        ("list_orders", {}),
        ("get_order", shown),
    ]
    assert len(told) == 2 and all("malformed" in one for one in told)


def test_native_is_not_advised_where_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    custom = completed([])
    custom["choices"][0]["message"]["tool_calls"] = [
        {"id": "1", "type": "custom", "custom": {"name": "f", "input": "x"}}
    ]
    episode, _ = play(lambda path, body: (200, custom), env_kwargs={"max_turns": 1})
    why = (episode.turns[0].extras or {})["empty"]
    assert "none of a function that was sent" in why and "tools =" not in why


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_names_of_tools_are_such_as_endpoints_take(api: str) -> None:
    names = ["crm.update_contact", "crm_update_contact", "crm/update_contact", "\u00e9" * 70, "\u00e8" * 70, "a b"]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    own = "".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>\n' for name in (*names, "no.such")
    )
    told = [("user", "Go."), ("assistant", own), ("user", "[feedback]\n" + "\n".join("1234567"))]
    asked = GenerationRequest("m", [], 0, "a", [{"role": role, "content": text} for role, text in told], tools)

    def answer(path: str, body: dict[str, Any]) -> Answer:
        sent = [(tool["function"] if api == "chat" else tool)["name"] for tool in body["tools"]]
        made = [(name, "{}") for name in sent]
        return 200, said(made) if api == "chat" else responded(made)

    with serving(answer) as fake:
        table = {"kind": "openai", "model": "m", "url": fake.url, "tools": "native", "api": api}
        with closing(OpenAIEngine(parse(table))) as engine:
            (reply,) = engine.generate([asked], SamplingParams(512))
    body = fake.asked[-1][1]
    sent = [(tool["function"] if api == "chat" else tool)["name"] for tool in body["tools"]]
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in sent) and len(set(sent)) == len(names)
    assert sent[1] == names[1] and [call.name for call in read(reply.text).calls] == names
    if api == "chat":
        earlier = [call["function"]["name"] for call in body["messages"][1]["tool_calls"]]
    else:
        earlier = [each["name"] for each in body["input"] if each.get("type") == "function_call"]
    assert earlier == [*sent, "no_such"]


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
