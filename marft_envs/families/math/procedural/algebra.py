"""Algebra: linear equations, linear systems, quadratics."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from fractions import Fraction
from math import lcm

from marft_envs.families.math.procedural import latex
from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.families.math.procedural.latex import combination, point, polynomial, signed, surd, term
from marft_envs.problems.dice import Dice


@variant("linear_equation", 1)
def one_side(dice: Dice) -> Values:
    a, b, x = dice.integer(2, 12), dice.nonzero(-30, 30), dice.integer(-20, 20)
    return dict(left=polynomial([a, b]), a=a, b=b, c=a * x + b, rest=a * x, answer=x)


@variant("linear_equation", 2)
def both_sides(dice: Dice) -> Values:
    a, b, x = dice.integer(2, 12), dice.nonzero(-30, 30), dice.integer(-20, 20)
    c = dice.choice([c for c in range(-9, 10) if c not in (0, a)])
    d = (a - c) * x + b
    return dict(left=polynomial([a, b]), right=polynomial([c, d]), term=term(a - c, "x"), rest=d - b, answer=x)


@variant("linear_equation", 3)
def brackets(dice: Dice) -> Values:
    a, b, d, x = dice.integer(2, 9), dice.nonzero(-12, 12), dice.nonzero(-12, 12), dice.integer(-20, 20)
    c = dice.choice([c for c in range(2, 10) if c != a])
    e = a * (x + b) - c * (x + d)
    known: Values = dict(expanded=polynomial([a - c, a * b - c * d]), term=term(a - c, "x"), rest=e - a * b + c * d)
    return dict(a=a, b=signed(b), c=c, d=signed(d), e=e, answer=x, **known)


@variant("linear_equation", 4)
def unit_fractions(dice: Dice) -> Values:
    a, b = dice.sample(range(2, 13), 2)
    common = lcm(a, b)
    x = common * dice.nonzero(-15, 15)
    c = x // a + x // b
    return dict(a=a, b=b, c=c, common=common, sum=common // a + common // b, rest=c * common, answer=x)


@variant("linear_equation", 5)
def two_fractions(dice: Dice) -> Values:
    a, b, c = dice.integer(1, 9), dice.nonzero(-12, 12), dice.integer(2, 9)
    e, f = dice.nonzero(-12, 12), dice.integer(2, 9)
    d = dice.choice([d for d in range(1, 10) if d * c != a * f])
    factor, rest = a * f - d * c, e * c - b * f
    sides: Values = dict(left=polynomial([a, b]), right=polynomial([d, e]))
    return dict(c=c, f=f, term=term(factor, "x"), rest=rest, answer=Fraction(rest, factor), **sides)


@variant("linear_system", 1)
def sum_and_difference(dice: Dice) -> Values:
    x, y = dice.integer(-30, 30), dice.integer(-30, 30)
    return dict(x=x, y=y, sum=x + y, difference=x - y, twice=2 * x, answer=point(x, y))


@variant("linear_system", 2)
def substitution(dice: Dice) -> Values:
    x, y, m = dice.integer(-12, 12), dice.integer(-12, 12), dice.nonzero(-6, 6)
    a = dice.integer(1, 9)
    b = dice.choice([b for b in range(-9, 10) if b != 0 and a + b * m != 0])
    k, c = y - m * x, a * x + b * y
    equations: Values = dict(line=polynomial([m, k]), second=combination([a, b], ["x", "y"]), c=c)
    return dict(x=x, y=y, term=term(a + b * m, "x"), rest=c - b * k, answer=point(x, y), **equations)


def _regular(dice: Dice, bound: int) -> tuple[int, int, int, int]:
    """Four non-zero coefficients a, b, c, d with ad - bc != 0."""
    a, b, c = (dice.nonzero(-bound, bound) for _ in range(3))
    d = dice.choice([d for d in range(-bound, bound + 1) if d != 0 and a * d != b * c])
    return a, b, c, d


def _eliminate(a: int, b: int, e: int, c: int, d: int, f: int) -> Values:
    """The system ax + by = e, cx + dy = f."""
    det, right_x, right_y = a * d - b * c, e * d - b * f, a * f - e * c
    x, y = Fraction(right_x, det), Fraction(right_y, det)
    equations: Values = dict(first=combination([a, b], ["x", "y"]), e=e, second=combination([c, d], ["x", "y"]), f=f)
    known: Values = dict(in_x=term(det, "x"), in_y=term(det, "y"), right_x=right_x, right_y=right_y)
    return dict(b=b, d=d, x=x, y=y, answer=point(x, y), **equations, **known)


@variant("linear_system", 3)
def elimination(dice: Dice) -> Values:
    a, b, c, d = _regular(dice, 9)
    x, y = dice.integer(-12, 12), dice.integer(-12, 12)
    return _eliminate(a, b, a * x + b * y, c, d, c * x + d * y)


@variant("linear_system", 4)
def rational_solution(dice: Dice) -> Values:
    a, b, c, d = _regular(dice, 7)
    return _eliminate(a, b, dice.integer(-15, 15), c, d, dice.integer(-15, 15))


@variant("linear_system", 5)
def three_unknowns(dice: Dice) -> Values:
    x, y, z = (dice.integer(-9, 9) for _ in range(3))
    a, b, c, d = _regular(dice, 5)
    p, q = dice.nonzero(-4, 4), dice.nonzero(-4, 4)
    rows = [(a, b, p), (c, d, q), (p, q, 1)]
    first, second, third = (f"{combination(k, ['x', 'y', 'z'])}={k[0] * x + k[1] * y + k[2] * z}" for k in rows)
    then = "Solving the third equation for $z$ and"
    if (a - p * p) * (d - q * q) == (b - p * q) * (c - q * p):  # eliminating z would leave a singular system
        third, then = f"z={z}", "The third equation gives $z$;"
    return dict(x=x, y=y, z=z, first=first, second=second, third=third, then=then, answer=point(x, y, z))


@variant("quadratic", 1)
def larger_root(dice: Dice) -> Values:
    r, s = dice.sample(range(-25, 26), 2)
    factors: Values = dict(first=polynomial([1, -r]), second=polynomial([1, -s]))
    return dict(polynomial=polynomial([1, -r - s, r * s]), r=r, s=s, answer=max(r, s), **factors)


@variant("quadratic", 2)
def both_roots(dice: Dice) -> Values:
    a = dice.integer(2, 6)
    r, s = sorted(dice.sample([n for n in range(-15, 16) if n], 2))
    left = polynomial([a, -a * (r + s), a * r * s])
    return dict(polynomial=left, a=a, first=signed(-r), second=signed(-s), answer=f"{r},{s}")


@variant("quadratic", 3)
def rational_root(dice: Dice) -> Values:
    p, r = dice.integer(2, 7), dice.integer(2, 7)
    q, s = dice.nonzero(-12, 12), dice.nonzero(-12, 12)
    one, other = Fraction(q, p), Fraction(s, r)
    factors: Values = dict(p=p, first=signed(-q), r=r, second=signed(-s))
    left = polynomial([p * r, -p * s - q * r, q * s])
    return dict(polynomial=left, one=one, other=other, answer=max(one, other), **factors)


@variant("quadratic", 4)
def irrational_root(dice: Dice) -> Values:
    b = dice.integer(-12, 12)
    squares = {n * n for n in range(40)}
    c = dice.choice([c for c in range(-40, 41) if b * b - 4 * c > 0 and b * b - 4 * c not in squares])
    k, m = latex.square_part(b * b - 4 * c)
    if b % 2 == 0:  # then the discriminant is a multiple of 4, so k is even
        pieces = [surd(Fraction(k, 2), m)] if b == 0 else [str(-b // 2), surd(Fraction(k, 2), m)]
        root = "+".join(pieces)
    else:
        root = rf"\frac{{{-b}+{surd(k, m)}}}{{2}}"
    return dict(polynomial=polynomial([1, b, c]), discriminant=b * b - 4 * c, minus=-b, answer=root)


@variant("quadratic", 5)
def vertex(dice: Dice) -> Values:
    a, b, c = dice.nonzero(-6, 6), dice.nonzero(-15, 15), dice.integer(-20, 20)
    h = Fraction(-b, 2 * a)
    k = a * h * h + b * h + c
    return dict(polynomial=polynomial([a, b, c]), h=h, k=k, answer=point(h, k))
