"""Number Theory: divisors and multiples, residues, number bases."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from math import gcd, lcm

from numpy import base_repr

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.problems.dice import Dice

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


@variant("gcd_lcm", 1)
def gcd_of_two(dice: Dice) -> Values:
    g, (m, n) = dice.integer(2, 60), dice.sample(range(1, 15), 2)
    a, b = g * m, g * n
    x, y, chain = max(a, b), min(a, b), []
    while y:
        chain.append(str(x % y))
        x, y = y, x % y
    return dict(a=a, b=b, larger=max(a, b), smaller=min(a, b), remainders=", ".join(chain), answer=x)


@variant("gcd_lcm", 2)
def lcm_of_two(dice: Dice) -> Values:
    a, b = dice.sample(range(6, 73), 2)
    return dict(a=a, b=b, divisor=gcd(a, b), answer=lcm(a, b))


@variant("gcd_lcm", 3)
def gcd_of_three(dice: Dice) -> Values:
    g, multiples = dice.integer(6, 90), dice.sample(range(1, 20), 3)
    a, b, c = (g * m for m in multiples)
    return dict(a=a, b=b, c=c, two=gcd(a, b), answer=gcd(a, b, c))


@variant("gcd_lcm", 4)
def lcm_of_three(dice: Dice) -> Values:
    a, b, c = dice.sample(range(6, 51), 3)
    return dict(a=a, b=b, c=c, two=lcm(a, b), answer=lcm(a, b, c))


@variant("gcd_lcm", 5)
def multiples_below(dice: Dice) -> Values:
    n, (a, b, c) = dice.integer(100, 999), sorted(dice.sample(range(3, 16), 3))
    single = n // a + n // b + n // c
    double = n // lcm(a, b) + n // lcm(b, c) + n // lcm(a, c)
    triple = n // lcm(a, b, c)
    return dict(n=n, a=a, b=b, c=c, single=single, double=double, triple=triple, answer=single - double + triple)


@variant("modular", 1)
def remainder(dice: Dice) -> Values:
    m, a = dice.integer(23, 97), dice.integer(1000, 9999)
    return dict(a=a, m=m, quotient=a // m, answer=a % m)


@variant("modular", 2)
def remainder_of_product(dice: Dice) -> Values:
    m, a, b = dice.choice(PRIMES[3:]), dice.integer(100, 999), dice.integer(100, 999)
    return dict(a=a, b=b, m=m, first=a % m, second=b % m, answer=a * b % m)


@variant("modular", 3)
def remainder_of_power(dice: Dice) -> Values:
    m, a, k = dice.choice(PRIMES[5:]), dice.integer(2, 20), dice.integer(5, 60)
    squares = [f"{a}^{{{2**i}}}\\equiv {pow(a, 2**i, m)}" for i in range(1, k.bit_length())]
    return dict(a=a, k=k, m=m, squares=", ".join(squares), answer=pow(a, k, m))


@variant("modular", 4)
def linear_congruence(dice: Dice) -> Values:
    m = dice.choice(PRIMES[3:])
    a, b = dice.integer(2, m - 1), dice.integer(1, m - 1)
    inverse = pow(a, -1, m)
    return dict(a=a, b=b, m=m, inverse=inverse, answer=b * inverse % m)


@variant("modular", 5)
def chinese_remainders(dice: Dice) -> Values:
    p, q, r = sorted(dice.sample((5, 7, 8, 9, 11, 13, 17, 19), 3))  # pairwise coprime
    a, b, c = dice.integer(1, p - 1), dice.integer(1, q - 1), dice.integer(1, r - 1)
    two = next(n for n in range(a, p * q, p) if n % q == b)
    value = next(n for n in range(two, p * q * r, p * q) if n % r == c)
    return dict(a=a, b=b, c=c, p=p, q=q, r=r, two=two, period=p * q, answer=value)


@variant("bases", 1)
def to_ten(dice: Dice) -> Values:
    base = dice.integer(3, 9)
    n = dice.integer(base**2, base**4 - 1)
    digits = base_repr(n, base)
    sums = "+".join(rf"{digit}\cdot {base}^{len(digits) - 1 - i}" for i, digit in enumerate(digits))
    return dict(digits=digits, base=base, sums=sums, answer=n)


@variant("bases", 2)
def from_ten(dice: Dice) -> Values:
    base = dice.integer(3, 9)
    n = dice.integer(base**2, 999)
    digits = base_repr(n, base)
    return dict(n=n, base=base, remainders=", ".join(reversed(digits)), answer=digits)


def _calculated(base: int, a: int, b: int, value: int) -> Values:
    x, y, answer = (base_repr(n, base) for n in (a, b, value))
    return dict(base=base, a=a, b=b, value=value, x=x, y=y, answer=answer)


@variant("bases", 3)
def sum_in_base(dice: Dice) -> Values:
    base = dice.integer(3, 9)
    a, b = dice.integer(base, base**3 - 1), dice.integer(base, base**3 - 1)
    return _calculated(base, a, b, a + b)


@variant("bases", 4)
def product_in_base(dice: Dice) -> Values:
    base = dice.integer(4, 9)
    a, b = dice.integer(base, base**3 - 1), dice.integer(2, base**2 - 1)
    return _calculated(base, a, b, a * b)


@variant("bases", 5)
def between_bases(dice: Dice) -> Values:
    b, c = dice.sample(range(3, 10), 2)
    n = dice.integer(b**3, b**5 - 1)
    return dict(b=b, c=c, n=n, x=base_repr(n, b), answer=base_repr(n, c))
