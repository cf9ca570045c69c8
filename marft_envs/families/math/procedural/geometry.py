"""Geometry: the coordinate plane, triangles, solids of revolution."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from fractions import Fraction

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.families.math.procedural.latex import combination, point, root_of, surd
from marft_envs.problems.dice import Dice


def _point(dice: Dice, bound: int) -> tuple[int, int]:
    return dice.integer(-bound, bound), dice.integer(-bound, bound)


def _two_points(dice: Dice, bound: int) -> tuple[int, int, int, int]:
    """Two points that differ in both coordinates."""
    x1, x2 = dice.sample(range(-bound, bound + 1), 2)
    y1, y2 = dice.sample(range(-bound, bound + 1), 2)
    return x1, y1, x2, y2


@variant("coordinates", 1)
def midpoint(dice: Dice) -> Values:
    x1, y1, x2, y2 = _two_points(dice, 20)
    x, y = x1 + x2, y1 + y2
    return dict(p=point(x1, y1), q=point(x2, y2), x=x, y=y, answer=point(Fraction(x, 2), Fraction(y, 2)))


@variant("coordinates", 2)
def distance(dice: Dice) -> Values:
    x1, y1, x2, y2 = _two_points(dice, 15)
    xx, yy = (x1 - x2) ** 2, (y1 - y2) ** 2
    return dict(p=point(x1, y1), q=point(x2, y2), xx=xx, yy=yy, square=xx + yy, answer=root_of(xx + yy))


@variant("coordinates", 3)
def area(dice: Dice) -> Values:
    x1, y1, x2, y2 = _two_points(dice, 12)
    x3, y3 = _point(dice, 12)
    twice = (x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)
    if twice == 0:
        x3 += 1  # y1 != y2, so this leaves the line
        twice = (x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1)
    p, q, r = point(x1, y1), point(x2, y2), point(x3, y3)
    return dict(p=p, q=q, r=r, twice=abs(twice), answer=Fraction(abs(twice), 2))


def _line_and_point(dice: Dice) -> tuple[int, int, int, int, int, int]:
    """A line ax + by = c, a point off it, and ax + by - c at the point."""
    a, b, c = dice.nonzero(-9, 9), dice.nonzero(-9, 9), dice.integer(-20, 20)
    x, y = _point(dice, 12)
    value = a * x + b * y - c
    return (a, b, c, x, y, value) if value else (a, b, c + 1, x, y, -1)


@variant("coordinates", 4)
def distance_to_line(dice: Dice) -> Values:
    a, b, c, x, y, value = _line_and_point(dice)
    norm, line = a * a + b * b, combination([a, b], ["x", "y"])
    away = surd(Fraction(abs(value), norm), norm)
    return dict(p=point(x, y), line=line, c=c, value=value, norm=norm, answer=away)


@variant("coordinates", 5)
def reflection(dice: Dice) -> Values:
    a, b, c, x, y, value = _line_and_point(dice)
    shift, line = Fraction(2 * value, a * a + b * b), combination([a, b], ["x", "y"])
    image = point(x - shift * a, y - shift * b)
    return dict(p=point(x, y), line=line, c=c, shift=shift, normal=point(a, b), answer=image)


def _triangle(dice: Dice, low: int, high: int) -> tuple[int, int, int]:
    """Integer sides of a non-degenerate triangle."""
    a, b = dice.integer(low, high), dice.integer(low, high)
    return a, b, dice.integer(abs(a - b) + 1, a + b - 1)


def _sixteen_squared_areas(a: int, b: int, c: int) -> int:
    """16 times the square of the area (Heron)."""
    return (a + b + c) * (-a + b + c) * (a - b + c) * (a + b - c)


@variant("triangles", 1)
def hypotenuse(dice: Dice) -> Values:
    a, b = dice.integer(2, 40), dice.integer(2, 40)
    square = a * a + b * b
    return dict(a=a, b=b, aa=a * a, bb=b * b, square=square, answer=root_of(square))


@variant("triangles", 2)
def leg(dice: Dice) -> Values:
    c = dice.integer(5, 50)
    a = dice.integer(2, c - 1)
    square = c * c - a * a
    return dict(c=c, a=a, cc=c * c, aa=a * a, square=square, answer=root_of(square))


@variant("triangles", 3)
def heron(dice: Dice) -> Values:
    a, b, c = _triangle(dice, 3, 20)
    square = _sixteen_squared_areas(a, b, c)
    return dict(a=a, b=b, c=c, square=square, answer=surd(Fraction(1, 4), square))


@variant("triangles", 4)
def median(dice: Dice) -> Values:
    a, b, c = _triangle(dice, 3, 20)
    square = 2 * b * b + 2 * c * c - a * a
    return dict(a=a, b=b, c=c, square=square, answer=surd(Fraction(1, 2), square))


@variant("triangles", 5)
def circumradius(dice: Dice) -> Values:
    a, b, c = _triangle(dice, 3, 16)
    square, product = _sixteen_squared_areas(a, b, c), a * b * c
    return dict(a=a, b=b, c=c, square=square, product=product, answer=surd(Fraction(product, square), square))


def _pi(value: Fraction | int) -> str:
    r"""A positive multiple of pi: ``\frac{9\pi}{2}``."""
    p, q = Fraction(value).numerator, Fraction(value).denominator
    top = rf"{p if p != 1 else ''}\pi"
    return top if q == 1 else rf"\frac{{{top}}}{{{q}}}"


@variant("solids", 1)
def cylinder(dice: Dice) -> Values:
    r, h = dice.integer(2, 30), dice.integer(2, 30)
    return dict(r=r, h=h, answer=_pi(r * r * h))


@variant("solids", 2)
def cone(dice: Dice) -> Values:
    r, h = dice.integer(1, 30), dice.integer(1, 30)
    return dict(r=r, h=h, answer=_pi(Fraction(r * r * h, 3)))


@variant("solids", 3)
def cylinder_with_dome(dice: Dice) -> Values:
    r, h = dice.integer(1, 25), dice.integer(1, 40)
    body, dome = r * r * h, Fraction(2 * r**3, 3)
    return dict(r=r, h=h, cylinder=_pi(body), dome=_pi(dome), answer=_pi(body + dome))


@variant("solids", 4)
def frustum(dice: Dice) -> Values:
    small, more, h = dice.integer(1, 12), dice.integer(1, 12), dice.integer(1, 24)
    big = small + more
    value = Fraction(h * (big * big + big * small + small * small), 3)
    return dict(small=small, big=big, h=h, answer=_pi(value))


@variant("solids", 5)
def spherical_cap(dice: Dice) -> Values:
    r = dice.integer(3, 40)
    h = dice.integer(1, 2 * r - 1)
    return dict(r=r, h=h, answer=_pi(Fraction(h * h * (3 * r - h), 3)))
