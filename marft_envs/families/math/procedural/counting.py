"""Counting & Probability: selections, paths, drawing from a bag."""

# ruff: noqa: D103  (a builder is described by its name and the cell it is registered under)
from __future__ import annotations

from fractions import Fraction
from math import comb

from marft_envs.families.math.procedural.base import MathDraft, cell
from marft_envs.families.math.procedural.latex import frac
from marft_envs.problems.dice import Dice

SUBJECT = "Counting & Probability"
CLUBS = ("a chess club", "a choir", "a hiking group", "a debate team", "an orchestra", "a book club")
THINGS = ("coins", "stickers", "pencils", "marbles", "apples", "tickets", "stamps", "candies")


def _choose(n: int, k: int) -> str:
    return rf"\binom{{{n}}}{{{k}}}"


@cell("counting", SUBJECT, 1)
def committee(dice: Dice) -> MathDraft:
    n, k, club = dice.integer(6, 40), dice.integer(2, 5), dice.choice(CLUBS)
    steps = f"The order does not matter, so the number is ${_choose(n, k)}={comb(n, k)}$."
    text = f"In how many ways can a committee of ${k}$ be chosen from the ${n}$ members of {club}?"
    return MathDraft(text, steps, str(comb(n, k)))


@cell("counting", SUBJECT, 2)
def mixed_committee(dice: Dice) -> MathDraft:
    m, w, a, b = dice.integer(4, 12), dice.integer(4, 12), dice.integer(1, 4), dice.integer(1, 4)
    value = comb(m, a) * comb(w, b)
    steps = rf"Choose each group on its own: ${_choose(m, a)}\cdot {_choose(w, b)}={value}$."
    text = (
        f"A committee is to have ${a}$ of ${m}$ teachers and ${b}$ of ${w}$ students. "
        "In how many ways can it be chosen?"
    )
    return MathDraft(text, steps, str(value))


@cell("counting", SUBJECT, 3)
def at_least_one(dice: Dice) -> MathDraft:
    m, w, k, club = dice.integer(4, 14), dice.integer(3, 12), dice.integer(2, 4), dice.choice(CLUBS)
    value = comb(m + w, k) - comb(m, k)
    steps = f"From all committees take away those without a junior: ${_choose(m + w, k)}-{_choose(m, k)}={value}$."
    text = (
        f"There are ${m}$ seniors and ${w}$ juniors in {club}. How many committees of ${k}$ members "
        "have at least one junior?"
    )
    return MathDraft(text, steps, str(value))


@cell("counting", SUBJECT, 4)
def distribution(dice: Dice) -> MathDraft:
    k, least, what = dice.integer(3, 6), dice.integer(0, 2), dice.choice(THINGS)
    n = k * least + dice.integer(4, 25)
    free = n - k * least
    value = comb(free + k - 1, k - 1)
    steps = (
        f"Give each child ${least}$ first; the remaining ${free}$ are shared freely among ${k}$, "
        f"in ${_choose(free + k - 1, k - 1)}={value}$ ways."
    )
    text = (
        f"In how many ways can ${n}$ identical {what} be shared among ${k}$ different children "
        f"so that each child gets at least ${least}$?"
    )
    return MathDraft(text, steps, str(value))


@cell("counting", SUBJECT, 5)
def avoiding_paths(dice: Dice) -> MathDraft:
    m, n = dice.integer(3, 9), dice.integer(3, 9)
    p, q = dice.integer(1, m - 1), dice.integer(1, n - 1)
    everything, through = comb(m + n, m), comb(p + q, p) * comb(m + n - p - q, m - p)
    steps = (
        f"There are ${_choose(m + n, m)}={everything}$ paths in all, and "
        rf"${_choose(p + q, p)}\cdot {_choose(m + n - p - q, m - p)}={through}$ of them pass through the point."
    )
    text = (
        f"A path goes from $(0,0)$ to $({m},{n})$ in unit steps to the right or up. "
        f"How many such paths do not pass through $({p},{q})$?"
    )
    return MathDraft(text, steps, str(everything - through))


def _drawn(drawn: str, event: str, steps: str, value: Fraction, **balls: int) -> MathDraft:
    """The probability of an event when balls are drawn from a bag; ``balls``: how many there are of each colour."""
    *first, last = [f"${n}$ {colour}" for colour, n in balls.items()]
    text = (
        f"A bag holds {', '.join(first)} and {last} balls. {drawn}. What is the probability that {event}? "
        "Express your answer as a common fraction."
    )
    return MathDraft(text, steps, frac(value))


_WITHOUT = "are drawn at random without replacement"


@cell("probability", SUBJECT, 1)
def one_ball(dice: Dice) -> MathDraft:
    red, blue, green = (dice.integer(2, 20) for _ in range(3))
    value = Fraction(red, red + blue + green)
    steps = f"${red}$ of the ${red + blue + green}$ balls are red."
    return _drawn("One is drawn at random", "it is red", steps, value, red=red, blue=blue, green=green)


@cell("probability", SUBJECT, 2)
def two_red(dice: Dice) -> MathDraft:
    red, blue = dice.integer(2, 30), dice.integer(2, 30)
    n = red + blue
    value = Fraction(red * (red - 1), n * (n - 1))
    steps = rf"$\frac{{{red}}}{{{n}}}\cdot\frac{{{red - 1}}}{{{n - 1}}}={frac(value)}$."
    return _drawn(f"Two {_WITHOUT}", "both are red", steps, value, red=red, blue=blue)


@cell("probability", SUBJECT, 3)
def one_of_each_two(dice: Dice) -> MathDraft:
    red, blue, green = dice.integer(2, 12), dice.integer(2, 12), dice.integer(1, 8)
    n = red + blue + green
    steps = rf"${red}\cdot {blue}$ of the ${_choose(n, 2)}={comb(n, 2)}$ pairs are of that kind."
    event, value = "one is red and the other is blue", Fraction(red * blue, comb(n, 2))
    return _drawn(f"Two {_WITHOUT}", event, steps, value, red=red, blue=blue, green=green)


@cell("probability", SUBJECT, 4)
def exactly_two_red(dice: Dice) -> MathDraft:
    red, blue, k = dice.integer(3, 18), dice.integer(3, 18), dice.integer(3, 5)
    favourable, total = comb(red, 2) * comb(blue, k - 2), comb(red + blue, k)
    steps = rf"${_choose(red, 2)}\cdot {_choose(blue, k - 2)}={favourable}$ of ${total}$ selections are of that kind."
    value = Fraction(favourable, total)
    return _drawn(f"${k}$ {_WITHOUT}", "exactly two of them are red", steps, value, red=red, blue=blue)


@cell("probability", SUBJECT, 5)
def at_least_two_red(dice: Dice) -> MathDraft:
    red, blue, k = dice.integer(3, 18), dice.integer(3, 18), dice.integer(3, 5)
    total = comb(red + blue, k)
    none, one = comb(blue, k), red * comb(blue, k - 1)
    value = 1 - Fraction(none + one, total)
    steps = (
        f"Of the ${total}$ selections ${none}$ have no red ball and ${one}$ have one, "
        f"so the probability is $1-\\frac{{{none + one}}}{{{total}}}={frac(value)}$."
    )
    return _drawn(f"${k}$ {_WITHOUT}", "at least two of them are red", steps, value, red=red, blue=blue)
