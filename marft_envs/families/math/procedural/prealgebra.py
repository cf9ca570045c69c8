"""Prealgebra: order of operations, fractions, percentages."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from fractions import Fraction

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.families.math.procedural.latex import signed
from marft_envs.problems.dice import Dice

GOODS = ("a jacket", "a lamp", "a bicycle", "a desk", "a camera", "a guitar", "a suitcase", "a tent")


@variant("arithmetic", 1)
def sum_and_product(dice: Dice) -> Values:
    a, b, c = dice.integer(1, 99), dice.integer(2, 12), dice.integer(2, 12)
    return dict(a=a, b=b, c=c, product=b * c, answer=a + b * c)


@variant("arithmetic", 2)
def difference_of_products(dice: Dice) -> Values:
    a, b, c, d = (dice.integer(2, 15) for _ in range(4))
    return dict(a=a, b=b, c=c, d=d, first=a * b, second=c * d, answer=a * b - c * d)


@variant("arithmetic", 3)
def bracket_and_products(dice: Dice) -> Values:
    a, b, c, d, e = (dice.integer(2, 20) for _ in range(5))
    first, second = (a + b) * c, d * e
    return dict(a=a, b=b, c=c, d=d, e=e, bracket=a + b, first=first, second=second, answer=first - second)


@variant("arithmetic", 4)
def square_and_bracket(dice: Dice) -> Values:
    a, b, c, d = dice.integer(3, 20), dice.integer(2, 15), dice.integer(2, 30), dice.integer(2, 30)
    product = b * (c - d)
    return dict(a=a, b=b, c=c, d=d, square=a**2, bracket=c - d, product=product, answer=a**2 - product)


@variant("arithmetic", 5)
def quotient_square_bracket(dice: Dice) -> Values:
    a, b, d, q = (dice.integer(2, 12) for _ in range(4))
    e, f, g = dice.integer(2, 9), dice.integer(1, 20), dice.integer(1, 20)
    c = q * d - a * b or d
    numerator, square, product = a * b + c, e**2, e**2 * (f - g)
    known: Values = dict(numerator=numerator, quotient=numerator // d, square=square, bracket=f - g, product=product)
    return dict(a=a, b=b, c=signed(c), d=d, e=e, f=f, g=g, answer=numerator // d - product, **known)


def _proper(dice: Dice) -> tuple[int, int]:
    """Numerator and denominator as printed; not necessarily reduced."""
    denominator = dice.integer(3, 15)
    return dice.integer(1, denominator - 1), denominator


@variant("fractions", 1)
def same_denominator(dice: Dice) -> Values:
    d = dice.integer(7, 40)
    a, b = dice.integer(1, d - 1), dice.integer(1, d - 1)
    return dict(a=a, b=b, d=d, sum=a + b, answer=Fraction(a + b, d))


@variant("fractions", 2)
def two_denominators(dice: Dice) -> Values:
    (a, b), (c, d) = _proper(dice), _proper(dice)
    sign = dice.choice("+-")
    value = Fraction(a, b) + (1 if sign == "+" else -1) * Fraction(c, d)
    return dict(a=a, b=b, c=c, d=d, sign=sign, left=a * d, right=c * b, common=b * d, answer=value)


@variant("fractions", 3)
def product_and_sum(dice: Dice) -> Values:
    (a, b), (c, d), (e, f) = _proper(dice), _proper(dice), _proper(dice)
    product, third = Fraction(a, b) * Fraction(c, d), Fraction(e, f)
    return dict(a=a, b=b, c=c, d=d, e=e, f=f, product=product, third=third, answer=product + third)


@variant("fractions", 4)
def quotient_of_difference(dice: Dice) -> Values:
    (a, b), (c, d), (e, f) = _proper(dice), _proper(dice), _proper(dice)
    if c * f == e * d:
        c, d = c + d, d  # improper, hence different from the proper e/f
    inner = Fraction(c, d) - Fraction(e, f)
    return dict(a=a, b=b, c=c, d=d, e=e, f=f, inner=inner, inverse=1 / inner, answer=Fraction(a, b) / inner)


@variant("fractions", 5)
def continued_fraction(dice: Dice) -> Values:
    a, b, c, d, e = (dice.integer(1, 9) for _ in range(5))
    e += 1
    inner = c + Fraction(d, e)
    return dict(a=a, b=b, c=c, d=d, e=e, inner=inner, fraction=b / inner, answer=a - b / inner)


@variant("percent", 1)
def percent_of(dice: Dice) -> Values:
    p, n = 5 * dice.integer(1, 19), 20 * dice.integer(1, 100)
    return dict(p=p, n=n, answer=p * n // 100)


@variant("percent", 2)
def discount(dice: Dice) -> Values:
    p, n, what = 5 * dice.integer(1, 15), 20 * dice.integer(1, 60), dice.choice(GOODS)
    return dict(p=p, n=n, what=what, left=100 - p, answer=n * (100 - p) // 100)


@variant("percent", 3)
def two_discounts(dice: Dice) -> Values:
    p, q, n, what = 5 * dice.integer(1, 12), 5 * dice.integer(1, 12), 400 * dice.integer(1, 12), dice.choice(GOODS)
    first = n * (100 - p) // 100
    return dict(p=p, q=q, n=n, what=what, first=first, left=100 - q, answer=first * (100 - q) // 100)


@variant("percent", 4)
def before_the_rise(dice: Dice) -> Values:
    p, n, what = 5 * dice.integer(1, 30), 20 * dice.integer(1, 60), dice.choice(GOODS)
    return dict(p=p, what=what, risen=100 + p, now=n * (100 + p) // 100, answer=n)


@variant("percent", 5)
def before_rise_and_fall(dice: Dice) -> Values:
    p, q, n, what = 5 * dice.integer(1, 20), 5 * dice.integer(1, 15), 400 * dice.integer(1, 30), dice.choice(GOODS)
    raised = n * (100 + p) // 100
    now = raised * (100 - q) // 100
    return dict(p=p, q=q, what=what, risen=100 + p, left=100 - q, raised=raised, now=now, answer=n)
