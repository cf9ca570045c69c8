"""Conditions and mappings on whole numbers, in words and in Python source; and lists to try them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marft_envs.families.code.procedural.base import Dice, function


@dataclass(frozen=True, slots=True)
class ValueRule:
    """A condition on ``v``."""

    words: str
    """After "is"/"are": ``divisible by 3``."""
    code: str
    near: str
    """A condition that is easily mistaken for it."""
    edges: tuple[int, ...]
    """Values on which the two differ, and their neighbours."""

    @property
    def holds(self) -> Callable[[int], bool]:
        """The condition as a function."""
        return function("v", self.code)


def rule(dice: Dice, least: int = -5) -> ValueRule:
    """One of about 150 conditions; bounds are ``least`` or more."""
    kind = dice.below(6)
    k = dice.integer(2, 9)
    if kind == 0:
        return ValueRule(f"divisible by {k}", f"v % {k} == 0", f"v % {k} == 1", (2 * k, 1, k, 0, k + 1))
    if kind == 1:
        return ValueRule(f"not divisible by {k}", f"v % {k} != 0", f"v % {k} != 1", (1, k, k + 1, 0, 2 * k))
    if kind == 2:
        t = dice.integer(least, 20)
        return ValueRule(f"greater than {t}", f"v > {t}", f"v >= {t}", (t, t + 1, t - 1, t + 7))
    if kind == 3:
        t = dice.integer(least, 20)
        return ValueRule(f"less than {t}", f"v < {t}", f"v <= {t}", (t, t - 1, t + 1, t - 7))
    if kind == 4:
        low = dice.integer(least, 12)
        high = low + dice.integer(2, 12)
        words, edges = f"from {low} to {high} (both included)", (high, low, high + 1, low - 1)
        return ValueRule(words, f"{low} <= v <= {high}", f"{low} <= v < {high}", edges)
    d = dice.below(10)
    other = (d + 1) % 10
    words, edges = f"such that the last decimal digit is {d}", (d, 10 + d, other, -20 - d)
    return ValueRule(words, f"abs(v) % 10 == {d}", f"abs(v) % 10 == {other}", edges)


def two_rules(dice: Dice) -> ValueRule:
    """Two conditions of different words, joined by "and" or "or"."""
    one, two = rule(dice), rule(dice)
    while two.words.split()[0] == one.words.split()[0]:
        two = rule(dice)
    both = [v for v in range(-40, 60) if one.holds(v) and two.holds(v)]
    either = [v for v in range(-40, 60) if one.holds(v) != two.holds(v)]
    neither = [v for v in range(-40, 60) if not one.holds(v) and not two.holds(v)]
    if not both or not neither or not either:  # a condition that always or never holds is no condition
        return two_rules(dice)
    edges = (both[len(both) // 2], either[0], neither[len(neither) // 2], *one.edges, *two.edges)
    join, near = ("and", "or") if dice.below(2) else ("or", "and")
    code, mistaken = (f"{one.code} {word} {two.code}" for word in (join, near))
    return ValueRule(f"{one.words} {join} {two.words}", code, mistaken, edges)


@dataclass(frozen=True, slots=True)
class Mapping:
    """A function of ``v``."""

    words: str
    """With ``{}`` for the thing mapped: ``3 times {} plus 2``."""
    code: str
    near: str
    """Code of something easily mistaken for it; it differs for every ``v`` but a few."""

    @property
    def apply(self) -> Callable[[int], int]:
        """The mapping as a function."""
        return function("v", self.code)


def mapping(dice: Dice) -> Mapping:
    """One of about 100 mappings."""
    kind, k, d = dice.below(5), dice.integer(2, 9), dice.integer(1, 9)
    if kind == 0:
        return Mapping(f"{k} times {{}} plus {d}", f"{k} * v + {d}", f"{k} * (v + {d})")
    if kind == 1:
        return Mapping(f"{k} times {{}} minus {d}", f"{k} * v - {d}", f"{k} * (v - {d})")
    if kind == 2:
        m = dice.integer(3, 12)
        return Mapping(f"the remainder of {{}} divided by {m}", f"v % {m}", f"v // {m}")
    if kind == 3:
        t = dice.integer(2, 20)
        return Mapping(f"the distance between {{}} and {t}", f"abs(v - {t})", f"(v - {t})")
    return Mapping(f"the square of {{}} minus {d}", f"v * v - {d}", f"(v - {d}) ** 2")


def int_lists(dice: Dice, edges: Sequence[int] = (), low: int = -9, high: int = 30) -> list[list[int]]:
    """Two typical lists, then an empty one, lists full of edges, single numbers, and longer ones."""

    def some(n: int) -> list[int]:
        return [dice.choice(edges) if edges and dice.below(3) == 0 else dice.integer(low, high) for _ in range(n)]

    sharp = list(edges) or [low, 0, 1]
    return [
        some(dice.integer(5, 6)), some(dice.integer(6, 7)), [], sharp, sharp[::-1] + sharp, sharp[:1], sharp[1:2],
        [*some(4), *sharp, *some(3)], some(12), [-v for v in some(6)], [0, 0, 1],
    ]  # fmt: skip
