"""Algebra: linear equations, linear systems, quadratics."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from fractions import Fraction
from math import lcm

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import (
    combination,
    frac,
    point,
    polynomial,
    signed,
    square_part,
    surd,
    term,
)
from marft_envs.problems.dice import Dice

SUBJECT = "Algebra"


def _equation(left: str, right: str) -> str:
    return f"Solve for $x$: ${left}={right}$."


@cell("linear_equation", SUBJECT, 1)
def one_side(dice: Dice) -> MathDraft:
    a, b, x = dice.integer(2, 12), dice.nonzero(-30, 30), dice.integer(-20, 20)
    c = a * x + b
    steps = f"Subtracting ${b}$ gives ${a}x={c - b}$. Dividing by ${a}$ gives $x={x}$."
    return MathDraft(_equation(polynomial([a, b]), str(c)), steps, str(x))


@cell("linear_equation", SUBJECT, 2)
def both_sides(dice: Dice) -> MathDraft:
    a, b, x = dice.integer(2, 12), dice.nonzero(-30, 30), dice.integer(-20, 20)
    c = dice.choice([c for c in range(-9, 10) if c not in (0, a)])
    d = (a - c) * x + b
    steps = f"Collecting terms gives ${term(a - c, 'x')}={d - b}$, so $x={x}$."
    return MathDraft(_equation(polynomial([a, b]), polynomial([c, d])), steps, str(x))


@cell("linear_equation", SUBJECT, 3)
def brackets(dice: Dice) -> MathDraft:
    a, b, d, x = dice.integer(2, 9), dice.nonzero(-12, 12), dice.nonzero(-12, 12), dice.integer(-20, 20)
    c = dice.choice([c for c in range(2, 10) if c != a])
    e = a * (x + b) - c * (x + d)
    steps = (
        f"Expanding gives ${polynomial([a - c, a * b - c * d])}={e}$, "
        f"so ${term(a - c, 'x')}={e - a * b + c * d}$ and $x={x}$."
    )
    return MathDraft(_equation(f"{a}(x{signed(b)})-{c}(x{signed(d)})", str(e)), steps, str(x))


@cell("linear_equation", SUBJECT, 4)
def unit_fractions(dice: Dice) -> MathDraft:
    a, b = dice.sample(range(2, 13), 2)
    x = lcm(a, b) * dice.nonzero(-15, 15)
    c = x // a + x // b
    steps = f"Multiplying by ${lcm(a, b)}$ gives ${lcm(a, b) // a + lcm(a, b) // b}x={c * lcm(a, b)}$, so $x={x}$."
    return MathDraft(_equation(rf"\frac{{x}}{{{a}}}+\frac{{x}}{{{b}}}", str(c)), steps, str(x))


@cell("linear_equation", SUBJECT, 5)
def two_fractions(dice: Dice) -> MathDraft:
    a, b, c = dice.integer(1, 9), dice.nonzero(-12, 12), dice.integer(2, 9)
    e, f = dice.nonzero(-12, 12), dice.integer(2, 9)
    d = dice.choice([d for d in range(1, 10) if d * c != a * f])
    x = Fraction(e * c - b * f, a * f - d * c)
    steps = (
        f"Cross-multiplying gives ${f}({polynomial([a, b])})={c}({polynomial([d, e])})$, "
        f"so ${term(a * f - d * c, 'x')}={e * c - b * f}$ and $x={frac(x)}$."
    )
    left, right = rf"\frac{{{polynomial([a, b])}}}{{{c}}}", rf"\frac{{{polynomial([d, e])}}}{{{f}}}"
    return MathDraft(_equation(left, right), steps, frac(x))


def _system(*equations: str, unknowns: str) -> str:
    lines = r" \\ ".join(equations)
    kind = "pair" if unknowns == "x,y" else "triple"
    return f"Find the ordered {kind} $({unknowns})$ that solves $\\begin{{cases}} {lines} \\end{{cases}}$"


def _two_equations(a: int, b: int, e: int, c: int, d: int, f: int) -> str:
    first, second = combination([a, b], ["x", "y"]), combination([c, d], ["x", "y"])
    return _system(f"{first}={e}", f"{second}={f}", unknowns="x,y")


@cell("linear_system", SUBJECT, 1)
def sum_and_difference(dice: Dice) -> MathDraft:
    x, y = dice.integer(-30, 30), dice.integer(-30, 30)
    steps = f"Adding the equations gives $2x={2 * x}$, so $x={x}$, and then $y={y}$."
    return MathDraft(_two_equations(1, 1, x + y, 1, -1, x - y), steps, point(x, y))


@cell("linear_system", SUBJECT, 2)
def substitution(dice: Dice) -> MathDraft:
    x, y, m = dice.integer(-12, 12), dice.integer(-12, 12), dice.nonzero(-6, 6)
    a = dice.integer(1, 9)
    b = dice.choice([b for b in range(-9, 10) if b != 0 and a + b * m != 0])
    k, c = y - m * x, a * x + b * y
    steps = (
        f"Substituting $y={polynomial([m, k])}$ into the second equation gives "
        f"${term(a + b * m, 'x')}={c - b * k}$, so $x={x}$ and $y={y}$."
    )
    text = _system(f"y={polynomial([m, k])}", f"{combination([a, b], ['x', 'y'])}={c}", unknowns="x,y")
    return MathDraft(text, steps, point(x, y))


def _regular(dice: Dice, bound: int) -> tuple[int, int, int, int]:
    """Four non-zero coefficients a, b, c, d with ad - bc != 0."""
    a, b, c = (dice.nonzero(-bound, bound) for _ in range(3))
    d = dice.choice([d for d in range(-bound, bound + 1) if d != 0 and a * d != b * c])
    return a, b, c, d


def _eliminate(a: int, b: int, e: int, c: int, d: int, f: int) -> tuple[str, str]:
    """Worked solution and answer of ax + by = e, cx + dy = f."""
    det = a * d - b * c
    x, y = Fraction(e * d - b * f, det), Fraction(a * f - e * c, det)
    steps = (
        f"Multiply the first equation by ${d}$, the second by ${b}$, and subtract: ${term(det, 'x')}={e * d - b * f}$, "
        f"so $x={frac(x)}$. In the same way ${term(det, 'y')}={a * f - e * c}$, so $y={frac(y)}$."
    )
    return steps, point(x, y)


@cell("linear_system", SUBJECT, 3)
def elimination(dice: Dice) -> MathDraft:
    a, b, c, d = _regular(dice, 9)
    x, y = dice.integer(-12, 12), dice.integer(-12, 12)
    numbers = (a, b, a * x + b * y, c, d, c * x + d * y)
    return MathDraft(_two_equations(*numbers), *_eliminate(*numbers))


@cell("linear_system", SUBJECT, 4)
def rational_solution(dice: Dice) -> MathDraft:
    a, b, c, d = _regular(dice, 7)
    numbers = (a, b, dice.integer(-15, 15), c, d, dice.integer(-15, 15))
    return MathDraft(_two_equations(*numbers), *_eliminate(*numbers))


@cell("linear_system", SUBJECT, 5)
def three_unknowns(dice: Dice) -> MathDraft:
    x, y, z = (dice.integer(-9, 9) for _ in range(3))
    a, b, c, d = _regular(dice, 5)
    p, q = dice.nonzero(-4, 4), dice.nonzero(-4, 4)
    names = ["x", "y", "z"]
    third, then = f"{combination([p, q, 1], names)}={p * x + q * y + z}", "Solving the third equation for $z$ and"
    if (a - p * p) * (d - q * q) == (b - p * q) * (c - q * p):  # eliminating z would leave a singular system
        third, then = f"z={z}", "The third equation gives $z$;"
    text = _system(
        f"{combination([a, b, p], names)}={a * x + b * y + p * z}",
        f"{combination([c, d, q], names)}={c * x + d * y + q * z}",
        third,
        unknowns="x,y,z",
    )
    steps = (
        f"{then} substituting it into the others leaves two equations in $x$ and $y$. "
        f"Their solution is $x={x}$, $y={y}$, and then $z={z}$."
    )
    return MathDraft(text, steps, point(x, y, z))


@cell("quadratic", SUBJECT, 1)
def larger_root(dice: Dice) -> MathDraft:
    r, s = dice.sample(range(-25, 26), 2)
    steps = f"The left side factors as $({polynomial([1, -r])})({polynomial([1, -s])})$: roots ${r}$ and ${s}$."
    text = f"What is the larger solution of ${polynomial([1, -r - s, r * s])}=0$?"
    return MathDraft(text, steps, str(max(r, s)))


@cell("quadratic", SUBJECT, 2)
def both_roots(dice: Dice) -> MathDraft:
    a = dice.integer(2, 6)
    r, s = sorted(dice.sample([n for n in range(-15, 16) if n], 2))
    steps = f"Dividing by ${a}$ and factoring gives $(x{signed(-r)})(x{signed(-s)})=0$."
    text = (
        f"Find all solutions of ${polynomial([a, -a * (r + s), a * r * s])}=0$. "
        "Enter them separated by a comma, the smaller one first."
    )
    return MathDraft(text, steps, f"{r},{s}")


@cell("quadratic", SUBJECT, 3)
def rational_root(dice: Dice) -> MathDraft:
    p, r = dice.integer(2, 7), dice.integer(2, 7)
    q, s = dice.nonzero(-12, 12), dice.nonzero(-12, 12)
    large = max(Fraction(q, p), Fraction(s, r))
    steps = (
        f"The left side factors as $({p}x{signed(-q)})({r}x{signed(-s)})$, "
        f"with the roots ${frac(Fraction(q, p))}$ and ${frac(Fraction(s, r))}$."
    )
    text = f"What is the largest solution of ${polynomial([p * r, -p * s - q * r, q * s])}=0$?"
    return MathDraft(text, steps, frac(large))


@cell("quadratic", SUBJECT, 4)
def irrational_root(dice: Dice) -> MathDraft:
    b = dice.integer(-12, 12)
    squares = {n * n for n in range(40)}
    c = dice.choice([c for c in range(-40, 41) if b * b - 4 * c > 0 and b * b - 4 * c not in squares])
    k, m = square_part(b * b - 4 * c)
    if b % 2 == 0:  # then the discriminant is a multiple of 4, so k is even
        pieces = [surd(Fraction(k, 2), m)] if b == 0 else [str(-b // 2), surd(Fraction(k, 2), m)]
        root = "+".join(pieces)
    else:
        root = rf"\frac{{{-b}+{surd(k, m)}}}{{2}}"
    steps = (
        f"The discriminant is ${b * b - 4 * c}$, so the larger root is $\\frac{{{-b}+\\sqrt{{{b * b - 4 * c}}}}}{{2}}$."
    )
    return MathDraft(
        f"What is the larger solution of ${polynomial([1, b, c])}=0$, in simplest radical form?", steps, root
    )


@cell("quadratic", SUBJECT, 5)
def vertex(dice: Dice) -> MathDraft:
    a, b, c = dice.nonzero(-6, 6), dice.nonzero(-15, 15), dice.integer(-20, 20)
    h = Fraction(-b, 2 * a)
    k = a * h * h + b * h + c
    steps = f"The vertex lies at $x=-\\frac{{b}}{{2a}}={frac(h)}$, where $y={frac(k)}$."
    text = f"Find the vertex of the parabola $y={polynomial([a, b, c])}$ as an ordered pair."
    return MathDraft(text, steps, point(h, k))
