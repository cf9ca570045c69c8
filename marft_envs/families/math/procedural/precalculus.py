"""Precalculus: vectors and matrices; exact values of trigonometric functions."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import column, combination, frac, join, matrix, point, root_of, surd
from marft_envs.problems.dice import Dice

SUBJECT = "Precalculus"
Matrix = list[list[int]]


def _vector(dice: Dice, bound: int, size: int = 3) -> list[int]:
    return [dice.nonzero(-bound, bound) for _ in range(size)]


def _dot(v: Sequence[int], w: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(v, w, strict=True))


def _cross(v: Sequence[int], w: Sequence[int]) -> list[int]:
    return [v[1] * w[2] - v[2] * w[1], v[2] * w[0] - v[0] * w[2], v[0] * w[1] - v[1] * w[0]]


@cell("vectors", SUBJECT, 1)
def dot_product(dice: Dice) -> MathDraft:
    v, w = _vector(dice, 9), _vector(dice, 9)
    products = combination([a * b for a, b in zip(v, w, strict=True)], ["", "", ""])
    steps = f"Multiply entry by entry and add: ${products}={_dot(v, w)}$."
    return MathDraft(rf"Compute ${column(v)}\cdot {column(w)}$.", steps, str(_dot(v, w)))


@cell("vectors", SUBJECT, 2)
def cross_product(dice: Dice) -> MathDraft:
    v, w = _vector(dice, 9), _vector(dice, 9)
    c = _cross(v, w)
    steps = (
        rf"The entries are ${v[1]}\cdot {w[2]}-{v[2]}\cdot {w[1]}={c[0]}$, "
        rf"${v[2]}\cdot {w[0]}-{v[0]}\cdot {w[2]}={c[1]}$ and ${v[0]}\cdot {w[1]}-{v[1]}\cdot {w[0]}={c[2]}$."
    ).replace("--", "+")
    return MathDraft(rf"Compute ${column(v)}\times {column(w)}$.", steps, column(c))


@cell("vectors", SUBJECT, 3)
def projection(dice: Dice) -> MathDraft:
    v, w = _vector(dice, 9, 2), _vector(dice, 9, 2)
    factor = Fraction(_dot(v, w), _dot(w, w))
    steps = rf"The projection is $\frac{{{_dot(v, w)}}}{{{_dot(w, w)}}}{column(w)}$."
    text = f"Find the projection of ${column(v)}$ onto ${column(w)}$."
    return MathDraft(text, steps, column([factor * x for x in w]))


@cell("vectors", SUBJECT, 4)
def parallelogram(dice: Dice) -> MathDraft:
    v, w = _vector(dice, 6), _vector(dice, 6)
    if _cross(v, w) == [0, 0, 0]:
        w = [w[0], w[1], -w[2]]  # no entry is zero, so this is no longer parallel
    c = _cross(v, w)
    steps = rf"The cross product is ${column(c)}$, and its length is $\sqrt{{{_dot(c, c)}}}$."
    text = (
        f"What is the area of the parallelogram spanned by ${column(v)}$ and ${column(w)}$, in simplest radical form?"
    )
    return MathDraft(text, steps, root_of(_dot(c, c)))


@cell("vectors", SUBJECT, 5)
def distance_to_plane(dice: Dice) -> MathDraft:
    n, p, d = _vector(dice, 6), [dice.integer(-9, 9) for _ in range(3)], dice.integer(-20, 20)
    if _dot(n, p) == d:
        d += 1
    value, norm = abs(_dot(n, p) - d), _dot(n, n)
    steps = rf"The distance is $\frac{{{value}}}{{\sqrt{{{norm}}}}}$."
    plane = combination(n, ["x", "y", "z"])
    text = f"What is the distance from ${point(*p)}$ to the plane ${plane}={d}$, in simplest radical form?"
    return MathDraft(text, steps, surd(Fraction(value, norm), norm))


def _matrix(dice: Dice, bound: int, size: int = 2) -> Matrix:
    return [[dice.integer(-bound, bound) for _ in range(size)] for _ in range(size)]


def _times(m: Matrix, n: Matrix) -> Matrix:
    return [[_dot(row, col) for col in zip(*n, strict=True)] for row in m]


def _determinant(m: Matrix) -> int:
    return m[0][0] * m[1][1] - m[0][1] * m[1][0]


@cell("matrices", SUBJECT, 1)
def determinant(dice: Dice) -> MathDraft:
    m = _matrix(dice, 12)
    steps = f"$({m[0][0]})({m[1][1]})-({m[0][1]})({m[1][0]})={_determinant(m)}$."
    return MathDraft(f"Compute the determinant of ${matrix(m)}$.", steps, str(_determinant(m)))


@cell("matrices", SUBJECT, 2)
def product(dice: Dice) -> MathDraft:
    m, n = _matrix(dice, 7), _matrix(dice, 7)
    steps = "Each entry is the product of a row of the first matrix and a column of the second."
    return MathDraft(f"Compute ${matrix(m)}{matrix(n)}$.", steps, matrix(_times(m, n)))


@cell("matrices", SUBJECT, 3)
def inverse(dice: Dice) -> MathDraft:
    m = _matrix(dice, 7)
    if _determinant(m) == 0:
        m = [[1, m[0][1]], [m[1][0], m[0][1] * m[1][0] + 2]]  # determinant 2
    det = _determinant(m)
    (a, b), (c, d) = m
    rows = [[Fraction(d, det), Fraction(-b, det)], [Fraction(-c, det), Fraction(a, det)]]
    steps = f"The determinant is ${det}$, so the inverse is ${frac(Fraction(1, det))}{matrix([[d, -b], [-c, a]])}$."
    return MathDraft(f"Find the inverse of ${matrix(m)}$.", steps, matrix(rows))


@cell("matrices", SUBJECT, 4)
def determinant_3(dice: Dice) -> MathDraft:
    m = _matrix(dice, 5, 3)
    value = _dot(m[0], _cross(m[1], m[2]))
    cofactors = ", ".join(map(str, _cross(m[1], m[2])))
    steps = f"Expanding along the first row, with the cofactors ${cofactors}$, gives ${value}$."
    return MathDraft(f"Compute the determinant of ${matrix(m)}$.", steps, str(value))


@cell("matrices", SUBJECT, 5)
def matrix_power(dice: Dice) -> MathDraft:
    m, n = _matrix(dice, 3), dice.integer(3, 5)
    powers = [m]
    while len(powers) < n:
        powers.append(_times(powers[-1], m))
    steps = "The powers are " + ", ".join(f"${matrix(p)}$" for p in powers) + "."
    return MathDraft(f"Compute ${matrix(m)}^{n}$.", steps, matrix(powers[-1]))


# Trigonometry -----------------------------------------------------------------------------------------

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
