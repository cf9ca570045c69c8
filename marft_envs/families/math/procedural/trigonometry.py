"""Precalculus: exact values of trigonometric functions."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from fractions import Fraction

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import frac, join, surd
from marft_envs.problems.dice import Dice

SUBJECT = "Precalculus"
Surd = tuple[Fraction, int]
"""(factor, radicand)"""

TRIPLES = (
    (3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29), (12, 35, 37), (9, 40, 41), (28, 45, 53),
    (11, 60, 61), (33, 56, 65), (16, 63, 65), (48, 55, 73), (13, 84, 85), (36, 77, 85), (39, 80, 89), (65, 72, 97),
)  # fmt: skip
QUADRANTS = {
    1: (1, 1, r"0<x<\frac{\pi}{2}"),
    2: (1, -1, r"\frac{\pi}{2}<x<\pi"),
    3: (-1, -1, r"\pi<x<\frac{3\pi}{2}"),
    4: (-1, 1, r"\frac{3\pi}{2}<x<2\pi"),
}
"""Quadrant -> (sign of sine, sign of cosine, condition)."""


def _sine(degrees: int) -> Surd:
    """Exact sine of a multiple of 30 or 45 degrees."""
    degrees %= 360
    if degrees >= 180:
        factor, radicand = _sine(degrees - 180)
        return -factor, radicand
    half = Fraction(1, 2)
    return {0: (Fraction(0), 1), 30: (half, 1), 45: (half, 2), 60: (half, 3), 90: (Fraction(1), 1)}[
        min(degrees, 180 - degrees)
    ]


def _exact(function: str, degrees: int) -> Surd:
    return _sine(degrees if function == "sin" else degrees + 90)


ANGLES = sorted({*range(0, 360, 30), *range(45, 360, 90)})
ALL = [(f, d) for f in ("sin", "cos") for d in ANGLES if _exact(f, d)[0] != 0]
RATIONAL = [(f, d) for f, d in ALL if _exact(f, d)[1] == 1]
IRRATIONAL = [(f, d) for f, d in ALL if _exact(f, d)[1] != 1]


def _combination(factors: list[int], values: list[tuple[str, int]]) -> MathDraft:
    """``a sin x + b cos y + ...`` at special angles, with its exact value."""
    shown = join(rf"{a}\{f} {d}^\circ" for a, (f, d) in zip(factors, values, strict=True))
    total: dict[int, Fraction] = {}
    known = []
    for a, (f, d) in zip(factors, values, strict=True):
        factor, radicand = _exact(f, d)
        known.append(rf"$\{f} {d}^\circ={surd(factor, radicand)}$")
        total[radicand] = total.get(radicand, Fraction(0)) + a * factor
    answer = join(surd(total[radicand], radicand) for radicand in sorted(total))
    return MathDraft(f"Compute ${shown}$. Give an exact value.", ", ".join(known) + ".", answer)


@cell("trigonometry", SUBJECT, 1)
def rational_values(dice: Dice) -> MathDraft:
    return _combination([dice.integer(2, 25), dice.nonzero(-25, 25)], [dice.choice(RATIONAL), dice.choice(RATIONAL)])


@cell("trigonometry", SUBJECT, 2)
def radical_values(dice: Dice) -> MathDraft:
    return _combination([dice.integer(2, 12), dice.nonzero(-12, 12)], [dice.choice(IRRATIONAL), dice.choice(ALL)])


def _angle(dice: Dice, quadrant: int) -> tuple[Fraction, Fraction]:
    """Rational sine and cosine of an angle of the quadrant."""
    a, b, c = dice.choice(TRIPLES)
    if dice.below(2):
        a, b = b, a
    sine_sign, cosine_sign, _ = QUADRANTS[quadrant]
    return Fraction(sine_sign * a, c), Fraction(cosine_sign * b, c)


def _given(dice: Dice) -> tuple[str, Fraction, Fraction, str]:
    """One known value with its quadrant; returns function, sine, cosine and the text of the condition."""
    quadrant = dice.integer(1, 4)
    sine, cosine = _angle(dice, quadrant)
    function, value = dice.choice([("sin", sine), ("cos", cosine), ("tan", sine / cosine)])
    return function, sine, cosine, rf"$\{function} x={frac(value)}$ and ${QUADRANTS[quadrant][2]}$"


@cell("trigonometry", SUBJECT, 3)
def other_function(dice: Dice) -> MathDraft:
    function, sine, cosine, condition = _given(dice)
    values = {"sin": sine, "cos": cosine, "tan": sine / cosine}
    wanted = dice.choice([name for name in values if name != function])
    steps = rf"From $\sin^2 x+\cos^2 x=1$ and the quadrant, $\sin x={frac(sine)}$ and $\cos x={frac(cosine)}$."
    return MathDraft(rf"Suppose {condition}. Find $\{wanted} x$.", steps, frac(values[wanted]))


@cell("trigonometry", SUBJECT, 4)
def addition_formula(dice: Dice) -> MathDraft:
    (s, c), (t, d) = _angle(dice, 1), _angle(dice, 1)
    function, sign = dice.choice(["sin", "cos"]), dice.choice([1, -1])
    value = s * d + sign * c * t if function == "sin" else c * d - sign * s * t
    steps = (
        rf"Here $\cos x={frac(c)}$ and $\sin y={frac(t)}$. "
        rf"The addition formula gives ${frac(value)}$."
    )
    between = "+" if sign == 1 else "-"
    text = (
        rf"The angles $x$ and $y$ are acute, $\sin x={frac(s)}$ and $\cos y={frac(d)}$. "
        rf"Find $\{function}(x{between}y)$."
    )
    return MathDraft(text, steps, frac(value))


@cell("trigonometry", SUBJECT, 5)
def double_angle(dice: Dice) -> MathDraft:
    _, sine, cosine, condition = _given(dice)
    double = {"sin": 2 * sine * cosine, "cos": cosine**2 - sine**2}
    double["tan"] = double["sin"] / double["cos"]
    wanted = dice.choice(list(double))
    steps = (
        rf"By the quadrant, $\sin x={frac(sine)}$ and $\cos x={frac(cosine)}$, "
        rf"so $\sin 2x={frac(double['sin'])}$ and $\cos 2x={frac(double['cos'])}$."
    )
    return MathDraft(rf"Suppose {condition}. Find $\{wanted} 2x$.", steps, frac(double[wanted]))
