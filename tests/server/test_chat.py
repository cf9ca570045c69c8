"""Requests of OpenAI's chat API: no field is passed over without a word."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marft_envs.server.chat import read
from marft_envs.server.door import RefusedRequest

TOOL = {"type": "function", "function": {"name": "weigh", "parameters": {}}}
HELLO = {"role": "user", "content": "Hello"}


def request(**more: Any) -> bytes:
    return json.dumps({"messages": [HELLO], **more}).encode()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", "1"),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("functions", [{"name": "weigh"}]),
        ("function_call", {"name": "weigh"}),
        ("modalities", ["text", "audio"]),
        ("guided_json", {}),
        ("chat_template_kwargs", {"enable_thinking": True}),
        ("continue_final_message", True),
        ("best_of", 3),
        ("tools", 5),
        ("tools", {"a": 1}),
        ("tools", [5]),
        ("tools", [{"type": "web_search"}]),
        ("tools", [{"type": "function", "function": {"name": 5}}]),
        ("tool_choice", "required"),
        ("tool_choice", "sometimes"),
        ("tool_choice", {"type": "function", "function": {"name": "weigh"}}),
        ("parallel_tool_calls", "no"),
        ("stream", "yes"),
        ("stream_options", [1]),
        ("model", 5),
        ("user", ["a"]),
        ("messages", []),
        ("messages", {"role": "user"}),
        ("messages", ["Hello"]),
        ("messages", [{"role": "wizard", "content": "x"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
    ],
)
def test_what_cannot_be_given_is_refused_by_its_name(field: str, value: Any) -> None:
    with pytest.raises(RefusedRequest, match=field[:7]) as refused:
        read(request(**{field: value}))
    assert refused.value.status == 400 and refused.value.field == field


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"null", b"[]", b'"x"', b"{}"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(RefusedRequest, match=r"no JSON|'messages'"):
        read(body)


def test_what_says_nothing_is_heeded_as_nothing() -> None:
    nulls = dict.fromkeys(
        ("n", "tools", "tool_choice", "parallel_tool_calls", "response_format", "logprobs", "functions", "stream")
    )
    for more in (nulls, {"n": 1, "response_format": {"type": "text"}, "logprobs": False, "tool_choice": "none"}):
        asked = read(request(**more, temperature=0.3, seed=1))
        assert (asked.tools, asked.function) == ([], "") and asked.choice in ("auto", "none")
    assert read(request()).choice == "auto"


def test_what_is_asked_for_is_read() -> None:
    named = {"type": "function", "function": {"name": "weigh"}}
    asked = read(request(tools=[TOOL], tool_choice=named))
    assert (asked.choice, asked.function, asked.tools) == ("required", "weigh", [TOOL])
    assert read(request(tools=[TOOL], tool_choice="required")).function == ""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = read(json.dumps({"messages": [{"role": "user", "content": parts, "name": "eve"}]}).encode()).messages
    assert message == {"role": "user", "content": "ab", "name": "eve"}
