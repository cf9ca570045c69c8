"""Geometry: the coordinate plane, triangles, solids of revolution."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from fractions import Fraction

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import combination, frac, point, root_of, surd
from marft_envs.problems.dice import Dice

SUBJECT = "Geometry"
_RADICAL = "in simplest radical form"


def _point(dice: Dice, bound: int) -> tuple[int, int]:
    return dice.integer(-bound, bound), dice.integer(-bound, bound)


def _two_points(dice: Dice, bound: int) -> tuple[int, int, int, int]:
    """Two points that differ in both coordinates."""
    x1, x2 = dice.sample(range(-bound, bound + 1), 2)
    y1, y2 = dice.sample(range(-bound, bound + 1), 2)
    return x1, y1, x2, y2


@cell("coordinates", SUBJECT, 1)
def midpoint(dice: Dice) -> MathDraft:
    x1, y1, x2, y2 = _two_points(dice, 20)
    answer = point(Fraction(x1 + x2, 2), Fraction(y1 + y2, 2))
    steps = f"Average the coordinates: the sums are ${x1 + x2}$ and ${y1 + y2}$."
    text = f"Find the midpoint of the segment from ${point(x1, y1)}$ to ${point(x2, y2)}$."
    return MathDraft(text, steps, answer)


@cell("coordinates", SUBJECT, 2)
def distance(dice: Dice) -> MathDraft:
    x1, y1, x2, y2 = _two_points(dice, 15)
    square = (x1 - x2) ** 2 + (y1 - y2) ** 2
    steps = rf"The distance is $\sqrt{{{(x1 - x2) ** 2}+{(y1 - y2) ** 2}}}=\sqrt{{{square}}}$."
    text = f"What is the distance between ${point(x1, y1)}$ and ${point(x2, y2)}$, {_RADICAL}?"
    return MathDraft(text, steps, root_of(square))


@cell("coordinates", SUBJECT, 3)
def area(dice: Dice) -> MathDraft:
    x1, y1, x2, y2 = _two_points(dice, 12)
    x3, y3 = _point(dice, 12)
    twice = (x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)
    if twice == 0:
        x3 += 1  # y1 != y2, so this leaves the line
        twice = (x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)
    steps = f"The shoelace formula gives twice the area: ${abs(twice)}$."
    text = f"What is the area of the triangle with vertices ${point(x1, y1)}$, ${point(x2, y2)}$ and ${point(x3, y3)}$?"
    return MathDraft(text, steps, frac(Fraction(abs(twice), 2)))


def _line_and_point(dice: Dice) -> tuple[int, int, int, int, int, int]:
    """A line ax + by = c, a point off it, and ax + by - c at the point."""
    a, b, c = dice.nonzero(-9, 9), dice.nonzero(-9, 9), dice.integer(-20, 20)
    x, y = _point(dice, 12)
    value = a * x + b * y - c
    return (a, b, c, x, y, value) if value else (a, b, c + 1, x, y, -1)


@cell("coordinates", SUBJECT, 4)
def distance_to_line(dice: Dice) -> MathDraft:
    a, b, c, x, y, value = _line_and_point(dice)
    norm = a * a + b * b
    steps = rf"The distance is $\frac{{|{value}|}}{{\sqrt{{{norm}}}}}$."
    line = combination([a, b], ["x", "y"])
    text = f"What is the distance from ${point(x, y)}$ to the line ${line}={c}$, {_RADICAL}?"
    return MathDraft(text, steps, surd(Fraction(abs(value), norm), norm))


@cell("coordinates", SUBJECT, 5)
def reflection(dice: Dice) -> MathDraft:
    a, b, c, x, y, value = _line_and_point(dice)
    shift = Fraction(2 * value, a * a + b * b)
    answer = point(x - shift * a, y - shift * b)
    steps = f"The mirror image is ${point(x, y)}-\\left({frac(shift)}\\right)\\cdot {point(a, b)}$."
    line = combination([a, b], ["x", "y"])
    text = f"The point ${point(x, y)}$ is reflected across the line ${line}={c}$. Find its image."
    return MathDraft(text, steps, answer)


def _triangle(dice: Dice, low: int, high: int) -> tuple[int, int, int]:
    """Integer sides of a non-degenerate triangle."""
    a, b = dice.integer(low, high), dice.integer(low, high)
    return a, b, dice.integer(abs(a - b) + 1, a + b - 1)


def _sixteen_squared_areas(a: int, b: int, c: int) -> int:
    """16 times the square of the area (Heron)."""
    return (a + b + c) * (-a + b + c) * (a - b + c) * (a + b - c)


@cell("triangles", SUBJECT, 1)
def hypotenuse(dice: Dice) -> MathDraft:
    a, b = dice.integer(2, 40), dice.integer(2, 40)
    steps = rf"By the Pythagorean theorem it is $\sqrt{{{a * a}+{b * b}}}=\sqrt{{{a * a + b * b}}}$."
    text = f"A right triangle has legs of lengths ${a}$ and ${b}$. How long is its hypotenuse, {_RADICAL}?"
    return MathDraft(text, steps, root_of(a * a + b * b))


@cell("triangles", SUBJECT, 2)
def leg(dice: Dice) -> MathDraft:
    c = dice.integer(5, 50)
    a = dice.integer(2, c - 1)
    steps = rf"By the Pythagorean theorem it is $\sqrt{{{c * c}-{a * a}}}=\sqrt{{{c * c - a * a}}}$."
    text = (
        f"A right triangle has a hypotenuse of length ${c}$ and a leg of length ${a}$. "
        f"How long is the other leg, {_RADICAL}?"
    )
    return MathDraft(text, steps, root_of(c * c - a * a))


@cell("triangles", SUBJECT, 3)
def heron(dice: Dice) -> MathDraft:
    a, b, c = _triangle(dice, 3, 20)
    square = _sixteen_squared_areas(a, b, c)
    steps = rf"By Heron's formula the area is $\frac{{1}}{{4}}\sqrt{{{square}}}$."
    text = f"What is the area of a triangle with sides ${a}$, ${b}$ and ${c}$, {_RADICAL}?"
    return MathDraft(text, steps, surd(Fraction(1, 4), square))


@cell("triangles", SUBJECT, 4)
def median(dice: Dice) -> MathDraft:
    a, b, c = _triangle(dice, 3, 20)
    square = 2 * b * b + 2 * c * c - a * a
    steps = (
        rf"By Apollonius' theorem its square is $\frac{{2\cdot {b}^2+2\cdot {c}^2-{a}^2}}{{4}}=\frac{{{square}}}{{4}}$."
    )
    text = f"In triangle $ABC$, $BC={a}$, $CA={b}$ and $AB={c}$. How long is the median from $A$, {_RADICAL}?"
    return MathDraft(text, steps, surd(Fraction(1, 2), square))


@cell("triangles", SUBJECT, 5)
def circumradius(dice: Dice) -> MathDraft:
    a, b, c = _triangle(dice, 3, 16)
    square = _sixteen_squared_areas(a, b, c)
    radius = rf"\frac{{abc}}{{4K}}=\frac{{{a * b * c}}}{{\sqrt{{{square}}}}}"
    steps = rf"The area $K$ has $4K=\sqrt{{{square}}}$, and the radius is ${radius}$."
    text = f"What is the circumradius of a triangle with sides ${a}$, ${b}$ and ${c}$, {_RADICAL}?"
    return MathDraft(text, steps, surd(Fraction(a * b * c, square), square))


def _pi(value: Fraction | int) -> str:
    r"""A positive multiple of pi: ``\frac{9\pi}{2}``."""
    p, q = Fraction(value).numerator, Fraction(value).denominator
    top = rf"{p if p != 1 else ''}\pi"
    return top if q == 1 else rf"\frac{{{top}}}{{{q}}}"


_PI = r"Express your answer in terms of $\pi$."


@cell("solids", SUBJECT, 1)
def cylinder(dice: Dice) -> MathDraft:
    r, h = dice.integer(2, 30), dice.integer(2, 30)
    steps = rf"The volume is $\pi\cdot {r}^2\cdot {h}$."
    text = f"What is the volume of a cylinder with base radius ${r}$ and height ${h}$? {_PI}"
    return MathDraft(text, steps, _pi(r * r * h))


@cell("solids", SUBJECT, 2)
def cone(dice: Dice) -> MathDraft:
    r, h = dice.integer(1, 30), dice.integer(1, 30)
    steps = rf"The volume is $\frac{{1}}{{3}}\pi\cdot {r}^2\cdot {h}$."
    text = f"What is the volume of a cone with base radius ${r}$ and height ${h}$? {_PI}"
    return MathDraft(text, steps, _pi(Fraction(r * r * h, 3)))


@cell("solids", SUBJECT, 3)
def cylinder_with_dome(dice: Dice) -> MathDraft:
    r, h = dice.integer(1, 25), dice.integer(1, 40)
    value = r * r * h + Fraction(2 * r**3, 3)
    steps = rf"The cylinder has volume ${_pi(r * r * h)}$ and the half-ball ${_pi(Fraction(2 * r**3, 3))}$."
    text = (
        f"A silo is a cylinder of radius ${r}$ and height ${h}$ with a half-ball of the same radius on top. "
        f"What is its volume? {_PI}"
    )
    return MathDraft(text, steps, _pi(value))


@cell("solids", SUBJECT, 4)
def frustum(dice: Dice) -> MathDraft:
    small, more, h = dice.integer(1, 12), dice.integer(1, 12), dice.integer(1, 24)
    big = small + more
    value = Fraction(h * (big * big + big * small + small * small), 3)
    steps = rf"The volume is $\frac{{\pi\cdot {h}}}{{3}}\left({big}^2+{big}\cdot {small}+{small}^2\right)$."
    text = f"A frustum of a cone has height ${h}$ and radii ${big}$ and ${small}$. What is its volume? {_PI}"
    return MathDraft(text, steps, _pi(value))


@cell("solids", SUBJECT, 5)
def spherical_cap(dice: Dice) -> MathDraft:
    r = dice.integer(3, 40)
    h = dice.integer(1, 2 * r - 1)
    value = Fraction(h * h * (3 * r - h), 3)
    steps = rf"The volume is $\frac{{\pi\cdot {h}^2}}{{3}}\left(3\cdot {r}-{h}\right)$."
    text = f"A plane cuts a cap of height ${h}$ off a ball of radius ${r}$. What is the volume of the cap? {_PI}"
    return MathDraft(text, steps, _pi(value))
