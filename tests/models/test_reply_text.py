"""The text of a reply: what calls and thoughts are written with stays, what ends it and other control tokens go."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="chat templates need transformers (the extra train)")
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.chat_shapes import SHAPES, shaped, tokenizer_of
from marft_algos.models.chat import Chat
from marft_envs.call_formats import CALL_FORMATS, MARKS, parse, written
from marft_envs.core import thoughts
from marft_envs.families.tools import ToolCall

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CALLS = [ToolCall("get_order", {"id": 3, "note": "a <b> é"})]
SCHEMAS = {"get_order": {"type": "object"}}


def chat_of(*special: str, end: str = "<|im_end|>", plain: tuple[str, ...] = ()) -> Chat:
    tokenizer = tokenizer_of(CHATML, (*CONTROL, *special), plain)
    return Chat("made", tokenizer, end_ids=(tokenizer.convert_tokens_to_ids(end),))


def ids_of(chat: Chat, text: str) -> list[int]:
    return list(chat.tokenizer.encode(text, add_special_tokens=False))


PLAIN = chat_of("<tool_call>", "</tool_call>")


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_calls_are_read_though_every_mark_of_them_is_a_special_token(name: str) -> None:
    call = written(CALLS, name, SCHEMAS)
    marks = sorted(mark for mark in MARKS if mark in call)
    chat = chat_of(*marks)
    ids = ids_of(chat, call)
    assert {chat.tokenizer.decode([i]) for i in ids} >= set(marks), "marks are tokens"
    text = chat.text_of([*ids, *chat.end_ids])
    assert text == call
    assert parse(text, name, SCHEMAS).calls == tuple(CALLS)
    if marks and name != "hermes":  # which reads bare JSON, too
        lost = chat.tokenizer.decode(ids, skip_special_tokens=True)
        assert parse(lost, name, SCHEMAS).calls != tuple(CALLS), "without the marks the call is lost"


@pytest.mark.parametrize(("opening", "closing"), thoughts.PAIRS)
def test_thoughts_are_told_from_words_though_their_marks_are_special_tokens(opening: str, closing: str) -> None:
    special = opening.split("\n")[0].removesuffix("thought")
    chat = chat_of(special, closing)
    ids = ids_of(chat, f"{opening}No.{closing}Yes.")
    assert special in chat.tokenizer.convert_ids_to_tokens(ids)
    said = chat.text_of([*ids, *chat.end_ids])
    assert thoughts.split(said).spoken == "Yes."
    assert "No." in thoughts.split(chat.tokenizer.decode(ids, skip_special_tokens=True)).spoken


def test_other_control_tokens_go_beside_a_call() -> None:
    chat = chat_of("<tool_call>", "</tool_call>", "<|video_pad|>")
    said = "A<|endoftext|>B<tool_call>{}</tool_call><|im_start|>C<|video_pad|>"
    assert chat.text_of([*ids_of(chat, said), *chat.end_ids]) == "AB<tool_call>{}</tool_call>C"


def test_a_mark_that_ends_a_reply_goes_and_the_call_is_still_read() -> None:
    special = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
    chat = chat_of(*special, end="<|call|>")
    call = written(CALLS, "harmony", SCHEMAS)
    assert call.endswith("<|call|>")
    text = chat.text_of(ids_of(chat, call))
    assert text == call.removesuffix("<|call|>") and parse(text, "harmony", SCHEMAS).calls == tuple(CALLS)


def test_added_tokens_that_are_not_special_stay() -> None:
    chat = chat_of(plain=("<tool_call>", "</tool_call>", "<note>"))
    said = "<note>A<tool_call>{}</tool_call>"
    assert chat.text_of([*ids_of(chat, said), *chat.end_ids]) == said


@given(text=st.text(max_size=30), control=st.lists(st.sampled_from(CONTROL), max_size=3))
@example(text="a  b , c .\n don't", control=["<|im_end|>"])
def test_a_reply_without_such_marks_is_what_the_tokenizer_decodes(text: str, control: list[str]) -> None:
    ids = ids_of(PLAIN, text + "".join(control))
    assert PLAIN.text_of(ids) == PLAIN.tokenizer.decode(ids, skip_special_tokens=True)


@given(text=st.text(max_size=30))
@example(text="a  b , c .\n don't")
def test_a_mark_changes_nothing_of_the_words_around_it(text: str) -> None:
    ids = ids_of(PLAIN, text)
    mark = ids_of(PLAIN, "<tool_call>")
    words = PLAIN.tokenizer.decode(ids, skip_special_tokens=True)
    assert PLAIN.text_of([*ids, *mark, *ids]) == f"{words}<tool_call>{words}"


@pytest.mark.parametrize("name", SHAPES)
def test_plain_replies_of_every_shape_of_template(name: str) -> None:
    chat = Chat(name, shaped(name))
    ids = chat.tokenizer.encode("Your order, no. 3, is on its way.", add_special_tokens=False)
    ended = [*ids, *chat.tokenizer.all_special_ids[:1]]
    kept = [i for i in ended[len(ids) :] if chat.tokenizer.decode([i]) in MARKS]
    assert not kept
    assert chat.text_of(ended) == chat.tokenizer.decode(ended, skip_special_tokens=True)
