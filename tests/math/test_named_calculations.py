"""Procedural problems are solved by calculating: no answer can be copied from a statement, or only name what is to do.

A team of SmolLM2 that was trained on level 1 found two of these: ``\\pi\\cdot 4^2\\cdot 11`` and ``\\binom{22}{5}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import marft_envs
from marft_envs.families.math import procedural
from marft_envs.families.math.grader import CORRECT, RESTATED, WRONG, grade, grade_answer
from marft_envs.families.math.problem import MathProblem
from marft_envs.families.math.procedural.base import VARIANTS

SAMPLE = 12
"""Problems of every variant."""
MATH = re.compile(r"\$([^$]+)\$")
NUMBER = re.compile(r"-?\d+")


def numbers(problem: MathProblem) -> list[str]:
    return [f"({number})" for number in NUMBER.findall(" ".join(MATH.findall(problem.problem)))]


def spans(problem: MathProblem) -> list[str]:
    return MATH.findall(problem.problem)


def swapped(problem: MathProblem) -> str:
    """The other order of a sum's two terms."""
    first, sign, second = re.fullmatch(r"(.+?\^\\circ)([+-])(.+)", spans(problem)[0]).groups()  # type: ignore[union-attr]
    return f"{sign}{second}+{first}"


def points(problem: MathProblem) -> tuple[str, ...]:
    return tuple(numbers(problem)[:4])


NAMED: dict[tuple[str, int], Callable[[MathProblem], str]] = {
    ("counting", 1): lambda p: "\\binom{{{1}}}{{{0}}}".format(*numbers(p)),
    ("counting", 2): lambda p: "\\binom{{{1}}}{{{0}}}\\binom{{{3}}}{{{2}}}".format(*numbers(p)),
    ("gcd_lcm", 1): lambda p: "\\gcd({},{})".format(*numbers(p)),
    ("gcd_lcm", 3): lambda p: "\\gcd({},{},{})".format(*numbers(p)),
    ("solids", 1): lambda p: "\\pi\\cdot {}^2\\cdot {}".format(*numbers(p)),
    ("solids", 2): lambda p: "\\frac{{1}}{{3}}\\pi {}^2\\cdot {}".format(*numbers(p)),
    ("triangles", 1): lambda p: "\\sqrt{{{}^2+{}^2}}".format(*numbers(p)),
    ("triangles", 2): lambda p: "\\sqrt{{{}^2-{}^2}}".format(*numbers(p)),
    ("coordinates", 1): lambda p: "\\left(\\frac{{{0}+{2}}}{{2}},\\frac{{{1}+{3}}}{{2}}\\right)".format(*points(p)),
    ("coordinates", 2): lambda p: "\\sqrt{{({0}-{2})^2+({1}-{3})^2}}".format(*points(p)),
    ("matrices", 1): lambda p: "\\det " + spans(p)[0],
    ("matrices", 4): lambda p: "\\det " + spans(p)[0],
    ("matrices", 5): lambda p: spans(p)[0].replace("^4", "\\cdot") + spans(p)[0].replace("^4", "^3"),
    ("percent", 1): lambda p: "\\frac{{{}}}{{100}}\\cdot {}".format(*numbers(p)),
    ("trigonometry", 1): swapped,
    ("trigonometry", 2): swapped,
    ("complex_numbers", 2): lambda p: re.sub(r"(\(.+\))(\(.+\))", r"\2\1", spans(p)[0]),
}
"""Variant -> what an answer would be that names the calculation."""


@pytest.mark.parametrize(("generator", "level"), sorted(VARIANTS))
def test_nothing_that_a_statement_says_is_its_answer(generator: str, level: int) -> None:
    copied = [
        (problem.problem, text)
        for problem in procedural.listed(generator, level)[:SAMPLE]
        for text in spans(problem)
        if re.sub(r"\s", "", text) != re.sub(r"\s", "", problem.answer) and grade_answer(text, problem.answer).score
    ]
    assert copied == []


@pytest.mark.parametrize(("generator", "level"), sorted(NAMED))
def test_a_calculation_that_is_only_named_is_no_answer(generator: str, level: int) -> None:
    for problem in procedural.listed(generator, level)[:SAMPLE]:
        named = NAMED[generator, level](problem)
        assert grade_answer(named, problem.answer).score == 0, (problem.problem, named)


EXPAND = "Expand $(x+1)(x-2)$ and write the result in the form $ax^2+bx+c$."


@pytest.mark.parametrize(("statement", "gold", "pred", "status"), [
    (EXPAND, "x^2-x-2", "x^2-x-2", CORRECT), (EXPAND, "x^2-x-2", "-2+x^2-x", CORRECT),
    (EXPAND, "x^2-x-2", "(x + 1)(x - 2)", RESTATED), (EXPAND, "x^2-x-2", "(x-1)(x+2)", WRONG),
    ("Factor $y = x^2+2x+1$.", "(x+1)^2", "x^2+2x+1", RESTATED),
    ("Simplify \\(\\frac{2x}{4}\\).", "\\frac{x}{2}", "\\dfrac{2x}{4}", RESTATED),
    ("Simplify \\[\\frac{x^2}{x}.\\]", "x", "\\frac{x^2}{x}", RESTATED),
    ("Which of $x+1$ and $x-1$ is the larger?", "x+1", "x + 1", CORRECT),
    ("Which of $\\frac{x}{2}$ and $\\frac{x}{3}$ is the larger?", "x/2", "\\frac{x}{2}", CORRECT),
    ("Is $-x$ or $x$ the larger, if $x<0$?", "-x", "-x", CORRECT),
    ("Write $\\frac{1}{2}$ as a decimal.", "0.5", "\\frac12", CORRECT),
])  # fmt: skip
def test_an_expression_of_the_statement_is_no_answer_unless_the_gold_one_is_written_so(
    statement: str, gold: str, pred: str, status: str
) -> None:
    assert grade(f"So \\boxed{{{pred}}}", gold, statement).status == status
    assert grade(f"So \\boxed{{{pred}}}", gold).status == (CORRECT if status == RESTATED else status)


def test_a_team_that_repeats_the_problem_is_reported(tmp_path: Path) -> None:
    row = json.dumps({"problem": EXPAND, "answer": "x^2-x-2"})
    (tmp_path / "expand.jsonl").write_text(f"{row}\n", encoding="utf-8")
    env = marft_envs.make("math-solo-v0", data=str(tmp_path / "expand.jsonl"))
    seen = []
    for answer in ("(x+1)(x-2)", "x^2-x-2"):
        env.reset(seed=0)
        env.step(f"\\boxed{{{answer}}}")
        seen.append((env.episode.info["status"], env.episode.success, env.episode.metrics["parsed"]))
    assert seen == [("restated", False, 1.0), ("correct", True, 1.0)]
