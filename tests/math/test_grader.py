"""The math grader: what counts as an answer, what equals what, and what it survives."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.hostile_answers import ANSWERS, CODE, GOLD, WHOLE
from marft_envs.core.faults import fault_of
from marft_envs.errors import DataError
from marft_envs.families.math import exact, grader
from marft_envs.families.math._verify_worker import verify
from marft_envs.families.math.grader import (
    CORRECT,
    EMPTY_BOX,
    MATH_VERIFY,
    NO_BOX,
    NUMERIC,
    STATUSES,
    STRING,
    STRUCTURE,
    TIERS,
    TIMEOUT,
    TOO_BIG,
    TOO_LONG,
    UNCLOSED_BOX,
    WRONG,
    extract_boxed,
    grade,
    grade_answer,
)
from marft_envs.families.math.parse import MAX_DEPTH, ParseError, parse
from marft_envs.workers.untrusted import WALL, WorkerLate, WorkerPool, WorkerStartError


@pytest.fixture(scope="module", autouse=True)
def worker() -> Iterator[None]:
    grader.warm_up()
    yield
    grader.close()


def right(pred: str, gold: str) -> bool:
    return grade(f"\\boxed{{{pred}}}", gold).score == 1.0


@pytest.mark.parametrize(("output", "box"), [
    ("The answer is \\boxed{5}.", "5"), ("\\boxed{1} or rather \\boxed{2}", "2"),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("\\fbox{7}", "7"), ("\\boxed {7}", "7"),
    ("\\boxed{1} and then \\boxed{2", "1"), ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"), ("{ an open brace \\boxed{3}", "3"),
    ("} a stray one \\boxed{3}", "3"), ("\\boxed{\\boxed{4}}", "4"), ("\\boxed{}", ""), ("\\boxed{5", None),
    ("\\boxed5", "5"), ("so $\\boxed 9$.", "9"), ("$\\boxed\\frac12$", "\\frac12"),
    ("\\boxed \\frac{1}{2}", "\\frac{1}{2}"), ("\\boxed\\text{yes}", "\\text{yes}"), ("\\boxed A", "A"),
    ("\\boxed{3} and \\boxed 4", "4"), ("\\boxed{3} in \\boxed as asked", "3"), ("\\boxed 4 and \\boxed{", "4"),
    ("\\boxedx{3}", None), ("5", None),
])  # fmt: skip
def test_only_the_last_closed_box_counts(output: str, box: str | None) -> None:
    assert extract_boxed(output) == box


@pytest.mark.parametrize(("output", "status"), [
    ("\\boxed{5}", CORRECT), ("\\boxed{6}", WRONG), ("5", NO_BOX), ("", NO_BOX), ("\\boxed{5", UNCLOSED_BOX),
    ("\\boxed{}", EMPTY_BOX), ("\\boxed{5}, no: \\boxed{ }", EMPTY_BOX), ("\\boxed{$$}", EMPTY_BOX),
    (f"\\boxed{{{'5' * 5000}}}", TOO_LONG), ("\\boxed{9^{9^{9^9}}}", TOO_BIG),
])  # fmt: skip
def test_every_way_to_fail_has_a_name(output: str, status: str) -> None:
    result = grade(output, "5")
    assert result.status == status and result.score == float(status == CORRECT)


@pytest.mark.parametrize("gold", ["", " ", "\n\t", "$$", "{}"])
def test_an_empty_gold_is_refused(gold: str) -> None:
    for output in ("\\boxed{5}", "no box"):
        with pytest.raises(DataError, match="empty"):
            grade(output, gold)


@pytest.mark.parametrize(("gold", "pred", "tier"), [
    ("1234", "1,234.0", STRING), ("\\frac{1}{2}", "\\dfrac 12", STRING), ("\\frac{1}{2}", "0.5", NUMERIC),
    ("(x+1)^2", "x^2+2x+1", NUMERIC), ("(1,2)", "(1, \\frac42)", STRUCTURE),
    ("2\\cdot 3", "\\sum_{n=1}^{3} n", MATH_VERIFY), ("\\sin\\frac{\\pi}{6}", "\\int_0^1 x\\,dx", MATH_VERIFY),
])  # fmt: skip
def test_the_cheapest_tier_that_can_tell_decides(gold: str, pred: str, tier: str) -> None:
    result = grade(f"\\boxed{{{pred}}}", gold)
    assert (result.score, result.tier) == (1.0, tier)


EQUAL = [
    # a real root, of 0 too
    ("0", "\\sqrt[3]{0}"),
    # units of any kind
    ("5\\text{ square units}", "5\\text{ square cm}"),
    # spelling
    ("7425000", "7{,}425{,}000"), ("3200", "3,\\!200"), ("1000000", "1 000 000"), ("\\$6", "6"), ("90", "90^{\\circ}"),
    ("\\text{Monday}", "monday"), ("\\text{(E)}", "E"), ("\\sqrt{5}", "$\\\\sqrt{5}$"), ("100\\pi", "100π"),
    ("x^2 - 1", "x²−1"), ("5", "x = 5"), ("x=5", "5"), ("72", "48 + 24 = 72"), ("\\frac13", "x = 1/3 \\approx 0.33"),
    # units
    ("10\\text{ cm}^2", "10"), ("10", "10 \\text{ square units}"), ("10 \\text{ cm}", "10 centimeters"),
    ("60 \\text{ mph}", "60 \\text{ miles per hour}"),
    # numbers
    ("2.5", "2\\frac12"), ("\\frac{10}{9}", "10/9"), ("-\\frac12", "\\frac{-3}{6}"), ("\\frac13", "0.\\overline{3}"),
    ("1.5e3", "1.5 \\times 10^{3}"), ("50\\%", "50"), ("50\\%", "0.5"), ("28\\%", "28 percent"), ("1024", "2^{10}"),
    ("5!", "4!\\cdot 5"), ("\\binom{40}{10}", "{40 \\choose 30}"),
    (
        "\\frac{2^{2009}-1}{3\\cdot 2^{2008}-1}",
        "1-\\frac{2^{2008}}{-1+3\\cdot 2^{2008}}\\cdot(-1)-\\frac{2^{2009}+3\\cdot2^{2008}-1-2^{2009}}{3\\cdot 2^{2008}-1}+\\frac{2^{2008}-1}{3\\cdot2^{2008}-1}",
    ),
    ("\\frac{\\sqrt7}{12}", "\\sqrt{7/144}"), ("\\frac{\\sqrt3}{3}", "1/sqrt(3)"), ("\\sqrt[3]{-8}", "-2"),
    ("\\log_2 9", "2\\log_2 3"), ("\\frac{\\pi}{6}", "30^\\circ"), ("1+2i", "i(2-i)"),
    # expressions
    ("\\tan^2(y)+1", "\\sec^2 y"), ("ln(a)*a^x", "a^x \\ln a"), ("\\frac{8-7x}{6}", "4/3-7x/6"),
    ("2|x|", "2\\sqrt{x^2}"),
    # structure
    ("1, 2, 3", "3,1,2"), ("7, -2, \\text{ and } -5", "-5,-2,7"), ("\\{1,2\\}", "2, 1"),
    ("\\pm\\sqrt3", "-\\sqrt3, \\sqrt3"), ("(p,q)=(3,2)", "(3, 2)"), ("x = 1, y = 2", "1, 2"),
    ("a_3=2, a_{37}=19", "a_{37}=19, a_3=2"), ("x \\le 5", "5 \\ge x"), ("x < 1", "-x > -1"),
    ("-2 \\le x \\le 7", "x \\in [-2,7]"),
    ("x < 3 \\text{ or } x > 5", "(-\\infty,3) \\cup (5,\\infty)"),
    ("\\{x \\mid x > 2\\}", "(2, \\infty)"), ("x \\ne 5", "(-\\infty,5) \\cup (5,\\infty)"),
    ("3\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}3\\\\6\\end{pmatrix}"),
    ("2x+4y-3=0", "y=-\\frac12 x+\\frac34"),
    ("\\begin{pmatrix}0.5\\\\1\\end{pmatrix}", "\\begin{bmatrix}\\frac12\\\\1\\end{bmatrix}"),
    ("7:32", "7 : 32"),
    # percent in words, ratios with names, sets with names
    ("50\\%", "50 \\text{ percent}"), ("0.5", "50 \\text{ per cent}"), ("12.5\\%", "12.5 Percent"),
    ("\\frac13\\%", "\\frac{1}{3}\\text{-percent}"), ("7:32", "S_{ABC}:S=7:32"),
    ("\\frac23", "\\frac{AB}{CD} = \\frac{2}{3}"), ("\\frac23", "a/b = 4/6"), ("a:b=2:3", "2:3"),
    ("(-\\infty,\\infty)", "\\mathbb{R}"), ("(-\\infty,\\infty)", "\\text{all real numbers}"),
    ("x \\in \\mathbb{R}", "(-\\infty, +\\infty)"), ("(0,\\infty)", "\\mathbb{R}^{+}"),
    ("x \\ge 0", "\\mathbb{R}_{\\geq 0}"), ("\\emptyset", "\\{\\}"), ("\\varnothing", "\\text{no solution}"),
    # equations
    ("72", "72 = 48 + 24"), ("0.33", "\\frac13 = 0.33"), ("5 = x", "5"), ("y = 2x+1", "2x+1"),
    ("1=\\frac{x^2}{4}+y^2", "x^2+4y^2=4"), ("f(x) = (x+1)^2 = x^2+2x+1", "x^2+2x+1"),
    # constants of any size
    ("10^{-5000}", "\\frac{1}{10^{5000}}"), ("\\sqrt{8}\\cdot 10^{-14}", "2\\sqrt2\\cdot 10^{-14}"),
    ("10^{300}\\pi + 1", "1 + 10^{300}\\pi"), ("e^{1000}", "(e^{500})^2"), ("\\sin(2\\pi)", "\\sin(\\pi)"),
    ("\\ln(10^{5000})", "5000\\ln 10"), ("\\sqrt2+\\sqrt3", "\\sqrt{5+2\\sqrt6}"),
    ("(\\frac12)^{20000}", "\\frac{1}{2^{20000}}"),
]  # fmt: skip
DIFFERENT = [
    # a chain of unknowns says more than its last link, whether two of its forms are one
    ("x=y=\\frac{z}{2}=\\frac{2z}{4}", "x=\\frac{z}{2}"), ("(0,9)", "[0,9)"), ("(1,2)", "(2,1)"), ("(4,7)", "4,7"),
    ("[1,2]", "\\{1,2\\}"), ("(1,2,3)", "(1,2)"), ("1,2", "1"), ("1331 \\text{ and } 1728", "1728"),
    ("\\pm 2021", "2021"), ("x = 1, y = 2", "2, 1"), ("x > 3", "x < 3"), ("x > 3", "x \\ge 3"), ("m < 1", "k < 1"),
    ("m = 2", "x = 2"), ("2x+z=1", "1"), ("x^2=4", "4"), ("0.5", "50"), ("50", "0.5"), ("50\\%", "5"),
    ("\\frac13", "0.33"), ("\\frac{\\sqrt7}{12}", "0.22048"), ("12", "1 2"), ("5", "2+3"), ("10", "10m"),
    ("10 \\text{ cm}", "10 \\text{ m}"),
    ("2011^{2009}\\cdot(1005^{2011}-1004^{2011})", "2011^{2009}\\cdot(1005^{2011}-1004^{2011})+1"),
    ("x", "|x|"), ("e^{2x}", "e^x"), ("f(x)", "f(y)"), ("\\sin(x)=\\frac{42}{59}", "\\cos(x)=\\frac{42}{59}"),
    ("4210_7", "4210"), ("\\infty", "-\\infty"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1&2\\end{pmatrix}"),
    ("1, 2, \\ldots, n", "1, 3, 5, \\ldots, 2n-1"), ("\\text{Evelyn}", "Carla"), ("7:32", "32:7"),
    ("0.5\\%", "50 \\text{ percent}"), ("50\\%", "0.5 \\text{ percent}"), ("7:32", "S_{ABC}:S=32:7"),
    ("\\frac23", "\\frac{AB}{CD} = \\frac{3}{2}"), ("\\frac{a}{b} = \\frac23", "\\frac{b}{a} = \\frac23"),
    ("[0,\\infty)", "\\mathbb{R}^+"), ("[-\\infty,\\infty]", "\\mathbb{R}"), ("(-\\infty,\\infty)", "\\mathbb{Q}"),
    ("\\emptyset", "0"), ("\\{0\\}", "\\{\\}"),
    # an equation between constants that is false as it stands
    ("5", "2+2=5"), ("5", "4=5"), ("5", "5=4"), ("5", "5 = 2+2 = 5"), ("0.34", "\\frac13 = 0.34"),
    ("5", "4 \\approx 5"), ("2+3=6", "6"), ("2+3=6", "1=2"), ("5, 6", "5, 4=6"),
    # the left side of an equation in the gold
    ("1=\\frac{x^2}{4}+y^2", "\\frac{x^2}{4}+y^2"), ("1=\\frac{x^2}{4}+y^2", "4=\\frac{x^2}{4}+y^2"),
    ("0=2x+3y-6", "2x+3y-6"), ("5=x", "x"), ("x=y=z", "z"), ("x=\\frac{y}{2}=z", "z"), ("x=\\frac{y}{2}=z", "x=z"),
    ("x=y=5", "x=5"),
    # constants of any size
    ("10^{-3000}", "10^{-4000}"), ("10^{-12}", "2\\cdot 10^{-12}"), ("e^{-50}", "e^{-60}"), ("0", "e^{-40}"),
    ("e^{1000}", "e^{1001}"), ("\\sqrt2\\cdot 10^{-14}", "\\sqrt3\\cdot 10^{-14}"), ("10^{20}\\pi", "10^{20}\\pi+1"),
    ("10^{300}\\pi", "10^{300}\\pi+1"), ("\\frac{10^{3000}}{3}", "\\frac{10^{3000}+1}{3}"), ("1", "1+10^{-5000}"),
    ("10^{-13}", "10^{-13} \\int_0^1 x\\,dx"),
]  # fmt: skip

WORKED_OUT = {
    # a sum, a difference, a product or a value of a function is a calculation on the way
    "24": ({"24", "+24", "24.0", "\\frac{48}{2}", "48/2", "\\sqrt{576}", "2.4 \\times 10^1", "x=24", "20+4=24", "24=5^2-1",
            "x=\\binom{24}{1}=24"},
           {"20+4", "100-76", "4\\cdot 6", "5^2-1", "2^3\\cdot 3", "3!\\cdot 4", "2(12)", "24+0", "\\frac{20+28}{2}", "\\sqrt{500+76}",
            "x=20+4", "\\frac{4\\cdot 12}{2}", "23+\\frac{2}{2}", "4!", "\\binom{24}{1}", "|-24|", "\\lfloor 24.5\\rfloor",
            "\\gcd(48,72)", "\\det\\begin{pmatrix} 6 & 0 \\\\ 0 & 4 \\end{pmatrix}", "\\sum_{k=1}^{24} 1", "\\int_0^{24} dx",
            "\\sqrt{4}\\cdot 12", "\\sqrt{400}+\\sqrt{16}", "\\operatorname{lcm}(8,12)", "\\max(2, 24)"}),
    "1024": ({"2^{10}", "4^5"}, {"2^9\\cdot 2", "2^{9+1}"}),
    "0.5": ({"\\frac12", "2^{-1}", "50\\%"}, {"0.2+0.3", "1-0.5", "30\\%+20\\%", "\\sin 30^\\circ", "\\cos\\frac{\\pi}{3}"}),
    "\\frac{13}{8}": ({"1\\frac58", "1+\\frac58", "\\frac{26}{16}", "1.625"}, {"\\frac58+1", "2-\\frac38", "\\frac{8+5}{8}", "\\frac{13}{2}\\cdot\\frac14"}),
    "-1500": ({"-1.5\\times 10^3", "-\\frac{3000}{2}"}, {"-1000-500", "-15\\cdot 100"}),
    "1, 2": ({"2, 1", "\\frac22, 2"}, {"1, 1+1"}),
    # so it is in front of a root or a constant
    "6\\sqrt3": ({"\\sqrt{108}", "\\sqrt3\\cdot 6", "\\frac{12\\sqrt3}{2}", "\\frac{18}{\\sqrt3}"}, {"2\\cdot 3\\sqrt3", "2\\sqrt3+4\\sqrt3", "\\sqrt{10^2+8}"}),
    "176\\pi": ({"\\frac{352\\pi}{2}", "\\pi\\cdot 176", "1.76\\cdot 10^2\\pi"}, {"\\pi\\cdot 4^2\\cdot 11", "\\pi\\cdot 10^2\\cdot 1.76", "\\sqrt{16}\\cdot 44\\pi", "100\\pi+76\\pi", "\\pi(100+76)"}),
    "\\frac{-3+\\sqrt{21}}{2}": ({"-\\frac32+\\frac{\\sqrt{21}}{2}", "\\frac12(\\sqrt{21}-3)"}, {"\\frac{-3+\\sqrt{3^2+12}}{2}", "\\frac{-3+\\sqrt{9+12}}{2\\cdot 1}"}),
    "1+\\sqrt2, 1-\\sqrt2": ({"1\\pm\\sqrt2"}, {"1\\pm\\sqrt{1+1}", "\\frac{2\\pm\\sqrt{4+4}}{2}"}),
    # of complex numbers
    "-48+6i": ({"6i-48", "6(i-8)", "i(6+48i)"}, {"(4+2i)(-9+6i)", "-36+24i-18i-12", "(-40+3i)-(8-3i)"}),
    "\\frac12-\\frac12i": ({"\\frac{1-i}{2}", "\\frac{1}{1+i}"}, {"\\frac{1-2i}{3-i}", "(1+i)^{-1}"}),
    "\\begin{pmatrix} 1 & 2 \\\\ 0 & 1 \\end{pmatrix}": (
        {"\\frac12\\begin{pmatrix} 2 & 4 \\\\ 0 & 2 \\end{pmatrix}"},
        {"\\begin{pmatrix} 1 & 1 \\\\ 0 & 1 \\end{pmatrix}\\begin{pmatrix} 1 & 1 \\\\ 0 & 1 \\end{pmatrix}",
         "\\begin{pmatrix} 1 & 1 \\\\ 0 & 1 \\end{pmatrix}^2"}),
    # any form will do where the gold holds work or variables
    "2^3\\cdot 3": ({"24", "20+4"}, set()),
    "10!": ({"3628800", "9!\\cdot 10"}, set()),
    "\\ln 8": ({"3\\ln 2", "2\\ln 2+\\ln 2"}, set()),
    "2x+7": ({"2x+3+4"}, set()),
}  # fmt: skip
"""Gold -> what is right, and what has the same value and is not yet an answer."""


@pytest.mark.parametrize(("gold", "pred"), EQUAL)
def test_equal_answers(gold: str, pred: str) -> None:
    assert right(pred, gold) and right(gold, pred)


@pytest.mark.parametrize(("gold", "pred"), DIFFERENT)
def test_different_answers(gold: str, pred: str) -> None:
    assert not right(pred, gold)


@pytest.mark.parametrize("gold", WORKED_OUT)
def test_a_calculation_left_undone_is_not_an_answer_to_a_number_that_is_worked_out(gold: str) -> None:
    done, undone = WORKED_OUT[gold]
    assert {pred for pred in done if not right(pred, gold)} == set()
    assert {pred for pred in undone if right(pred, gold)} == set()


@pytest.mark.parametrize(("nested", "deepest"), [
    (lambda n: "-" * n + "1", MAX_DEPTH), (lambda n: "{1\\choose" * n + "1" + "}" * n, MAX_DEPTH),
    (lambda n: "\\sin" + "-" * n + "x", MAX_DEPTH - 1),
    (lambda n: "1\\frac{" * n + "1" + "}{2}" * n, MAX_DEPTH // 3),
], ids=["signs", "binomials", "an argument's signs", "mixed numbers"])  # fmt: skip
def test_every_form_nests_so_deep_and_no_deeper(nested: Callable[[int], str], deepest: int) -> None:
    parse(nested(deepest))
    with pytest.raises(ParseError, match="too deep"):
        parse(nested(deepest + 1))


def test_the_parser_itself_reads_numbers_and_names_side_by_side() -> None:
    """What it does not read, math-verify may grade alike."""
    x, half = ("var", "x"), ("/", ("num", 1), ("num", 2))
    assert parse("x 3") == ("*", x, ("num", 3)) and parse("1 1/2") == ("+", ("num", 1), half)
    with pytest.raises(ParseError, match="side by side"):
        parse("2 3")


def test_whole_exponents_and_numbers_beyond_floats_are_compared_without_math_verify() -> None:
    assert exact.same_value("(-1)^n", "(-1)^{n+2}") is True and exact.same_value("(-1)^n", "(-1)^{n+1}") is False
    assert exact.same_value("e^{1000}", "e^{999}") is False


def test_math_verify_compares_a_named_vector_with_a_bare_one_and_a_number_with_what_it_simplifies_to() -> None:
    vector, other = (f"\\begin{{pmatrix}}1\\\\{y}\\end{{pmatrix}}" for y in (2, 3))
    assert verify([f"A={vector}", vector]) and not verify([f"A={vector}", f"A={other}"])
    assert verify(["5", "\\sin^2 x+\\cos^2 x+4"])


def test_an_answer_equals_itself_respaced_and_in_a_sentence() -> None:
    for gold, pred in EQUAL:
        assert right(gold, gold) and right(f" {pred} ", pred)
        assert grade(f"First \\boxed{{0.123}}, but then ${{\\boxed{{{pred}}}}}$.", gold).score == 1.0


def test_perturbed_integers_and_fractions_are_wrong() -> None:
    rng = random.Random(0)
    for _ in range(300):
        above, below = rng.randrange(-999, 999), rng.randrange(2, 99)
        times = rng.randrange(2, 9)
        gold = f"\\frac{{{above}}}{{{below}}}"
        assert right(f"{above * times}/{below * times}", gold)
        assert not right(f"{above * times + 1}/{below * times}", gold)
        assert not right(str(above + rng.choice([-10, -1, 1, 10])), str(above))


def load(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").strip().split("\n")]


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_agreement_with_labelled_pairs(every: int, shared_data: Path) -> None:
    known = [pair for pair in load(shared_data / "grading" / "pairs.jsonl") if pair["kind"] == "answer"]
    assert len(known) == 4361 and sum(not pair["correct"] for pair in known) == 2404
    pairs = known[::every]
    grades = [grade(f"\\boxed{{{pair['pred']}}}", pair["gold"]) for pair in pairs]
    assert {result.status for result in grades} <= set(STATUSES)
    assert {result.tier for result in grades} <= {*TIERS, ""}
    agreement = sum(bool(r.score) == pair["correct"] for r, pair in zip(grades, pairs, strict=True)) / len(pairs)
    incorrect = [result for result, pair in zip(grades, pairs, strict=True) if not pair["correct"]]
    assert agreement >= 0.985
    assert sum(result.score for result in incorrect) <= 0.002 * len(incorrect)


@pytest.mark.parametrize("part", ["train", "test"])
def test_every_gsm8k_gold_is_right(shared_data: Path, part: str) -> None:
    golds = [row["answer"] for row in load(shared_data / "math" / f"gsm8k_{part}.jsonl")]
    assert [gold for gold in golds if not right(gold, gold)] == []
    assert all(grade(f"\\boxed{{{gold}}}", gold).tier == STRING for gold in golds)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    """Workers that have half of the time."""
    monkeypatch.setattr(grader, "DEADLINE", grader.DEADLINE / 2)
    verify = "marft_envs.families.math._verify_worker:verify"
    with WorkerPool(verify, size=2, deadline=grader.DEADLINE) as pool:
        monkeypatch.setattr(grader, "_pool", lambda: pool)
        yield pool


@pytest.mark.usefixtures("hurried")
def test_hostile_strings_answer_in_time_and_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    outputs = [f"\\boxed{{{answer.replace('CANARY', str(canary))}}}" for answer in ANSWERS] + WHOLE
    assert len(outputs) >= 120
    slow, accepted, statuses = [], [], set()
    # What names a calculation is sent to the worker only if the gold does, too.
    for output, gold in itertools.product(outputs, (GOLD, "8+9")):
        start = time.monotonic()
        result = grade(output, gold)
        seconds = time.monotonic() - start
        statuses.add(result.status)
        # A worker that was killed is started anew first, which on a busy machine takes as long as it takes.
        if seconds > (WALL + 1) * grader.DEADLINE + 30:
            slow.append((seconds, output[:80]))
        if result.score:
            accepted.append(output[:80])
    assert slow == [] and accepted == [] and not canary.exists()
    assert TIMEOUT in statuses and statuses <= {*STATUSES}
    monkeypatch.undo()
    assert grade("\\boxed{\\int_0^2 x\\,dx}", "2!").tier == MATH_VERIFY
    assert right("\\int_0^2 3x\\,dx", "3!")


def test_brackets_that_are_never_closed_cost_nothing_and_are_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "_verify", lambda gold, pred: pytest.fail(f"sent to the worker: {pred[:80]}"))
    for gold in ("5", "\\frac12", "(1,2)", "x^2+1", "[0,1)", "1,2", "8+9"):
        assert grade("\\boxed{" + "\\left(" * 300 + "}", gold).score == 0.0


def test_two_million_braces_are_read_at_once() -> None:
    start = time.process_time()
    assert grade("\\boxed{" + "{}" * 10**6 + "}", "5").status == TOO_LONG
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize("code", CODE)
def test_code_never_reaches_the_worker(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "_verify", lambda gold, pred: pytest.fail(f"sent to the worker: {pred}"))
    assert grade_answer(code, GOLD + "x").score == 0.0


@pytest.mark.usefixtures("hurried")
def test_a_timeout_is_a_status_off_the_main_thread_too() -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(grader._verify("7", "(10^9)!")))
    thread.start()
    thread.join(120)  # the deadline is of CPU time, and a machine may be busy
    assert results == [(TIMEOUT, MATH_VERIFY)]
    assert right("\\sum_{n=1}^{4} n", "2\\cdot 5")


def test_a_timeout_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    sum_of_seven = "\\boxed{\\sum_{n=1}^{7} n}"
    hurried = WorkerPool("marft_envs.families.math._verify_worker:verify", deadline=0.001)
    with hurried, monkeypatch.context() as patch:
        patch.setattr(grader, "_pool", lambda: hurried)
        patch.setattr("marft_envs.workers.untrusted.WALL", 30_000.0)  # its CPU time is up first
        assert grade(sum_of_seven, "4\\cdot 7").status == TIMEOUT
    assert grade(sum_of_seven, "4\\cdot 7").status == CORRECT


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
def test_the_verdict_does_not_depend_on_the_load_of_the_machine(hurried: WorkerPool) -> None:
    """Workers that get no processor for longer than the deadline say the same."""
    hurried.warm_up()
    workers = [slot.process.pid for slot in hurried.slots if slot.process is not None]
    assert workers
    grades: list[Any] = []
    thread = threading.Thread(target=lambda: grades.append(grade("\\boxed{\\sum_{n=1}^{8} n}", "4\\cdot 9")))
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        thread.start()
        time.sleep(1.5 * grader.DEADLINE)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
    thread.join(30)
    assert [result.status for result in grades] == [CORRECT]


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
def test_what_the_clock_on_the_wall_stops_once_has_no_score_and_twice_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine kept the worker from its work: that says nothing of the answer, unless it happens again."""
    stopped = WorkerPool("marft_envs.families.math._verify_worker:verify", deadline=0.2)
    with stopped, monkeypatch.context() as patch:
        patch.setattr(grader, "_pool", lambda: stopped)
        for answer in ("6\\cdot 11", "6\\cdot 13"):
            stopped.warm_up()
            process = stopped.slots[0].process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
            if answer == "6\\cdot 11":
                with pytest.raises(WorkerLate, match="less to do") as late:
                    grade("\\boxed{\\sum_{n=1}^{11} n}", answer)
                assert fault_of(late.value) == "machine"
            else:  # the same answer again: nobody opts out of a score by being slow
                assert grade("\\boxed{\\sum_{n=1}^{11} n}", answer).status == TIMEOUT
    assert grade("\\boxed{\\sum_{n=1}^{11} n}", "6\\cdot 11").status == CORRECT


