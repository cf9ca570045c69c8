"""Call formats: what is written is read back, what is broken is an error, and no call is ever taken for words."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft_envs.call_formats import CALL_FORMATS, ERRORS, LONGEST, MOST_CALLS, find, parse, written
from marft_envs.core.observation import neutralise
from marft_envs.errors import ConfigError
from marft_envs.families.tools import ToolCall, make

NAMES = list(CALL_FORMATS)
TAGS_ONLY = {"tags"}
"""Call formats that call only tools that they know."""
OF_EACH_FILE = {"hermes", "qwen-xml", "mistral-v13", "lfm2", "harmony", "gemma4", "tags"}
"""Call formats that the default suite reads the longest texts in; `slow` tests take the others."""
OBJECT = {"type": "object"}
SCHEMAS: dict[str, Any] = {name: OBJECT for name in ("get_order", "set.note", "f", "search")}
CALLS = [ToolCall("get_order", {"id": 3, "note": 'it\'s "so"\né', "deep": {"a": [1, 2.5, None, True, "x"]}})]
OTHER = ToolCall("f", {})

HOSTILE = "ab<>/{}[]()\"'\\é\n=:,|｜ 1#"
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**18), 10**18),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(HOSTILE, max_size=8),
        st.sampled_from(["3", "true", "null", "NaN", '"', '"q"', "</parameter>", "</arg_value>", "\\u00e9", " ", "False",
                         "<tool_call>", "</function>", "[/TOOL_CALLS]", "<|call|>", "<|end|>", "|>", "{}", "[1]", "\r\n",
                         "<｜tool▁call▁end｜>", "</f>", "<think>", "</think>", "\\", "'", "\u2028"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("ab", max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip
KEYS = st.one_of(st.sampled_from(["id", "note", "class", "from_", "x1"]), st.text("abc_", min_size=1, max_size=5))
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)
TOOLS = st.sampled_from(["get_order", "set.note", "f"])


def holds(value: Any, words: tuple[str, ...]) -> bool:
    """Whether a text somewhere in a value has one of these words."""
    text = json.dumps(value, ensure_ascii=False)
    return any(word in text for word in words)


# What is written is read back -------------------------------------------------------------------------------


SEVERAL = st.lists(st.tuples(TOOLS, ARGUMENTS), min_size=1, max_size=3)


@pytest.mark.parametrize("name", NAMES)
@given(calls=SEVERAL)
@settings(max_examples=25)
def test_what_is_written_is_read_back(name: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    check_read_back(name, calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(calls=SEVERAL)
@settings(max_examples=500)
def test_what_is_written_is_read_back_whatever_it_is(name: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    check_read_back(name, calls)


def check_read_back(name: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    wanted = [ToolCall(*call) for call in calls]
    if holds([call.arguments for call in wanted], ("think>", "<|end|>")):
        return  # thoughts are looked for before calls, in every call format
    if name == "gemma4" and holds([call.arguments for call in wanted], ('<|\\"|>',)):
        return
    reply = parse(written(wanted, name, SCHEMAS), name, SCHEMAS)
    assert (list(reply.calls), reply.error, reply.words) == (wanted, "", "")
    for one, other in zip(reply.calls, wanted, strict=True):  # 1, 1.0 and True are not the same
        assert json.dumps(one.arguments, sort_keys=True) == json.dumps(other.arguments, sort_keys=True)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TAGS_ONLY])
def test_no_schema_is_needed_to_read_back_what_was_written_without_one(name: str) -> None:
    calls = [*CALLS, OTHER]
    assert parse(written(calls, name), name).calls == tuple(calls)


@pytest.mark.parametrize("name", NAMES)
def test_words_before_calls_are_kept_apart_or_the_reply_is_refused(name: str) -> None:
    reply = parse(f"I look it up.\n\n{written(CALLS, name, SCHEMAS)}", name, SCHEMAS)
    if CALL_FORMATS[name].alone:
        assert not reply.calls and reply.error in ("mixed", "bad_form", "bad_json")
    else:
        assert (list(reply.calls), reply.words) == (CALLS, "I look it up.")


@pytest.mark.parametrize("name", NAMES)
def test_words_alone_are_words(name: str) -> None:
    for text in ("", "Your order is on its way.", "Take {1, 2} or [3] (or 4 < 5).", "See [the list](http://a.b/c)."):
        assert parse(text, name, SCHEMAS) == ((), "", "", text)


@pytest.mark.parametrize("name", NAMES)
def test_thoughts_are_no_calls(name: str) -> None:
    call = written(CALLS, name, SCHEMAS)
    if not CALL_FORMATS[name].frames:
        assert parse(f"<think>{call}</think>", name, SCHEMAS).calls == ()
        assert parse(f"<think>{call}</think>{call}", name, SCHEMAS).calls == tuple(CALLS)
        assert parse(f"<think>{call}", name, SCHEMAS).error == "unclosed"


@pytest.mark.parametrize("name", NAMES)
def test_calls_that_a_transcript_has_neutralised_are_read(name: str) -> None:
    if not CALL_FORMATS[name].frames:
        assert parse(neutralise(written([OTHER], name, SCHEMAS)), name, SCHEMAS).calls == (OTHER,)


# No call is taken for words ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", NAMES)
def test_a_call_in_another_call_format_is_read_or_malformed_and_never_words(reader: str) -> None:
    calls = [ToolCall("search", {"query": "dune"})]
    for writer, words in itertools.product([name for name in NAMES if name != reader], ("", "I look.\n")):
        text = words + written(calls, writer, SCHEMAS)
        reply = parse(text, reader, SCHEMAS)
        assert reply.error or reply.calls == tuple(calls), text
        assert "\n" not in reply.message
        if reply.error == "other_format":
            assert CALL_FORMATS[reader].form in reply.message


@pytest.mark.parametrize("writer", NAMES)
def test_any_reads_every_call_format(writer: str) -> None:
    assert parse(written(CALLS, writer, SCHEMAS), "any", SCHEMAS).calls == tuple(CALLS)


def test_an_explanation_says_what_was_seen_and_what_is_expected() -> None:
    reply = parse('[TOOL_CALLS]f[ARGS]{"a": 1}')
    assert reply.error == "other_format" and "mistral-v13" in reply.message and "<tool_call>" in reply.message
    for form in ("hermes", "any"):
        assert parse('I call {"name": "f", "arguments": {}} now.', form).error == "mixed"


# Broken and hostile -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_cut_off_is_an_error_or_words_and_never_another_call(name: str) -> None:
    whole = written([*CALLS, OTHER], name, SCHEMAS)
    for end in range(1, len(whole), 2):
        reply = parse(whole[:end], name, SCHEMAS)
        assert not (reply.calls and reply.error)
        assert all(call in (*CALLS, OTHER) for call in reply.calls), whole[:end]


@pytest.mark.parametrize("name", NAMES)
def test_more_calls_than_there_may_be_are_refused(name: str) -> None:
    assert parse(written([OTHER] * MOST_CALLS, name, SCHEMAS), name, SCHEMAS).calls == (OTHER,) * MOST_CALLS
    assert parse(written([OTHER] * (MOST_CALLS + 1), name, SCHEMAS), name, SCHEMAS).error == "too_many"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in OF_EACH_FILE else pytest.mark.slow) for name in NAMES]
)
def test_long_and_deep_replies_are_read_in_linear_time(name: str) -> None:
    call = written([ToolCall("f", {"a": "zqx"})], name, SCHEMAS)
    before, _, behind = call.partition("zqx")
    marks = [*CALL_FORMATS[name].marks, *CALL_FORMATS[name].also, "<search>", "{", "[f(a=", "<think>"]
    hostile = [before + "[" * 100_000 + "]" * 100_000 + behind, before + "{" * 100_000, before + "(" * 100_000]
    hostile += [before * 3_000, behind * 3_000, f"{before} {behind}" * 3_000, before + " " * 900_000 + behind]
    hostile += [mark * (300_000 // len(mark)) for mark in marks] + [f"{call}{'x' * LONGEST}", before + "-" * 99_000]
    hostile += [before + "'" + "\\'" * 45_000 + behind, "```x\n" * 190_000 + "{"]
    start = time.process_time()
    for text in hostile:
        reply = parse(text, name, SCHEMAS)
        assert not (reply.calls and reply.error) and reply.error in ("", *ERRORS)
    assert time.process_time() - start < 60  # quadratic time would be hours


@given(text=st.text(alphabet='<>/|｜tool_call{}[]()":,=ane1 \nthink\\u', max_size=80), name=st.sampled_from(NAMES))
def test_no_reply_raises(text: str, name: str) -> None:
    reply = parse(text, name, SCHEMAS)
    assert not (reply.calls and reply.error) and reply.error in ("", *ERRORS)


@pytest.mark.parametrize(
    "source",
    ["f(a=open('x'))", "f(a=1+1)", "f(a=b)", "f(1)", "f(a=f())", "f(a=[x for x in y])", "f(a=f'{b}')", "f(a=b'x')",
     "f(a={1: 2})", "f(a=1j)", "f(a=1, **{'a': 2})", "(lambda: 1)()", "f()(b=1)", "f(a=...)", "f(a=1e999)", "x = f()"],
)  # fmt: skip
def test_python_that_is_more_than_calls_with_literals_is_refused(source: str) -> None:
    assert parse(f"<|tool_call_start|>[{source}]<|tool_call_end|>", "lfm2").error
    assert parse(f"<|python_tag|>{source}", "llama-pythonic").error


def test_python_reads_what_templates_write_and_json_has() -> None:
    text = "<|tool_call_start|>[f(a='one\ntwo', b=[null, true, -2.5], c={\"d\": ('x', \"y\")})]<|tool_call_end|>"
    assert parse(text, "lfm2").calls == (
        ToolCall("f", {"a": "one\ntwo", "b": [None, True, -2.5], "c": {"d": ["x", "y"]}}),
    )


# Arguments without quotes -----------------------------------------------------------------------------------

TYPED = {
    "f": {
        "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "both": {"type": ["string", "null"]},
                       "choice": {"enum": ["a", "b"]}, "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}}
    }
}  # fmt: skip


@pytest.mark.parametrize("name", ["qwen-xml", "glm", "seed", "minimax", "muse"])
@given(arguments=st.fixed_dictionaries({}, optional={
    "text": st.one_of(st.text(HOSTILE, max_size=8), st.sampled_from(["3", "true", '"x"', '"\\u00e9"', ""])),
    "count": st.integers(), "both": st.one_of(st.none(), st.sampled_from(["null", "3", "x", '"null"', "True", "None"])),
    "choice": st.sampled_from(["a", "b"]), "flag": st.sampled_from([True, False, None]),
}))  # fmt: skip
@settings(max_examples=60)
def test_a_schema_tells_text_from_numbers(name: str, arguments: dict[str, Any]) -> None:
    calls = [ToolCall("f", arguments)]
    assert list(parse(written(calls, name, TYPED), name, TYPED).calls) == calls


def test_pythons_words_are_read_where_a_schema_asks_for_such_values() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=flag>\nFalse\n</parameter>\n<parameter=text>\nFalse\n</parameter>\n</function>\n</tool_call>"
    assert parse(text, "qwen-xml", TYPED).calls == (ToolCall("f", {"flag": False, "text": "False"}),)


# Teams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NAMES, "any"])
@pytest.mark.parametrize("team", ["solo", "supervisor"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_team_plays_the_gold_calls_in_its_call_format(name: str, team: str, seed: int) -> None:
    env = make(team, call_format=name, show_tools="call_format")
    env.reset(seed=seed)
    while not env.done:
        agent = env.ready_agents[0]
        env.observe(agent)
        env.select(agent)
        env.step(env.task.expert(agent))
    assert env.episode.success and not env.task.tally.malformed
    assert "error" not in "".join(turn.result for turn in env.episode.turns)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_names_the_form_and_own_calls_are_shown_whole(name: str) -> None:
    env = make("solo", call_format=name)
    env.reset(seed=0)
    said = env.task.expert("agent_0")
    assert CALL_FORMATS[name].form in env.observe("agent_0")["messages"][0]["content"]
    env.step(said)
    own = [m["content"] for m in env.observe("agent_0")["messages"] if m["role"] == "assistant"]
    assert own == [said]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_in_another_form_costs_a_fault_and_does_not_end_the_users_turn(name: str) -> None:
    env = make("solo", call_format=name)
    env.reset(seed=0)
    foreign = next(other for other in NAMES if other not in (name, "hermes", "llama-json", "tags"))
    env.step(written([ToolCall("get_order", {"order_id": 1})], foreign))
    assert not env.done and env.task.tally.malformed == 1
    assert "expected" in env.observe("agent_0")["messages"][-1]["content"]


def test_agents_of_one_team_may_differ() -> None:
    env = make("supervisor", call_format={"supervisor": "glm", "orders_0": "harmony"})
    speech = env.task.speech
    assert [speech.call_formats[agent] for agent in ("supervisor_0", "orders_0", "refunds_0")] == [
        "glm",
        "harmony",
        "hermes",
    ]


@pytest.mark.parametrize(("call_format", "said"), [
    ("hermess", "hermes"), ({"nobody": "glm"}, "no agent or role 'nobody'"), ({"agent": "gml"}, "glm"),
    (["hermes"], "expected a name, or a table"), ({"agent": 3}, "expected a name, or a table"),
])  # fmt: skip
def test_unknown_names_are_refused_with_the_nearest(call_format: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make("solo", call_format=call_format)


def test_results_of_search_tags_come_as_information() -> None:
    env = make("solo", call_format="tags")
    env.reset(seed=0)
    env.step(written([ToolCall("get_order", {"order_id": 1})], "tags", {"get_order": OBJECT}))
    assert env.episode.turns[0].result.startswith("<information>get_order: ")


# What a template writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_call_format_is_found_in_what_it_writes(name: str) -> None:
    calls = [ToolCall("search", {"query": "zqx dune"})]
    behind = "<|im_end|>\n<|im_start|>tool\n"
    found = find(written(calls, name, SCHEMAS) + behind, calls, SCHEMAS)
    assert found.call_format is not None and found.call_format.name == name
    assert found.reply == written(calls, name, SCHEMAS)


def test_what_no_call_format_reads_is_refused_with_a_reason() -> None:
    calls = [ToolCall("search", {"query": "dune"})]
    assert find("<|im_end|>", calls, SCHEMAS).reason == "it leaves calls out"
    assert "no call format reads" in find("CALL search WITH dune<|im_end|>", calls, SCHEMAS).reason
