"""Precalculus: vectors and matrices."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import column, combination, frac, matrix, point, root_of, surd
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
