"""Absolute values, even roots, max, min and steps: equal is what is equal on every side of every kink."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from marft_envs.families.math.grader import grade

SAME = [
    (r"\sqrt{x^2}", r"|x|"), (r"|7-x|", r"|x-7|"), (r"|x|^2", r"x^2"), (r"|u||v|", r"|uv|"), (r"|u-v|", r"|v-u|"),
    (r"\max(p,q)", r"\frac{p+q+|p-q|}{2}"), (r"\min(p,q)", r"\frac{p+q-|p-q|}{2}"), (r"\max\{x,6\}", r"\max(6,x)"),
    (r"\max(u,v)+\min(u,v)", r"u+v"), (r"\min(u,v,w)", r"\min(w,\min(u,v))"), (r"||x|-9|", r"|9-|x||"),
    (r"|x-6|\cdot|x+6|", r"|x^2-36|"), (r"\sqrt[4]{(x-9)^4}", r"|x-9|"), (r"\sqrt[3]{(x-9)^3}", r"x-9"),
    (r"((x-8)^2)^{1/2}", r"|8-x|"), (r"\ln|x-6|+C", r"\ln|6-x|+C"), (r"\frac12\ln(x^2)", r"\ln|x|"),
    (r"\sqrt{x^4-18x^3+121x^2-360x+400}", r"|(x-4)(x-5)(1)|"), (r"\sqrt{u^2v^2}", r"|uv|"),
    (r"\sqrt{1+\sin 2x}", r"|\sin x+\cos x|"), (r"\sqrt{1-\cos^2 x}", r"|\sin x|"), (r"\sqrt{u^2v}", r"|u|\sqrt v"),
    (r"\operatorname{sgn}(x-8)", r"\frac{x-8}{|x-8|}"), (r"e^{-|x-200|}", r"e^{-|200-x|}"),
    (r"\sqrt{x^2+4}-x", r"\frac{4}{\sqrt{x^2+4}+x}"), (r"\sqrt{x+20}-\sqrt x", r"\frac{20}{\sqrt{x+20}+\sqrt x}"),
    (r"\ln(x+\sqrt{x^2+4})", r"-\ln\frac{\sqrt{x^2+4}-x}{4}"), (r"\frac{\sqrt{x-4}}{\sqrt{x-6}}", r"\sqrt{\frac{x-4}{x-6}}"),
    (r"\sqrt{\frac{n+5}{n}}", r"\frac{\sqrt{n^2+5n}}{n}"), (r"x^{3/2}", r"|x|\sqrt x"), (r"|x-6|=8", r"|6-x|=8"),
    (r"|x|+|y-40|=9", r"|40-y|+|x|-9=0"), (r"y=\sqrt{(x-8)^2}", r"y=|8-x|"), (r"|4x-6|", r"2|2x-3|"),
    (r"(|x-8|,2)", r"(|8-x|,2)"), (r"(-1)^n", r"\cos(n\pi)"), (r"(-1)^{k+2}", r"(-1)^k"),
    (r"\frac{2+(-3)^n}{4}", r"\frac12+\frac{(-3)^n}{4}"), (r"{n \choose 3}", r"\frac{n(n-1)(n-2)}{6}"),
    (r"\binom{n}{k}", r"{n\choose n-k}"), (r"\binom nk", r"\frac{n!}{k!(n-k)!}"), (r"3{m\choose 2}", r"3\binom m2"),
]  # fmt: skip
OTHER = [
    (r"|x-6|", r"6-x"), (r"|x-6|", r"x-6"), (r"|x-200|", r"200-x"), (r"|3x-10|", r"10-3x"), (r"|u-v|", r"v-u"),
    (r"|u-v|", r"u-v"), (r"|x^2-9|", r"9-x^2"), (r"|x-3|+|x-4|", r"7-2x"), (r"|x-3|+|x-4|", r"1"),
    (r"|x-3|-|x-3.02|", r"2x-6.02"), (r"\ln|x-8|+C", r"\ln(8-x)+C"), (r"\ln|x-8|+C", r"\ln(x-8)+C"),
    (r"\sqrt{(x-6)^2}", r"6-x"), (r"\frac{|x-9|}{x-9}", r"-1"), (r"y=|x-8|", r"y=8-x"), (r"f(x)=|x-9|", r"f(x)=9-x"),
    (r"|x-6|<3", r"6-x<3"), (r"-|x-20|", r"x-20"), (r"\sqrt{1+\sin2x}", r"\sin x+\cos x"), (r"|4-x|y", r"(4-x)y"),
    (r"|x-b|", r"b-x"), (r"|x-b|", r"x-b"), (r"||x|-8|", r"8-|x|"), (r"||x-2|-9|", r"9-|x-2|"),
    (r"\lfloor x/2000\rfloor", r"0"), (r"\lceil x/300\rceil", r"1"), (r"\max(x,12)", r"12"), (r"\min(x,-12)", r"-12"),
    (r"\min(u,v,w)", r"\min(u,v)"), (r"\operatorname{sgn}(x-70)", r"-1"), (r"\sqrt{(x-5)^2(x-6)^2}", r"(x-5)(x-6)"),
    (r"\sqrt{x^4-18x^3+121x^2-360x+400}", r"(x-4)(x-5)"), (r"\sqrt{1+\cos x}", r"\sqrt2\cos\frac x2"),
    (r"\sqrt{u^2v}", r"u\sqrt v"), (r"\sqrt{x^2+10x+25}", r"x+5"), (r"\sqrt{(x+6)^2}+\sqrt{x+9}", r"x+6+\sqrt{x+9}"),
    (r"\sqrt[4]{(x-9)^4}", r"9-x"), (r"\arcsin(\sin x)", r"x"), (r"\arccos(\cos\frac{x}{20})", r"\frac{|x|}{20}"),
    (r"\arctan x+\arctan\frac1x", r"\frac\pi2"), (r"e^{|x-40|}", r"e^{40-x}"), (r"|u+v|", r"|u|+|v|"),
    (r"||u|-|v||", r"|u-v|"), (r"|x-6|\cdot|x+6|", r"36-x^2"), (r"|x-6|=8", r"6-x=8"),
    (r"|x|+|y-40|=60", r"|x|+40-y=60"), (r"|x-60|\le 4", r"60-x\le 4"), (r"(|x-8|,2)", r"(8-x,2)"),
    (r"\{|x-8|,2\}", r"\{8-x,2\}"), (r"|x-10^8|", r"10^8-x"), (r"\frac{|x-14|+x-14}{2}", r"0"),
    (r"\left|\frac{x-30}{x-40}\right|", r"\frac{x-30}{x-40}"), (r"|x-a|+|x-b|", r"|a-b|"),
    (r"\sqrt{u^2-2uv+v^2}", r"u-v"), (r"|\sin x|", r"\sin x"), (r"(-1)^n", r"1"), (r"(-1)^n", r"(-1)^{n+1}"),
    (r"(-1)^{\frac{n(n-1)}{2}}", r"(-1)^{\frac{n(n+1)}{2}}"), (r"{n\choose 2}", r"\frac{n^2}{2}"),
    (r"\binom{n}{k}", r"\frac{n!}{k!}"), (r"\binom{n}{2}", r"\binom{n}{3}"), (r"24", r"\max(3,24)"),
]  # fmt: skip


def right(pred: str, gold: str) -> bool:
    return grade(f"\\boxed{{{pred}}}", gold).score == 1.0


@pytest.mark.parametrize(("first", "second"), SAME)
def test_other_forms_of_the_same_function_are_right_both_ways(first: str, second: str) -> None:
    assert right(second, first) and right(first, second)


@pytest.mark.parametrize(("gold", "pred"), OTHER)
def test_one_branch_of_a_function_is_wrong(gold: str, pred: str) -> None:
    assert not right(pred, gold)


class Made(NamedTuple):
    """An expression in x and y, and its value by Python."""

    text: str
    value: Callable[[float, float], float]


def linear(rng: random.Random, size: int) -> Made:
    a, b, c = rng.choice([1, 1, 2, -1]), rng.choice([0, 0, 1, -1]), size * rng.randrange(-20, 21)
    return Made(f"({a}x{b:+d}y{c:+d})", lambda x, y: a * x + b * y + c)


def kinked(rng: random.Random, size: int) -> tuple[Made, Made, Made]:
    """A kinked expression, another form of it, and one of its branches."""
    (p, f), (q, g) = linear(rng, size), linear(rng, size)
    sign = rng.choice([1, -1])
    branch = Made(f"({sign})({p})", lambda x, y: sign * f(x, y))
    size_of = Made(f"|{p}|", lambda x, y: abs(f(x, y)))
    one_of = rng.choice([Made(p, f), Made(q, g)])
    return rng.choice([
        (size_of, Made(rf"\sqrt{{{p}^2}}", size_of.value), branch),
        (Made(rf"\sqrt{{{p}^2}}", size_of.value), Made(f"|-{p}|", size_of.value), branch),
        (size_of, Made(rf"\max({p},-{p})", size_of.value), branch),
        (Made(rf"\frac12|{p}|", lambda x, y: abs(f(x, y)) / 2), Made(rf"\left|\frac{{{p}}}{{-2}}\right|", lambda x, y: abs(f(x, y)) / 2),
         Made(rf"\frac{{{p}}}{{2}}", lambda x, y: f(x, y) / 2)),
        (Made(rf"\max({p},{q})", lambda x, y: max(f(x, y), g(x, y))),
         Made(rf"\frac{{{p}+{q}+|{p}-{q}|}}{{2}}", lambda x, y: max(f(x, y), g(x, y))), one_of),
        (Made(rf"\min({p},{q})", lambda x, y: min(f(x, y), g(x, y))),
         Made(rf"{p}-\max({p}-{q},0)", lambda x, y: min(f(x, y), g(x, y))), one_of),
        (Made(rf"|{p}||{q}|", lambda x, y: abs(f(x, y) * g(x, y))), Made(rf"\sqrt{{{p}^2{q}^2}}", lambda x, y: abs(f(x, y) * g(x, y))),
         Made(rf"({sign}){p}{q}", lambda x, y: sign * f(x, y) * g(x, y))),
    ])  # fmt: skip


def added(first: Made, second: Made, sign: int) -> Made:
    text = f"{first.text}+{second.text}" if sign > 0 else f"{first.text}-({second.text})"
    return Made(text, lambda x, y: first.value(x, y) + sign * second.value(x, y))


def same_everywhere(first: Made, second: Made, size: int) -> bool:
    """By brute force: on lines at every half of the unit of the constants, and far away."""
    near = [size * k / 2 for k in range(-90, 91)] + [size * k * 1.0 for k in (-3000, 3000)]
    lines = [size * k * 1.0 for k in (-1000, -37, -3, 11, 50)]
    grid = itertools.chain(itertools.product(near, lines), itertools.product(lines, near))
    return all(first.value(x, y) == second.value(x, y) for x, y in grid)


def test_generated_kinks_are_graded_as_brute_force_decides() -> None:
    rng = random.Random(0)
    rewritten, wrong, branches_equal = 0, 0, 0
    while wrong < 200:
        size, sign = rng.choice([1, 1, 10, 1000]), rng.choice([1, -1])
        (gold, form, branch), (other_gold, other_form, _) = kinked(rng, size), kinked(rng, size)
        whole = added(gold, other_gold, sign)
        assert right(added(form, other_form, sign).text, whole.text), whole.text
        pred = added(branch, other_form, sign) if wrong % 2 else added(form, branch, sign)
        same = same_everywhere(whole, pred, size)
        assert right(pred.text, whole.text) == same, (whole.text, pred.text)
        rewritten, wrong, branches_equal = rewritten + 1, wrong + (not same), branches_equal + same
    assert rewritten >= 200 and branches_equal < 10
