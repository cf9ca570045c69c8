"""When should a team stop talking? A priced stop against every fixed number of words, and against the optimum.

::

    python -m benchmarks stopping --optimum
    marft bench run examples/configs/bench_stop.toml --out runs/stop --jobs 2
    python -m benchmarks stopping runs/stop

The optimum is Wald's: dynamic programming over the readings that speak for 1 less those for 0.
"""

from __future__ import annotations

from functools import cache
from math import comb
from typing import NamedTuple

LENGTHS = (1, 3, 5, 7)
RELIABILITY, LONGEST = 0.8, 8


class Value(NamedTuple):
    """What a rule is worth: score less price, words said, score."""

    net: float
    words: float
    score: float


def majority(reliability: float, readings: int) -> float:
    """Returns how often the majority of so many readings is right; one of two equals is drawn."""
    q, n = reliability, readings
    chances = ((comb(n, k) * q**k * (1 - q) ** (n - k), 2 * k - n) for k in range(n + 1))
    return sum(p * (1.0 if lead > 0 else 0.5 if lead == 0 else 0.0) for p, lead in chances)


def best_fixed(reliability: float, longest: int, price: float) -> Value:
    """Returns the best number of words that is fixed beforehand, at a price a word."""
    return max(Value(majority(reliability, n) - price * n, n, majority(reliability, n)) for n in range(1, longest + 1))


def optimum(reliability: float, longest: int, price: float) -> Value:
    """Returns the best rule that stops as it hears, at a price a word."""

    @cache
    def value(n: int, lead: int) -> Value:
        odds = (reliability / (1 - reliability)) ** lead
        sure = odds / (1 + odds)
        stop = Value(max(sure, 1 - sure), 0, max(sure, 1 - sure))
        if n == longest:
            return stop
        one = sure * reliability + (1 - sure) * (1 - reliability)
        on = [one * a + (1 - one) * b for a, b in zip(value(n + 1, lead + 1), value(n + 1, lead - 1), strict=True)]
        more = Value(on[0] - price, on[1] + 1, on[2])
        return more if n == 0 or more.net > stop.net + 1e-12 else stop

    return value(0, 0)