def test_a_broken_installation_is_an_error_not_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool("no_such_module:verify")
    monkeypatch.setattr(grader, "_pool", lambda: pool)
    with pytest.raises(WorkerStartError, match="no_such_module"):
        grade("\\boxed{\\sum_{n=1}^{5} n}", "3\\cdot 5")


def test_random_notation_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "_verify", lambda gold, pred: (WRONG, MATH_VERIFY))
    pieces = re.findall(
        r"\\[a-z]+\{\w+\}|\\sqrt\[3\]|\\log_2|\^\\circ|\\[a-z]+|\\\W|10\^\{9\}|\{,\}|\d+|\S",
        r"1 2 12 0 . x y e i \pi + - * / ^ _ ( ) [ ] { } \{ \} | , ; : ! % = < > \le \pm \infty \cup \in ^\circ"
        r" \frac \sqrt \sqrt[3] \sin \ln \log_2 \text{cm} \begin{pmatrix} \end{pmatrix} \\ & \binom \choose \left"
        r" \right $ \$ ' \overline{3} 10^{9} {,} \mathbb{R} \approx ² √" + "\\\0\ud800\u202e",
    )
    assert len(pieces) > 60
    golds = [
        "5", "\\frac12", "x^2+1", "(1,2)", "[0,1)", "1,2", "x=3", "2x+3y=6", "50\\%", "\\pm2", "x<5",
        "(0,1)\\cup(2,3]",
    ]  # fmt: skip
    rng = random.Random(0)
    for _ in range(1500):
        text = "".join(rng.choice(pieces) for _ in range(rng.choice([3, 6, 12, 60])))
        assert grade(f"\\boxed{{{text}}}", rng.choice(golds)).status in STATUSES
        if text.strip(" \t\n$.{}"):
            assert grade_answer("7", text).status in STATUSES


def test_simple_answers_are_fast() -> None:
    outputs = [f"Some reasoning, then the answer: \\boxed{{{n}}}." for n in range(5000)]
    start = time.process_time()
    assert sum(grade(output, "4,999").score for output in outputs) == 1
    assert len(outputs) / (time.process_time() - start) > 10_000
