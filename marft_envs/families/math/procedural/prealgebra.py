"""Prealgebra: order of operations, fractions, percentages."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from fractions import Fraction

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import frac, signed
from marft_envs.problems.dice import Dice

SUBJECT = "Prealgebra"
GOODS = ("a jacket", "a lamp", "a bicycle", "a desk", "a camera", "a guitar", "a suitcase", "a tent")


@cell("arithmetic", SUBJECT, 1)
def sum_and_product(dice: Dice) -> MathDraft:
    a, b, c = dice.integer(1, 99), dice.integer(2, 12), dice.integer(2, 12)
    steps = f"The product comes first: ${b}\\cdot {c}={b * c}$. Then ${a}+{b * c}={a + b * c}$."
    return MathDraft(rf"Compute ${a}+{b}\cdot {c}$.", steps, str(a + b * c))


@cell("arithmetic", SUBJECT, 2)
def difference_of_products(dice: Dice) -> MathDraft:
    a, b, c, d = (dice.integer(2, 15) for _ in range(4))
    steps = rf"${a}\cdot {b}={a * b}$ and ${c}\cdot {d}={c * d}$. Their difference is ${a * b - c * d}$."
    return MathDraft(rf"Compute ${a}\cdot {b}-{c}\cdot {d}$.", steps, str(a * b - c * d))


@cell("arithmetic", SUBJECT, 3)
def bracket_and_products(dice: Dice) -> MathDraft:
    a, b, c, d, e = (dice.integer(2, 20) for _ in range(5))
    value = (a + b) * c - d * e
    steps = (
        rf"The bracket is ${a + b}$, so the first product is ${a + b}\cdot {c}={(a + b) * c}$. "
        rf"The second is ${d}\cdot {e}={d * e}$. Their difference is ${value}$."
    )
    return MathDraft(rf"Compute $({a}+{b})\cdot {c}-{d}\cdot {e}$.", steps, str(value))


@cell("arithmetic", SUBJECT, 4)
def square_and_bracket(dice: Dice) -> MathDraft:
    a, b, c, d = dice.integer(3, 20), dice.integer(2, 15), dice.integer(2, 30), dice.integer(2, 30)
    value = a**2 - b * (c - d)
    steps = (
        rf"${a}^2={a**2}$, and ${b}\cdot({c}-{d})={b}\cdot({c - d})={b * (c - d)}$. "
        rf"Subtracting gives ${value}$."
    )
    return MathDraft(rf"Compute ${a}^2-{b}\cdot({c}-{d})$.", steps, str(value))


@cell("arithmetic", SUBJECT, 5)
def quotient_square_bracket(dice: Dice) -> MathDraft:
    a, b, d, q = (dice.integer(2, 12) for _ in range(4))
    e, f, g = dice.integer(2, 9), dice.integer(1, 20), dice.integer(1, 20)
    c = q * d - a * b or d
    quotient = (a * b + c) // d
    value = quotient - e**2 * (f - g)
    steps = (
        rf"The numerator is ${a}\cdot {b}{signed(c)}={a * b + c}$, so the fraction is ${quotient}$. "
        rf"Next, ${e}^2\cdot({f}-{g})={e**2}\cdot({f - g})={e**2 * (f - g)}$. The difference is ${value}$."
    )
    text = rf"Compute $\frac{{{a}\cdot {b}{signed(c)}}}{{{d}}}-{e}^2\cdot({f}-{g})$."
    return MathDraft(text, steps, str(value))


def _proper(dice: Dice) -> tuple[int, int]:
    """Numerator and denominator as printed; not necessarily reduced."""
    denominator = dice.integer(3, 15)
    return dice.integer(1, denominator - 1), denominator


def _print(n: int, d: int) -> str:
    return rf"\frac{{{n}}}{{{d}}}"


@cell("fractions", SUBJECT, 1)
def same_denominator(dice: Dice) -> MathDraft:
    d = dice.integer(7, 40)
    a, b = dice.integer(1, d - 1), dice.integer(1, d - 1)
    total = Fraction(a + b, d)
    steps = f"The denominators agree, so add the numerators: ${_print(a + b, d)}$, which is ${frac(total)}$."
    return MathDraft(f"Compute ${_print(a, d)}+{_print(b, d)}$ as a reduced fraction.", steps, frac(total))


@cell("fractions", SUBJECT, 2)
def two_denominators(dice: Dice) -> MathDraft:
    (a, b), (c, d) = _proper(dice), _proper(dice)
    sign = dice.choice("+-")
    value = Fraction(a, b) + (1 if sign == "+" else -1) * Fraction(c, d)
    steps = (
        f"Over the common denominator ${b * d}$ this is "
        f"$\\frac{{{a * d}{sign}{c * b}}}{{{b * d}}}$, which reduces to ${frac(value)}$."
    )
    return MathDraft(f"Compute ${_print(a, b)}{sign}{_print(c, d)}$ as a reduced fraction.", steps, frac(value))


@cell("fractions", SUBJECT, 3)
def product_and_sum(dice: Dice) -> MathDraft:
    (a, b), (c, d), (e, f) = _proper(dice), _proper(dice), _proper(dice)
    product = Fraction(a, b) * Fraction(c, d)
    value = product + Fraction(e, f)
    steps = f"The product is ${frac(product)}$. Adding ${frac(Fraction(e, f))}$ gives ${frac(value)}$."
    text = rf"Compute ${_print(a, b)}\cdot{_print(c, d)}+{_print(e, f)}$ as a reduced fraction."
    return MathDraft(text, steps, frac(value))


@cell("fractions", SUBJECT, 4)
def quotient_of_difference(dice: Dice) -> MathDraft:
    (a, b), (c, d), (e, f) = _proper(dice), _proper(dice), _proper(dice)
    if c * f == e * d:
        c, d = c + d, d  # improper, hence different from the proper e/f
    inner = Fraction(c, d) - Fraction(e, f)
    value = Fraction(a, b) / inner
    steps = f"The bracket is ${frac(inner)}$. Dividing by it is multiplying by ${frac(1 / inner)}$: ${frac(value)}$."
    text = rf"Compute ${_print(a, b)}\div\left({_print(c, d)}-{_print(e, f)}\right)$ as a reduced fraction."
    return MathDraft(text, steps, frac(value))


@cell("fractions", SUBJECT, 5)
def continued_fraction(dice: Dice) -> MathDraft:
    a, b, c, d, e = (dice.integer(1, 9) for _ in range(5))
    e += 1
    inner = c + Fraction(d, e)
    value = a - Fraction(b) / inner
    steps = (
        f"The lower denominator is ${frac(inner)}$, so the fraction is ${frac(Fraction(b) / inner)}$. "
        f"Subtracting it from ${a}$ gives ${frac(value)}$."
    )
    text = rf"Compute ${a}-\frac{{{b}}}{{{c}+\frac{{{d}}}{{{e}}}}}$ as a reduced fraction."
    return MathDraft(text, steps, frac(value))


@cell("percent", SUBJECT, 1)
def percent_of(dice: Dice) -> MathDraft:
    p, n = 5 * dice.integer(1, 19), 20 * dice.integer(1, 100)
    value = p * n // 100
    steps = rf"$\frac{{{p}}}{{100}}\cdot {n}={value}$."
    return MathDraft(rf"What is ${p}\%$ of ${n}$?", steps, str(value))


def _lowered(what: str, n: int, p: int) -> str:
    return rf"The price of {what} is ${n}$ dollars. It is lowered by ${p}\%$"


@cell("percent", SUBJECT, 2)
def discount(dice: Dice) -> MathDraft:
    p, n, what = 5 * dice.integer(1, 15), 20 * dice.integer(1, 60), dice.choice(GOODS)
    value = n * (100 - p) // 100
    steps = rf"What is left to pay is ${100 - p}\%$ of ${n}$, which is ${value}$ dollars."
    return MathDraft(f"{_lowered(what, n, p)}. What is the new price in dollars?", steps, str(value))


@cell("percent", SUBJECT, 3)
def two_discounts(dice: Dice) -> MathDraft:
    p, q, n, what = 5 * dice.integer(1, 12), 5 * dice.integer(1, 12), 400 * dice.integer(1, 12), dice.choice(GOODS)
    first = n * (100 - p) // 100
    value = first * (100 - q) // 100
    steps = (
        f"After the first discount the price is ${first}$ dollars. "
        rf"The second leaves ${100 - q}\%$ of that, which is ${value}$ dollars."
    )
    text = rf"{_lowered(what, n, p)}, and the new price is then lowered by ${q}\%$. What is the final price in dollars?"
    return MathDraft(text, steps, str(value))


@cell("percent", SUBJECT, 4)
def before_the_rise(dice: Dice) -> MathDraft:
    p, n, what = 5 * dice.integer(1, 30), 20 * dice.integer(1, 60), dice.choice(GOODS)
    now = n * (100 + p) // 100
    steps = (
        rf"The new price is ${100 + p}\%$ of the old one, so the old one was ${now}\cdot\frac{{100}}{{{100 + p}}}={n}$."
    )
    text = (
        rf"After a rise of ${p}\%$, the price of {what} is ${now}$ dollars. "
        "What was the price before the rise, in dollars?"
    )
    return MathDraft(text, steps, str(n))


@cell("percent", SUBJECT, 5)
def before_rise_and_fall(dice: Dice) -> MathDraft:
    p, q, n, what = 5 * dice.integer(1, 20), 5 * dice.integer(1, 15), 400 * dice.integer(1, 30), dice.choice(GOODS)
    raised = n * (100 + p) // 100
    now = raised * (100 - q) // 100
    steps = (
        rf"Before the fall the price was ${now}\cdot\frac{{100}}{{{100 - q}}}={raised}$ dollars, "
        rf"and before the rise it was ${raised}\cdot\frac{{100}}{{{100 + p}}}={n}$ dollars."
    )
    text = (
        rf"The price of {what} rises by ${p}\%$, and the new price then falls by ${q}\%$. "
        f"Now it is ${now}$ dollars. What was the original price in dollars?"
    )
    return MathDraft(text, steps, str(n))
