"""OpenAI's Responses API: its requests are read as those of a chat, and its answers hold the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marft_envs.server import chat, responses
from marft_envs.server.door import RefusedRequest

TOOL = {"type": "function", "name": "weigh", "parameters": {}, "strict": True}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def request(**more: Any) -> bytes:
    return json.dumps({"input": "Hello", **more}).encode()


def reply(message: dict[str, Any], finish: str = "tool_calls") -> dict[str, Any]:
    return {"message": message, "finish_reason": finish, "usage": USAGE}


def call(id: str, item: str = "") -> dict[str, Any]:
    about = {"type": "function_call", "call_id": id, "name": "weigh", "arguments": '{"of":  "fig"}'}
    return about | ({"id": item} if item else {})


def as_chat(*ids: str) -> list[dict[str, Any]]:
    function = {"name": "weigh", "arguments": '{"of":  "fig"}'}
    return [{"id": id, "type": "function", "function": function} for id in ids]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", []),
        ("input", 5),
        ("input", ["Hello"]),
        ("input", [{"type": "item_reference", "id": "x"}]),
        ("input", [{"type": "web_search_call", "id": "x"}]),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("prompt", {"id": "pmpt_1"}),
        ("background", True),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {}}}),
        ("text", "short"),
        ("include", ["message.output_text.logprobs"]),
        ("top_logprobs", 3),
        ("tools", [{"type": "web_search"}]),
        ("tools", 5),
        ("tool_choice", {"type": "function", "name": "weigh"}),
        ("tool_choice", "required"),
        ("parallel_tool_calls", "no"),
        ("stream", 1),
        ("model", 5),
    ],
)
def test_what_cannot_be_given_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(RefusedRequest, match=field) as refused:
        responses.read(request(**{field: value}))
    assert refused.value.status == 400 and refused.value.field == field


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("Hi", [{"role": "user", "content": "Hi"}]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            [{"role": "user", "content": "ab"}],
        ),
        (  # words and calls of one answer are one message; outputs are those of tools
            [
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "x"}],
                },
                call("a", "fc_1_0"),
                call("b", "fc_1_1"),
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
            ],
            [
                {"role": "assistant", "content": "x", "tool_calls": as_chat("a", "b")},
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "tool", "tool_call_id": "b", "content": "2"},
            ],
        ),
        (  # those of two answers are two; a client without ids has one answer in a row
            [
                {"id": "msg_1", "role": "assistant", "content": "x"},
                call("a", "fc_2_0"),
                call("b", "fc_3_0"),
                {"role": "assistant", "content": "y"},
                call("c"),
            ],
            [
                {"role": "assistant", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": as_chat("a")},
                {"role": "assistant", "content": "", "tool_calls": as_chat("b")},
                {"role": "assistant", "content": "y", "tool_calls": as_chat("c")},
            ],
        ),
        (
            [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "developer", "content": "Be."}],
            [{"role": "developer", "content": "Be."}],
        ),
    ],
)
def test_items_are_messages(items: Any, messages: list[dict[str, Any]]) -> None:
    read = responses.read(request(input=items, instructions="Weigh."))
    assert read.messages == [{"role": "system", "content": "Weigh."}, *messages]


def test_tools_and_the_choice_of_one_are_a_chats() -> None:
    asked = responses.read(request(tools=[TOOL], tool_choice={"type": "function", "name": "weigh"}))
    assert asked.tools == [{"type": "function", "function": {"name": "weigh", "parameters": {}, "strict": True}}]
    assert (asked.choice, asked.function) == ("required", "weigh")
    answer = responses.whole(asked, "m", reply({"content": None, "tool_calls": as_chat("a")}))
    assert answer["tools"] == [TOOL] and answer["tool_choice"] == {"type": "function", "name": "weigh"}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("message", [
    {"content": "Words, and more of them."}, {"content": ""}, {"content": "I weigh.", "tool_calls": as_chat("a", "b")},
    {"content": None, "tool_calls": as_chat("a")},
])  # fmt: skip
def test_an_answer_comes_back_as_it_was_given_whole_and_streamed(message: dict[str, Any], cut: bool) -> None:
    asked = responses.read(request())
    finish = "length" if cut else "tool_calls" if message.get("tool_calls") else "stop"
    answer = responses.whole(asked, "m", reply(message, finish))
    assert (answer["status"], answer["usage"]["total_tokens"]) == ("incomplete" if cut else "completed", 10)
    (again,) = responses.read(request(input=answer["output"])).messages
    assert again == {"role": "assistant", **message, "content": message["content"] or ""}
    lines = responses.events(asked, "m", reply(message, finish)).split("\n\n")[:-1]
    told = [json.loads(line.partition("\ndata: ")[2]) for line in lines]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert all(line.startswith(f"event: {event['type']}\n") for line, event in zip(lines, told, strict=True))
    last = told[-1]["response"]
    assert told[-1]["type"] == f"response.{last['status']}" and last["status"] == answer["status"]
    assert [event["item"] for event in told if event["type"] == "response.output_item.done"] == last["output"]
    words = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert words == (message["content"] or "")


def test_an_answer_ends_where_it_is_to_end() -> None:
    asked = chat.read(json.dumps({"messages": [{"role": "user", "content": "x"}], "stop": ["b", "c"]}).encode())
    assert asked.stop == ("b", "c") and chat.cut("acb", asked.stop) == "a" and chat.cut("ad", asked.stop) == "ad"
    for wrong in (5, [""], [5], {"a": 1}):
        with pytest.raises(RefusedRequest, match="stop is"):
            chat.read(json.dumps({"messages": [{"role": "user", "content": "x"}], "stop": wrong}).encode())
