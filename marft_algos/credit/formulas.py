"""Computes coalition values and rank correlations. Pure mathematics: no models, no episodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

Value = Mapping[frozenset[str], float]
"""Coalition -> what it earns."""


def coalitions(players: Sequence[str]) -> list[frozenset[str]]:
    """Returns all 2^n coalitions, the empty one first, the largest last."""
    return [frozenset(c) for size in range(len(players) + 1) for c in itertools.combinations(sorted(players), size)]


def shapley(players: Sequence[str], value: Value) -> dict[str, float]:
    """Computes φ_i = Σ_{S ∌ i} |S|!·(n − |S| − 1)!/n! · (v(S ∪ i) − v(S)), over all coalitions (Shapley 1953)."""
    n = len(players)
    shares = dict.fromkeys(sorted(players), 0.0)
    for coalition in coalitions(players):
        for i in sorted(frozenset(players) - coalition):
            weight = math.factorial(len(coalition)) * math.factorial(n - len(coalition) - 1) / math.factorial(n)
            shares[i] += weight * (value[coalition | {i}] - value[coalition])
    return shares


def orders(players: Sequence[str], number: int, rng: np.random.Generator) -> list[tuple[str, ...]]:
    """Draws orders in pairs of an order and its reverse, which cancels the error of games of two-person effects."""
    drawn: list[tuple[str, ...]] = []
    while len(drawn) < number:
        order = tuple(sorted(players)[i] for i in rng.permutation(len(players)))
        drawn += [order, order[::-1]]
    return drawn[:number]


def prefixes(order: Sequence[str]) -> list[frozenset[str]]:
    """Returns the coalitions that form as players join in this order, the empty one first."""
    return [frozenset(order[:size]) for size in range(len(order) + 1)]


def shapley_of(orders: Sequence[Sequence[str]], value: Value) -> dict[str, float]:
    """Averages v(those before i, and i) − v(those before i) over these orders: unbiased, and efficient as it is."""
    shares = dict.fromkeys(sorted(orders[0]), 0.0)
    for order in orders:
        before = frozenset[str]()
        for i in order:
            shares[i] += (value[before | {i}] - value[before]) / len(orders)
            before |= {i}
    return shares


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Computes the rank correlation, ties sharing their mean rank; nan where either is constant or too short."""
    if len(x) < 2:
        return math.nan
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0.0 else math.nan


def _ranks(x: Sequence[float]) -> np.ndarray:
    _, inverse, counts = np.unique(np.asarray(x, dtype=np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse.reshape(-1)])
