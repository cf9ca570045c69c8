"""Precalculus: vectors and matrices; exact values of trigonometric functions."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.families.math.procedural.latex import column, combination, frac, join, matrix, point, root_of, surd
from marft_envs.problems.dice import Dice

Matrix = list[list[int]]


def _vector(dice: Dice, bound: int, size: int = 3) -> list[int]:
    return [dice.nonzero(-bound, bound) for _ in range(size)]


def _dot(v: Sequence[int], w: Sequence[int]) -> int:
    return sum(a * b for a, b in zip(v, w, strict=True))


def _cross(v: Sequence[int], w: Sequence[int]) -> list[int]:
    return [v[1] * w[2] - v[2] * w[1], v[2] * w[0] - v[0] * w[2], v[0] * w[1] - v[1] * w[0]]


@variant("vectors", 1)
def dot_product(dice: Dice) -> Values:
    v, w = _vector(dice, 9), _vector(dice, 9)
    products = combination([a * b for a, b in zip(v, w, strict=True)], ["", "", ""])
    return dict(v=column(v), w=column(w), products=products, answer=_dot(v, w))


@variant("vectors", 2)
def cross_product(dice: Dice) -> Values:
    v, w = _vector(dice, 9), _vector(dice, 9)
    entries = [rf"{v[i]}\cdot {w[j]}-{v[j]}\cdot {w[i]}".replace("--", "+") for i, j in ((1, 2), (2, 0), (0, 1))]
    x, y, z = (f"{entry}={value}" for entry, value in zip(entries, _cross(v, w), strict=True))
    return dict(v=column(v), w=column(w), x=x, y=y, z=z, answer=column(_cross(v, w)))


@variant("vectors", 3)
def projection(dice: Dice) -> Values:
    v, w = _vector(dice, 9, 2), _vector(dice, 9, 2)
    product, square = _dot(v, w), _dot(w, w)
    answer = column([Fraction(product, square) * x for x in w])
    return dict(v=column(v), w=column(w), product=product, square=square, answer=answer)


@variant("vectors", 4)
def parallelogram(dice: Dice) -> Values:
    v, w = _vector(dice, 6), _vector(dice, 6)
    if _cross(v, w) == [0, 0, 0]:
        w = [w[0], w[1], -w[2]]  # no entry is zero, so this is no longer parallel
    c = _cross(v, w)
    return dict(v=column(v), w=column(w), product=column(c), square=_dot(c, c), answer=root_of(_dot(c, c)))


@variant("vectors", 5)
def distance_to_plane(dice: Dice) -> Values:
    n, p, d = _vector(dice, 6), [dice.integer(-9, 9) for _ in range(3)], dice.integer(-20, 20)
    if _dot(n, p) == d:
        d += 1
    value, norm = abs(_dot(n, p) - d), _dot(n, n)
    away = surd(Fraction(value, norm), norm)
    return dict(p=point(*p), plane=combination(n, ["x", "y", "z"]), d=d, value=value, norm=norm, answer=away)


def _matrix(dice: Dice, bound: int, size: int = 2) -> Matrix:
    return [[dice.integer(-bound, bound) for _ in range(size)] for _ in range(size)]


def _times(m: Matrix, n: Matrix) -> Matrix:
    return [[_dot(row, col) for col in zip(*n, strict=True)] for row in m]


def _determinant(m: Matrix) -> int:
    return m[0][0] * m[1][1] - m[0][1] * m[1][0]


@variant("matrices", 1)
def determinant(dice: Dice) -> Values:
    m = _matrix(dice, 12)
    (a, b), (c, d) = m
    return dict(m=matrix(m), a=a, b=b, c=c, d=d, answer=_determinant(m))


@variant("matrices", 2)
def product(dice: Dice) -> Values:
    m, n = _matrix(dice, 7), _matrix(dice, 7)
    return dict(m=matrix(m), n=matrix(n), answer=matrix(_times(m, n)))


@variant("matrices", 3)
def inverse(dice: Dice) -> Values:
    m = _matrix(dice, 7)
    if _determinant(m) == 0:
        m = [[1, m[0][1]], [m[1][0], m[0][1] * m[1][0] + 2]]  # determinant 2
    det = _determinant(m)
    (a, b), (c, d) = m
    adjugate = [[d, -b], [-c, a]]
    rows = [[Fraction(entry, det) for entry in row] for row in adjugate]
    return dict(m=matrix(m), det=det, factor=Fraction(1, det), adjugate=matrix(adjugate), answer=matrix(rows))


@variant("matrices", 4)
def determinant_3(dice: Dice) -> Values:
    m = _matrix(dice, 5, 3)
    cofactors = _cross(m[1], m[2])
    return dict(m=matrix(m), cofactors=", ".join(map(str, cofactors)), answer=_dot(m[0], cofactors))


@variant("matrices", 5)
def matrix_power(dice: Dice) -> Values:
    m, n = _matrix(dice, 3), dice.integer(3, 5)
    powers = [m]
    while len(powers) < n:
        powers.append(_times(powers[-1], m))
    return dict(m=matrix(m), n=n, powers=", ".join(f"${matrix(p)}$" for p in powers), answer=matrix(powers[-1]))


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


def _combination(factors: list[int], values: list[tuple[str, int]]) -> Values:
    """``a sin x + b cos y + ...`` at special angles, with its exact value."""
    shown = join(rf"{a}\{f} {d}^\circ" for a, (f, d) in zip(factors, values, strict=True))
    total: dict[int, Fraction] = {}
    known = []
    for a, (f, d) in zip(factors, values, strict=True):
        factor, radicand = _exact(f, d)
        known.append(rf"$\{f} {d}^\circ={surd(factor, radicand)}$")
        total[radicand] = total.get(radicand, Fraction(0)) + a * factor
    answer = join(surd(total[radicand], radicand) for radicand in sorted(total))
    return dict(sum=shown, known=", ".join(known), answer=answer)


@variant("trigonometry", 1)
def rational_values(dice: Dice) -> Values:
    return _combination([dice.integer(2, 25), dice.nonzero(-25, 25)], [dice.choice(RATIONAL), dice.choice(RATIONAL)])


@variant("trigonometry", 2)
def radical_values(dice: Dice) -> Values:
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


@variant("trigonometry", 3)
def other_function(dice: Dice) -> Values:
    function, sine, cosine, condition = _given(dice)
    values = {"sin": sine, "cos": cosine, "tan": sine / cosine}
    wanted = dice.choice([name for name in values if name != function])
    return dict(condition=condition, wanted=wanted, sine=sine, cosine=cosine, answer=values[wanted])


@variant("trigonometry", 4)
def addition_formula(dice: Dice) -> Values:
    (s, c), (t, d) = _angle(dice, 1), _angle(dice, 1)
    function, sign = dice.choice(["sin", "cos"]), dice.choice([1, -1])
    value = s * d + sign * c * t if function == "sin" else c * d - sign * s * t
    return dict(s=s, c=c, t=t, d=d, function=function, between="+" if sign == 1 else "-", answer=value)


@variant("trigonometry", 5)
def double_angle(dice: Dice) -> Values:
    _, sine, cosine, condition = _given(dice)
    double = {"sin": 2 * sine * cosine, "cos": cosine**2 - sine**2}
    double["tan"] = double["sin"] / double["cos"]
    wanted = dice.choice(list(double))
    known: Values = dict(sine=sine, cosine=cosine, double_sine=double["sin"], double_cosine=double["cos"])
    return dict(condition=condition, wanted=wanted, answer=double[wanted], **known)
