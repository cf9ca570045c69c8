"""The table of model families in docs/call-formats.md: every family once, and columns that templates made to be known fill."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="templates need transformers (the extra train)")
from benchmarks.correctness import families
from helpers.chat_shapes import QWEN_3, SHAPES, tokenizer_of
from marft_algos.models.chat import Chat
from marft_envs.call_formats import CALL_FORMATS
from marft_envs.errors import ConfigError

PARTS = (
    "{% for m in messages %}{{ m.role }}: {% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% endif %}{% endfor %}<end>\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def rows() -> list[list[str]]:
    text = families.PAGE.read_text(encoding="utf-8").split(families.MARKS[0])[1].split(families.MARKS[1])[0]
    lines = [line.replace("\\|", "¦") for line in text.strip().splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_family_once_with_every_column() -> None:
    head, rule, *body = rows()
    assert tuple(head) == families.COLUMNS and set(rule) == {"---"}
    named = [name for row in body for name in row[0].split(", ")]
    assert len(named) >= 20 and sorted(named) == sorted(", ".join(families.FAMILIES).split(", "))
    assert len({tuple(row[1:]) for row in body}) == len(body), "families that do the same share a row"
    for row in body:
        assert len(row) == len(head) and all(row), row
        assert row[3].startswith("refused: ") or row[3].strip("`") in CALL_FORMATS, row
    assert len({row[3] for row in body if not row[3].startswith("refused")}) >= 7


def test_what_a_template_does_is_said() -> None:
    assert families.asked(families.renderer(QWEN_3)) == [
        "yes", "yes", "`hermes`", r"`<\|im_start\|>assistant⏎`", r"`<\|im_end\|>`", "`enable_thinking` (on by default)",
    ]  # fmt: skip
    system, tools, call_format, *_ = families.asked(families.renderer(SHAPES["gemma"][0]))
    assert (system, tools) == ("yes", "no") and call_format.startswith("refused: it shows no tools")
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + SHAPES["gemma"][0]
    assert families.asked(families.renderer(refuses))[0] == "no"


def test_a_template_that_leaves_out_plain_text_is_refused_in_the_table_and_by_a_chat() -> None:
    assert "plain text" in families.asked(families.renderer(PARTS))[2]
    with pytest.raises(ConfigError, match=r"leaves out what messages say.*plain text"):
        Chat("parts", tokenizer_of(PARTS, ("<end>",)))


def test_where_the_package_is_not_there_the_way_to_get_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install --no-deps --target FOLDER trl"):
        families.templates(tmp_path)
