"""Counting & Probability: selections, paths, drawing from a bag."""

# ruff: noqa: D103  (a builder is described by its name and the level it is registered under)
from __future__ import annotations

from fractions import Fraction
from math import comb

from marft_envs.families.math.procedural.base import Values, variant
from marft_envs.problems.dice import Dice

CLUBS = ("a chess club", "a choir", "a hiking group", "a debate team", "an orchestra", "a book club")
THINGS = ("coins", "stickers", "pencils", "marbles", "apples", "tickets", "stamps", "candies")


@variant("counting", 1)
def committee(dice: Dice) -> Values:
    n, k, club = dice.integer(6, 40), dice.integer(2, 5), dice.choice(CLUBS)
    return dict(n=n, k=k, club=club, answer=comb(n, k))


@variant("counting", 2)
def mixed_committee(dice: Dice) -> Values:
    m, w, a, b = dice.integer(4, 12), dice.integer(4, 12), dice.integer(1, 4), dice.integer(1, 4)
    return dict(m=m, w=w, a=a, b=b, answer=comb(m, a) * comb(w, b))


@variant("counting", 3)
def at_least_one(dice: Dice) -> Values:
    m, w, k, club = dice.integer(4, 14), dice.integer(3, 12), dice.integer(2, 4), dice.choice(CLUBS)
    return dict(m=m, w=w, n=m + w, k=k, club=club, answer=comb(m + w, k) - comb(m, k))


@variant("counting", 4)
def distribution(dice: Dice) -> Values:
    k, least, what = dice.integer(3, 6), dice.integer(0, 2), dice.choice(THINGS)
    free = dice.integer(4, 25)
    places = free + k - 1
    n = k * least + free
    return dict(n=n, k=k, least=least, what=what, free=free, places=places, bars=k - 1, answer=comb(places, k - 1))


@variant("counting", 5)
def avoiding_paths(dice: Dice) -> Values:
    m, n = dice.integer(3, 9), dice.integer(3, 9)
    p, q = dice.integer(1, m - 1), dice.integer(1, n - 1)
    far, near, rest, right = m + n, p + q, m + n - p - q, m - p
    everything, through = comb(far, m), comb(near, p) * comb(rest, right)
    known: Values = dict(far=far, near=near, rest=rest, right=right, everything=everything, through=through)
    return dict(m=m, n=n, p=p, q=q, answer=everything - through, **known)


@variant("probability", 1)
def one_ball(dice: Dice) -> Values:
    red, blue, green = (dice.integer(2, 20) for _ in range(3))
    n = red + blue + green
    return dict(red=red, blue=blue, green=green, n=n, answer=Fraction(red, n))


@variant("probability", 2)
def two_red(dice: Dice) -> Values:
    red, blue = dice.integer(2, 30), dice.integer(2, 30)
    n = red + blue
    value = Fraction(red * (red - 1), n * (n - 1))
    return dict(red=red, blue=blue, n=n, red_left=red - 1, left=n - 1, answer=value)


@variant("probability", 3)
def one_of_each_two(dice: Dice) -> Values:
    red, blue, green = dice.integer(2, 12), dice.integer(2, 12), dice.integer(1, 8)
    n = red + blue + green
    return dict(red=red, blue=blue, green=green, n=n, pairs=comb(n, 2), answer=Fraction(red * blue, comb(n, 2)))


@variant("probability", 4)
def exactly_two_red(dice: Dice) -> Values:
    red, blue, k = dice.integer(3, 18), dice.integer(3, 18), dice.integer(3, 5)
    favourable, total = comb(red, 2) * comb(blue, k - 2), comb(red + blue, k)
    known: Values = dict(others=k - 2, favourable=favourable, total=total)
    return dict(red=red, blue=blue, k=k, answer=Fraction(favourable, total), **known)


@variant("probability", 5)
def at_least_two_red(dice: Dice) -> Values:
    red, blue, k = dice.integer(3, 18), dice.integer(3, 18), dice.integer(3, 5)
    total, none, one = comb(red + blue, k), comb(blue, k), red * comb(blue, k - 1)
    few = none + one
    return dict(red=red, blue=blue, k=k, total=total, none=none, one=one, few=few, answer=1 - Fraction(few, total))
