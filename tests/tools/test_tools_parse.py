"""Replies become calls, or typed errors; nothing in a reply raises, and nothing takes long."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marft_envs.call_formats import DEEPEST, ERRORS, LONGEST, MOST_CALLS, parse, written
from marft_envs.core.observation import neutralise
from marft_envs.families.tools import ToolCall

ONE = '{"name": "f", "arguments": {"a": 1}}'
TAGGED = f"<tool_call>\n{ONE}\n</tool_call>"
F = ToolCall("f", {"a": 1})


@pytest.mark.parametrize(
    ("reply", "calls"),
    [
        (TAGGED, [F]),
        (f"First this.\n{TAGGED}\nThen that.\n{TAGGED}", [F, F]),
        (TAGGED.replace("\n", ""), [F]),
        (neutralise(TAGGED), [F]),
        (ONE, [F]),
        (f"  [{ONE}, {ONE}]\n", [F, F]),
        (f"Sure:\n```json\n{ONE}\n```\nDone.", [F]),
        (f"```\n[{ONE}]\n```\n```tool_call\n{ONE}\n```", [F, F]),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', [F]),
        ('{"name": "f", "arguments": ""}', [ToolCall("f", {})]),
        ('{"name": "f", "parameters": {"a": 1}}', [F]),
        ('{"name": "f"}', [ToolCall("f", {})]),
        (f'{{"type": "function", "id": "c1", "function": {ONE}}}', [F]),
        (f'{{"tool_calls": [{{"function": {ONE}}}, {ONE}]}}', [F, F]),
        (f"<think>{TAGGED} or not</think>{TAGGED}", [F]),
        (f"I should not.</think>{TAGGED}", [F]),
        ('<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>"}}</tool_call>', [ToolCall("f", {"a": "</tool_call><tool_call>"})]),
        ("", []),
        ("The order is on its way.", []),
        ('{"answer": 3}', []),
        ("[1, 2]", []),
        ("{curly words}", []),
        (f"```python\n{ONE}\n```", []),
        ('The format is {"name": …} as you know.', []),
        (f"<think>{TAGGED}</think>", []),
    ],
)  # fmt: skip
def test_what_is_read_as_calls(reply: str, calls: list[ToolCall]) -> None:
    found = parse(reply)
    assert (list(found.calls), found.error) == (calls, "")


def _with(arguments: str) -> str:
    return f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'


@pytest.mark.parametrize(("reply", "error"), [
    (f"<tool_call>{ONE}", "unclosed"), ("<tool_call>", "unclosed"), (f"<think>{TAGGED}", "unclosed"),
    (f"<tool_call>{ONE}{TAGGED}", "nested"), (f"<tool_call>{TAGGED}</tool_call>", "nested"),
    (f"{TAGGED}</tool_call>", "stray_close"), (_with('{"a": 1,}'), "bad_json"), (_with("{'a': 1}"), "bad_json"),
    (_with('{"a": 1} 2'), "bad_json"), ("<tool_call></tool_call>", "bad_json"), (f"{ONE} and more", "bad_json"),
    ('{"name": "f", "arguments": {"a": 1}', "bad_json"), (_with('{"a": 1, "a": 2}'), "duplicate_key"),
    ('<tool_call>{"name": "f", "name": "g"}</tool_call>', "duplicate_key"), (_with('{"a": NaN}'), "bad_number"),
    (_with('{"a": -Infinity}'), "bad_number"), (_with('{"a": 1e999}'), "bad_number"),
    (_with('{"a": ' + "9" * 10_000 + "}"), "bad_json"), (_with('{"a": "\\ud800"}'), "bad_text"),
    (_with('{"a": "x\ud800"}'), "bad_text"), (_with('{"a": ' + "[" * DEEPEST + "]" * DEEPEST + "}"), "too_deep"),
    (_with('{"a": ' + "[" * 300_000 + "]" * 300_000 + "}"), "too_deep"), (TAGGED * (MOST_CALLS + 1), "too_many"),
    (f"[{','.join([ONE] * (MOST_CALLS + 1))}]", "too_many"), ("<tool_call>[]</tool_call>", "not_a_call"),
    ("<tool_call>3</tool_call>", "not_a_call"), ('<tool_call>{"name": 3}</tool_call>', "not_a_call"),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "not_a_call"),
    ('<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>', "not_a_call"),
    ('<tool_call>{"name": "f", "arguments": {}, "then": {}}</tool_call>', "not_a_call"),
    (f'[{ONE}, {{"name": 1}}]', "not_a_call"), (TAGGED + "x" * LONGEST, "too_large"),
])  # fmt: skip
def test_what_cannot_be_read_is_a_typed_error_and_nothing_of_it_is_carried_out(reply: str, error: str) -> None:
    found = parse(reply)
    assert (found.calls, found.error) == ((), error)
    assert found.message == ERRORS[error]


@pytest.mark.parametrize(
    "reply",
    [
        "<tool_call>" * 90_000, "</tool_call>" * 80_000, "<tool_call>{" * 80_000, "{" * 1_000_000, "[" * 1_000_000,
        "<tool_call>" + " " * 900_000, "< " * 400_000 + "{tool_call>", "<think>" * 140_000,
        "{" + ("```" + " " * 1000 + "x\n") * 900, "```json\n{\n```\n" * 60_000, "{" + '"arguments"   ' * 60_000,
        "{" * 10_000_000, "<tool_call>" + '{"name": "f", "arguments": {"a": "' + "x" * 10_000_000,
    ],
    ids=lambda reply: f"{reply[:12]!r}x{len(reply)}",
)  # fmt: skip
def test_long_replies_are_read_in_linear_time(reply: str) -> None:
    start = time.process_time()
    parse(reply)
    assert time.process_time() - start < 10  # quadratic time would be minutes


@given(st.text(alphabet='<>/tool_call{}[]":,ane1 \n`think\\u', max_size=80))
def test_no_reply_raises(reply: str) -> None:
    found = parse(reply)
    assert not (found.calls and found.error) and found.error in ("", *ERRORS)


@example({"```": None})
@example({"text": "```json\n{}\n```", "more": "x```y"})
@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda t: t.isprintable()),
        st.recursive(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(),
                st.floats(allow_nan=False, allow_infinity=False),
                st.text('ab<>/{}"\\é\n', max_size=8),
            ),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_what_is_written_is_read_back(arguments: dict[str, object]) -> None:
    calls = [ToolCall("f", arguments), ToolCall("g", {})]
    assert list(parse(written(calls)).calls) == calls
    assert list(parse(json.dumps({"name": "f", "arguments": arguments})).calls) == calls[:1]
