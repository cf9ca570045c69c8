"""Intermediate Algebra: symmetric functions of roots, polynomial remainders, complex numbers."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from fractions import Fraction

from numpy import polyval

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.families.math.procedural.latex import combination, complex_number, polynomial, power, root_of, signed
from marft_envs.problems.dice import Dice


@variant("vieta", 1)
def sum_of_roots(dice: Dice) -> Values:
    a, b, c = dice.integer(2, 12), dice.nonzero(-30, 30), dice.nonzero(-30, 30)
    return dict(polynomial=polynomial([a, b, c]), a=a, b=b, answer=Fraction(-b, a))


@variant("vieta", 2)
def sum_of_squares(dice: Dice) -> Values:
    b, c = dice.nonzero(-20, 20), dice.nonzero(-30, 30)
    return dict(polynomial=polynomial([1, b, c]), minus=-b, c=c, answer=b * b - 2 * c)


@variant("vieta", 3)
def cubic_squares(dice: Dice) -> Values:
    b, c, d = dice.nonzero(-15, 15), dice.nonzero(-20, 20), dice.nonzero(-20, 20)
    return dict(polynomial=polynomial([1, b, c, d]), minus=-b, c=c, answer=b * b - 2 * c)


@variant("vieta", 4)
def cubic_reciprocals(dice: Dice) -> Values:
    b, c, d = dice.nonzero(-20, 20), dice.nonzero(-30, 30), dice.nonzero(-30, 30)
    return dict(polynomial=polynomial([1, b, c, d]), c=c, minus=-d, answer=Fraction(-c, d))


@variant("vieta", 5)
def cubic_cubes(dice: Dice) -> Values:
    b, c, d = dice.nonzero(-9, 9), dice.nonzero(-12, 12), dice.nonzero(-20, 20)
    squares = b * b - 2 * c
    known: Values = dict(cube=polynomial([-b, -c, -d]), sum=-b, squares=squares, c=-c, d=-d)
    return dict(polynomial=polynomial([1, b, c, d]), answer=-b * squares - c * -b - 3 * d, **known)


def _by_linear(coefficients: list[int], a: int) -> Values:
    value = int(polyval(coefficients, a))
    return dict(dividend=polynomial(coefficients), divisor=f"x{signed(-a)}", a=a, answer=value)


@variant("polynomial_remainder", 1)
def quadratic_by_linear(dice: Dice) -> Values:
    return _by_linear([dice.integer(1, 9), dice.nonzero(-15, 15), dice.nonzero(-20, 20)], dice.nonzero(-9, 9))


@variant("polynomial_remainder", 2)
def cubic_by_linear(dice: Dice) -> Values:
    p = [dice.integer(1, 6), dice.integer(-9, 9), dice.nonzero(-12, 12), dice.nonzero(-20, 20)]
    return _by_linear(p, dice.nonzero(-6, 6))


@variant("polynomial_remainder", 3)
def cubic_by_square(dice: Dice) -> Values:
    a, b, c, d = dice.integer(1, 6), dice.nonzero(-9, 9), dice.nonzero(-12, 12), dice.nonzero(-20, 20)
    k = dice.nonzero(-9, 9)
    replaced = combination([-k * a, -k * b, c, d], ["x", "", "x", ""])
    division: Values = dict(dividend=polynomial([a, b, c, d]), divisor=polynomial([1, 0, k]))
    return dict(minus=-k, replaced=replaced, answer=polynomial([c - a * k, d - b * k]), **division)


def _by_quadratic(dividend: str, a: int, at_a: int, b: int, at_b: int) -> Values:
    """Division by (x - a)(x - b) of a polynomial with these values."""
    slope = (at_a - at_b) // (a - b)
    division: Values = dict(dividend=dividend, divisor=polynomial([1, -a - b, a * b]))
    return dict(a=a, b=b, at_a=at_a, at_b=at_b, answer=polynomial([slope, at_a - slope * a]), **division)


@variant("polynomial_remainder", 4)
def quartic_by_quadratic(dice: Dice) -> Values:
    p = [1, *(dice.integer(-6, 6) for _ in range(3)), dice.nonzero(-12, 12)]
    a, b = dice.sample(range(-4, 5), 2)
    return _by_quadratic(polynomial(p), a, int(polyval(p, a)), b, int(polyval(p, b)))


@variant("polynomial_remainder", 5)
def high_power_by_quadratic(dice: Dice) -> Values:
    n, k, c = dice.integer(5, 12), dice.nonzero(-20, 20), dice.nonzero(-20, 20)
    a, b = dice.sample(range(-3, 4), 2)
    dividend = combination([1, k, c], [power("x", n), "x", ""])
    return _by_quadratic(dividend, a, a**n + k * a + c, b, b**n + k * b + c)


def _gaussian(dice: Dice, bound: int) -> tuple[int, int]:
    return dice.nonzero(-bound, bound), dice.nonzero(-bound, bound)


def _times(a: int, b: int, c: int, d: int) -> tuple[int, int]:
    return a * c - b * d, a * d + b * c


@variant("complex_numbers", 1)
def complex_difference(dice: Dice) -> Values:
    (a, b), (c, d) = _gaussian(dice, 20), _gaussian(dice, 20)
    one, other, real, imaginary = complex_number(a, b), complex_number(c, d), a - c, b - d
    return dict(one=one, other=other, real=real, imaginary=imaginary, answer=complex_number(real, imaginary))


@variant("complex_numbers", 2)
def complex_product(dice: Dice) -> Values:
    (a, b), (c, d) = _gaussian(dice, 9), _gaussian(dice, 9)
    expanded = combination([a * c, a * d, b * c, -b * d], ["", "i", "i", ""])
    product = complex_number(*_times(a, b, c, d))
    return dict(one=complex_number(a, b), other=complex_number(c, d), expanded=expanded, answer=product)


@variant("complex_numbers", 3)
def complex_quotient(dice: Dice) -> Values:
    (a, b), (c, d) = _gaussian(dice, 9), _gaussian(dice, 6)
    norm = c * c + d * d
    real, imaginary = _times(a, b, c, -d)
    quotient = complex_number(Fraction(real, norm), Fraction(imaginary, norm))
    known: Values = dict(conjugate=complex_number(c, -d), product=complex_number(real, imaginary), norm=norm)
    return dict(one=complex_number(a, b), other=complex_number(c, d), answer=quotient, **known)


@variant("complex_numbers", 4)
def modulus_of_product(dice: Dice) -> Values:
    (a, b), (c, d) = _gaussian(dice, 9), _gaussian(dice, 9)
    p, q = a * a + b * b, c * c + d * d
    return dict(one=complex_number(a, b), other=complex_number(c, d), p=p, q=q, answer=root_of(p * q))


@variant("complex_numbers", 5)
def complex_power(dice: Dice) -> Values:
    (a, b), n = _gaussian(dice, 9), dice.integer(3, 5)
    powers = [(a, b)]
    while len(powers) < n:
        powers.append(_times(*powers[-1], a, b))
    shown = [complex_number(*p) for p in powers]
    return dict(one=shown[0], n=n, powers=", ".join(f"${p}$" for p in shown), answer=shown[-1])
