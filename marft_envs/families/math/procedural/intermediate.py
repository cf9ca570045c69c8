"""Intermediate Algebra: symmetric functions of roots, polynomial remainders, complex numbers."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from fractions import Fraction

from numpy import polyval

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import (
    combination,
    complex_number,
    frac,
    polynomial,
    power,
    root_of,
    signed,
)
from marft_envs.problems.dice import Dice

SUBJECT = "Intermediate Algebra"


def _roots_of(polynomial_text: str, names: str, wanted: str) -> str:
    shown = names.replace(", ", "$, $").replace(" and ", "$ and $")
    return f"Let ${shown}$ be the complex roots of ${polynomial_text}$. Find ${wanted}$."


@cell("vieta", SUBJECT, 1)
def sum_of_roots(dice: Dice) -> MathDraft:
    a, b, c = dice.integer(2, 12), dice.nonzero(-30, 30), dice.nonzero(-30, 30)
    value = Fraction(-b, a)
    steps = rf"By Vieta's formulas $r+s=-\frac{{{b}}}{{{a}}}={frac(value)}$."
    return MathDraft(_roots_of(polynomial([a, b, c]), "r and s", "r+s"), steps, frac(value))


@cell("vieta", SUBJECT, 2)
def sum_of_squares(dice: Dice) -> MathDraft:
    b, c = dice.nonzero(-20, 20), dice.nonzero(-30, 30)
    return _squares("r and s", "r^2+s^2", "(r+s)^2-2rs", b, c)


@cell("vieta", SUBJECT, 3)
def cubic_squares(dice: Dice) -> MathDraft:
    b, c, d = dice.nonzero(-15, 15), dice.nonzero(-20, 20), dice.nonzero(-20, 20)
    return _squares("r, s and t", "r^2+s^2+t^2", "(r+s+t)^2-2(rs+st+tr)", b, c, d)


def _squares(roots: str, wanted: str, formula: str, b: int, c: int, *rest: int) -> MathDraft:
    value = b * b - 2 * c
    steps = f"${wanted}={formula}=({-b})^2-2\\cdot({c})={value}$."
    return MathDraft(_roots_of(polynomial([1, b, c, *rest]), roots, wanted), steps, str(value))


@cell("vieta", SUBJECT, 4)
def cubic_reciprocals(dice: Dice) -> MathDraft:
    b, c, d = dice.nonzero(-20, 20), dice.nonzero(-30, 30), dice.nonzero(-30, 30)
    value = Fraction(-c, d)
    steps = rf"The sum is $\frac{{rs+st+tr}}{{rst}}=\frac{{{c}}}{{{-d}}}={frac(value)}$."
    wanted = r"\frac{1}{r}+\frac{1}{s}+\frac{1}{t}"
    return MathDraft(_roots_of(polynomial([1, b, c, d]), "r, s and t", wanted), steps, frac(value))


@cell("vieta", SUBJECT, 5)
def cubic_cubes(dice: Dice) -> MathDraft:
    b, c, d = dice.nonzero(-9, 9), dice.nonzero(-12, 12), dice.nonzero(-20, 20)
    squares = b * b - 2 * c
    value = -b * squares - c * -b - 3 * d
    steps = (
        f"Each root satisfies $x^3={polynomial([-b, -c, -d])}$. Here $r+s+t={-b}$ and $r^2+s^2+t^2={squares}$, "
        f"so the sum is $({-b})\\cdot{squares}+({-c})\\cdot({-b})+3\\cdot({-d})={value}$."
    )
    return MathDraft(_roots_of(polynomial([1, b, c, d]), "r, s and t", "r^3+s^3+t^3"), steps, str(value))


def _remainder_text(dividend: str, divisor: str) -> str:
    return f"What is the remainder when ${dividend}$ is divided by ${divisor}$?"


def _by_linear(coefficients: list[int], a: int) -> MathDraft:
    value = int(polyval(coefficients, a))
    steps = f"By the remainder theorem it is the value at $x={a}$, which is ${value}$."
    return MathDraft(_remainder_text(polynomial(coefficients), f"x{signed(-a)}"), steps, str(value))


@cell("polynomial_remainder", SUBJECT, 1)
def quadratic_by_linear(dice: Dice) -> MathDraft:
    return _by_linear([dice.integer(1, 9), dice.nonzero(-15, 15), dice.nonzero(-20, 20)], dice.nonzero(-9, 9))


@cell("polynomial_remainder", SUBJECT, 2)
def cubic_by_linear(dice: Dice) -> MathDraft:
    p = [dice.integer(1, 6), dice.integer(-9, 9), dice.nonzero(-12, 12), dice.nonzero(-20, 20)]
    return _by_linear(p, dice.nonzero(-6, 6))


@cell("polynomial_remainder", SUBJECT, 3)
def cubic_by_square(dice: Dice) -> MathDraft:
    a, b, c, d = dice.integer(1, 6), dice.nonzero(-9, 9), dice.nonzero(-12, 12), dice.nonzero(-20, 20)
    k = dice.nonzero(-9, 9)
    answer = polynomial([c - a * k, d - b * k])
    replaced = combination([-k * a, -k * b, c, d], ["x", "", "x", ""])
    steps = f"Replacing $x^2$ by ${-k}$ turns it into ${replaced}={answer}$."
    return MathDraft(_remainder_text(polynomial([a, b, c, d]), polynomial([1, 0, k])), steps, answer)


def _line_through(a: int, at_a: int, b: int, at_b: int) -> tuple[str, str]:
    """Remainder modulo (x - a)(x - b) of a polynomial with these values; steps and answer."""
    slope = (at_a - at_b) // (a - b)
    answer = polynomial([slope, at_a - slope * a])
    steps = (
        f"The remainder is linear. The divisor has the roots ${a}$ and ${b}$, where the polynomial has the values "
        f"${at_a}$ and ${at_b}$. The line through these points is ${answer}$."
    )
    return steps, answer


@cell("polynomial_remainder", SUBJECT, 4)
def quartic_by_quadratic(dice: Dice) -> MathDraft:
    p = [1, *(dice.integer(-6, 6) for _ in range(3)), dice.nonzero(-12, 12)]
    a, b = dice.sample(range(-4, 5), 2)
    steps, answer = _line_through(a, int(polyval(p, a)), b, int(polyval(p, b)))
    return MathDraft(_remainder_text(polynomial(p), polynomial([1, -a - b, a * b])), steps, answer)


@cell("polynomial_remainder", SUBJECT, 5)
def high_power_by_quadratic(dice: Dice) -> MathDraft:
    n, k, c = dice.integer(5, 12), dice.nonzero(-20, 20), dice.nonzero(-20, 20)
    a, b = dice.sample(range(-3, 4), 2)
    steps, answer = _line_through(a, a**n + k * a + c, b, b**n + k * b + c)
    dividend = combination([1, k, c], [power("x", n), "x", ""])
    return MathDraft(_remainder_text(dividend, polynomial([1, -a - b, a * b])), steps, answer)


def _gaussian(dice: Dice, bound: int) -> tuple[int, int]:
    return dice.nonzero(-bound, bound), dice.nonzero(-bound, bound)


def _times(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    return a * c - b * d, a * d + b * c


_FORM = "Express your answer in the form $a+bi$."


@cell("complex_numbers", SUBJECT, 1)
def complex_difference(dice: Dice) -> MathDraft:
    (a, b), (c, d) = _gaussian(dice, 20), _gaussian(dice, 20)
    answer = complex_number(a - c, b - d)
    steps = f"The real parts give ${a - c}$, the imaginary parts ${b - d}$."
    return MathDraft(f"Compute $({complex_number(a, b)})-({complex_number(c, d)})$. {_FORM}", steps, answer)


@cell("complex_numbers", SUBJECT, 2)
def complex_product(dice: Dice) -> MathDraft:
    (a, b), (c, d) = _gaussian(dice, 9), _gaussian(dice, 9)
    answer = complex_number(*_times(a, b, c, d))
    expanded = combination([a * c, a * d, b * c, -b * d], ["", "i", "i", ""])
    steps = f"Expanding, with $i^2=-1$, gives ${expanded}={answer}$."
    return MathDraft(f"Compute $({complex_number(a, b)})({complex_number(c, d)})$. {_FORM}", steps, answer)


@cell("complex_numbers", SUBJECT, 3)
def complex_quotient(dice: Dice) -> MathDraft:
    (a, b), (c, d) = _gaussian(dice, 9), _gaussian(dice, 6)
    norm = c * c + d * d
    real, imaginary = _times(a, b, c, -d)
    answer = complex_number(Fraction(real, norm), Fraction(imaginary, norm))
    steps = (
        f"Multiplying both by ${complex_number(c, -d)}$ gives "
        f"$\\frac{{{complex_number(real, imaginary)}}}{{{norm}}}={answer}$."
    )
    text = rf"Compute $\frac{{{complex_number(a, b)}}}{{{complex_number(c, d)}}}$. {_FORM}"
    return MathDraft(text, steps, answer)


@cell("complex_numbers", SUBJECT, 4)
def modulus_of_product(dice: Dice) -> MathDraft:
    (a, b), (c, d) = _gaussian(dice, 9), _gaussian(dice, 9)
    p, q = a * a + b * b, c * c + d * d
    answer = root_of(p * q)
    steps = rf"The modulus is multiplicative: $\sqrt{{{p}}}\cdot\sqrt{{{q}}}={answer}$."
    text = f"Compute $|({complex_number(a, b)})({complex_number(c, d)})|$ in simplest radical form."
    return MathDraft(text, steps, answer)


@cell("complex_numbers", SUBJECT, 5)
def complex_power(dice: Dice) -> MathDraft:
    (a, b), n = _gaussian(dice, 9), dice.integer(3, 5)
    powers = [(a, b)]
    while len(powers) < n:
        powers.append(_times(*powers[-1], a, b))
    answer = complex_number(*powers[-1])
    steps = "The powers are " + ", ".join(f"${complex_number(*p)}$" for p in powers) + "."
    return MathDraft(f"Compute $({complex_number(a, b)})^{n}$. {_FORM}", steps, answer)
