"""Number Theory: divisors and multiples, residues, number bases."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from collections.abc import Callable
from math import gcd, lcm

from numpy import base_repr

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.problems.dice import Dice

SUBJECT = "Number Theory"
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)


@cell("gcd_lcm", SUBJECT, 1)
def gcd_of_two(dice: Dice) -> MathDraft:
    g, (m, n) = dice.integer(2, 60), dice.sample(range(1, 15), 2)
    a, b = g * m, g * n
    x, y, chain = max(a, b), min(a, b), []
    while y:
        chain.append(str(x % y))
        x, y = y, x % y
    steps = f"The Euclidean algorithm on ${max(a, b)}$ and ${min(a, b)}$ leaves the remainders ${', '.join(chain)}$."
    return MathDraft(f"What is the greatest common divisor of ${a}$ and ${b}$?", steps, str(x))


@cell("gcd_lcm", SUBJECT, 2)
def lcm_of_two(dice: Dice) -> MathDraft:
    a, b = dice.sample(range(6, 73), 2)
    steps = rf"Their greatest common divisor is ${gcd(a, b)}$, and ${a}\cdot {b}/{gcd(a, b)}={lcm(a, b)}$."
    return MathDraft(f"What is the least common multiple of ${a}$ and ${b}$?", steps, str(lcm(a, b)))


def _of_three(name: str, function: Callable[..., int], a: int, b: int, c: int) -> MathDraft:
    value = function(a, b, c)
    steps = f"The first two have the {name} ${function(a, b)}$, and with ${c}$ it becomes ${value}$."
    return MathDraft(f"What is the {name} of ${a}$, ${b}$ and ${c}$?", steps, str(value))


@cell("gcd_lcm", SUBJECT, 3)
def gcd_of_three(dice: Dice) -> MathDraft:
    g, multiples = dice.integer(6, 90), dice.sample(range(1, 20), 3)
    return _of_three("greatest common divisor", gcd, *(g * m for m in multiples))


@cell("gcd_lcm", SUBJECT, 4)
def lcm_of_three(dice: Dice) -> MathDraft:
    return _of_three("least common multiple", lcm, *dice.sample(range(6, 51), 3))


@cell("gcd_lcm", SUBJECT, 5)
def multiples_below(dice: Dice) -> MathDraft:
    n, (a, b, c) = dice.integer(100, 999), sorted(dice.sample(range(3, 16), 3))
    single = n // a + n // b + n // c
    double = n // lcm(a, b) + n // lcm(b, c) + n // lcm(a, c)
    triple = n // lcm(a, b, c)
    value = single - double + triple
    steps = f"By inclusion and exclusion the number is ${single}-{double}+{triple}={value}$."
    text = f"How many positive integers not exceeding ${n}$ are divisible by at least one of ${a}$, ${b}$ and ${c}$?"
    return MathDraft(text, steps, str(value))


@cell("modular", SUBJECT, 1)
def remainder(dice: Dice) -> MathDraft:
    m, a = dice.integer(23, 97), dice.integer(1000, 9999)
    steps = rf"${a}={m}\cdot {a // m}+{a % m}$."
    return MathDraft(f"What is the remainder when ${a}$ is divided by ${m}$?", steps, str(a % m))


@cell("modular", SUBJECT, 2)
def remainder_of_product(dice: Dice) -> MathDraft:
    m, a, b = dice.choice(PRIMES[3:]), dice.integer(100, 999), dice.integer(100, 999)
    value = a * b % m
    steps = rf"Modulo ${m}$ the factors are ${a % m}$ and ${b % m}$, and ${a % m}\cdot {b % m}$ leaves ${value}$."
    return MathDraft(rf"What is the remainder when ${a}\cdot {b}$ is divided by ${m}$?", steps, str(value))


@cell("modular", SUBJECT, 3)
def remainder_of_power(dice: Dice) -> MathDraft:
    m, a, k = dice.choice(PRIMES[5:]), dice.integer(2, 20), dice.integer(5, 60)
    value = pow(a, k, m)
    squares = [f"{a}^{{{2**i}}}\\equiv {pow(a, 2**i, m)}" for i in range(1, k.bit_length())]
    steps = f"Modulo ${m}$, ${', '.join(squares)}$. Multiplying the needed ones gives ${value}$."
    return MathDraft(f"What is the remainder when ${a}^{{{k}}}$ is divided by ${m}$?", steps, str(value))


@cell("modular", SUBJECT, 4)
def linear_congruence(dice: Dice) -> MathDraft:
    m = dice.choice(PRIMES[3:])
    a, b = dice.integer(2, m - 1), dice.integer(1, m - 1)
    inverse = pow(a, -1, m)
    value = b * inverse % m
    steps = rf"The inverse of ${a}$ is ${inverse}$, so $n\equiv {b}\cdot {inverse}\equiv {value}$."
    text = rf"Find the smallest positive integer $n$ with ${a}n\equiv {b}\pmod{{{m}}}$."
    return MathDraft(text, steps, str(value))


@cell("modular", SUBJECT, 5)
def chinese_remainders(dice: Dice) -> MathDraft:
    p, q, r = sorted(dice.sample((5, 7, 8, 9, 11, 13, 17, 19), 3))  # pairwise coprime
    a, b, c = dice.integer(1, p - 1), dice.integer(1, q - 1), dice.integer(1, r - 1)
    two = next(n for n in range(a, p * q, p) if n % q == b)
    value = next(n for n in range(two, p * q * r, p * q) if n % r == c)
    steps = (
        rf"The first two congruences say $n\equiv {two}\pmod{{{p * q}}}$. "
        rf"Stepping by ${p * q}$ until the third holds gives ${value}$."
    )
    text = (
        rf"Find the smallest positive integer $n$ with $n\equiv {a}\pmod{{{p}}}$, "
        rf"$n\equiv {b}\pmod{{{q}}}$ and $n\equiv {c}\pmod{{{r}}}$."
    )
    return MathDraft(text, steps, str(value))


_WRITE = "Give the digits without the subscript."


@cell("bases", SUBJECT, 1)
def to_ten(dice: Dice) -> MathDraft:
    base = dice.integer(3, 9)
    n = dice.integer(base**2, base**4 - 1)
    text = base_repr(n, base)
    top = len(text) - 1
    sums = "+".join(rf"{digit}\cdot {base}^{top - i}" for i, digit in enumerate(text))
    return MathDraft(f"Convert ${text}_{base}$ to base ten.", f"${sums}={n}$.", str(n))


@cell("bases", SUBJECT, 2)
def from_ten(dice: Dice) -> MathDraft:
    base = dice.integer(3, 9)
    n = dice.integer(base**2, 999)
    text = base_repr(n, base)
    remainders = ", ".join(reversed(text))
    steps = f"Dividing by ${base}$ again and again leaves the remainders ${remainders}$, the last digit first."
    return MathDraft(f"Write the base ten number ${n}$ in base ${base}$. {_WRITE}", steps, text)


def _calculated(base: int, a: int, sign: str, b: int, value: int) -> MathDraft:
    x, y, answer = (base_repr(n, base) for n in (a, b, value))
    steps = f"In base ten this is ${a}{sign}{b}={value}$, which is ${answer}_{base}$."
    return MathDraft(f"Compute ${x}_{base}{sign}{y}_{base}$ in base ${base}$. {_WRITE}", steps, answer)


@cell("bases", SUBJECT, 3)
def sum_in_base(dice: Dice) -> MathDraft:
    base = dice.integer(3, 9)
    a, b = dice.integer(base, base**3 - 1), dice.integer(base, base**3 - 1)
    return _calculated(base, a, "+", b, a + b)


@cell("bases", SUBJECT, 4)
def product_in_base(dice: Dice) -> MathDraft:
    base = dice.integer(4, 9)
    a, b = dice.integer(base, base**3 - 1), dice.integer(2, base**2 - 1)
    return _calculated(base, a, r"\cdot ", b, a * b)


@cell("bases", SUBJECT, 5)
def between_bases(dice: Dice) -> MathDraft:
    b, c = dice.sample(range(3, 10), 2)
    n = dice.integer(b**3, b**5 - 1)
    steps = f"In base ten ${base_repr(n, b)}_{b}$ is ${n}$, which is ${base_repr(n, c)}_{c}$."
    return MathDraft(f"Convert ${base_repr(n, b)}_{b}$ to base ${c}$. {_WRITE}", steps, base_repr(n, c))
