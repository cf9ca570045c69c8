"""The table of docs/math-answers.md: every spelling is graded as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from marft_envs.families.math.grader import grade

PAGE = Path(__file__).parents[2] / "docs" / "math-answers.md"
ROWS = [
    [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[2:5]]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| (?!convention)[A-Z]", line)
]
PAIRS = [(gold[0], said, float(column)) for gold, *columns in ROWS for column in (1, 0) for said in columns[1 - column]]


def test_the_table_is_read() -> None:
    assert len(ROWS) >= 30 and len(PAIRS) >= 120


@pytest.mark.parametrize(("gold", "said", "score"), PAIRS)
def test_the_page_says_how_an_answer_is_graded(gold: str, said: str, score: float) -> None:
    assert grade(f"\\boxed{{{said}}}", gold).score == score
