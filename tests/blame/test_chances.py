"""Chances: exact intervals at a few looks, which cover although sampling stops as soon as they are narrow."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marft_algos.config.evaluation import EvalConfig
from marft_algos.credit.branches import Branch
from marft_algos.extras.blame.chances import ALPHA, LOOKS, Chances, Query, difference, exact, half_width, looks
from marft_algos.runs.intervals import Interval
from marft_algos.types import NO_REPLY, Transition
from marft_envs import TurnRecord

SIMULATED = 2_000


def test_the_interval_is_clopper_and_pearsons() -> None:
    assert exact(0, 10, 0.05).high == pytest.approx(1 - 0.025**0.1)  # closed form: no success
    assert exact(10, 10, 0.05).low == pytest.approx(0.025**0.1)
    assert (exact(5, 10, 0.05).low, exact(5, 10, 0.05).high) == pytest.approx((0.18709, 0.81291), abs=1e-5)
    assert (exact(2, 30, 0.05).low, exact(2, 30, 0.05).high) == pytest.approx((0.00818, 0.22074), abs=1e-5)
    assert np.isnan(exact(0, 0).mean) and (exact(0, 0).low, exact(0, 0).high) == (0.0, 1.0)


@pytest.mark.parametrize("width", [0.1, 0.15, 0.25])
def test_the_last_look_is_enough_for_any_chance_and_the_first_for_a_clear_one(width: float) -> None:
    first, middle, last = looks(width)
    assert first < middle < last
    assert max(half_width(exact(k, last)) for k in range(last + 1)) <= width + 1e-6
    assert half_width(exact(0, first)) <= width < half_width(exact(0, first - 1))


class Coins:
    """Plays branches as coins: branch n ends in success with its chance."""

    def __init__(self, heads: Any, lost: float = 0.0) -> None:
        self.heads, self.lose, self.rng = heads, lost, np.random.default_rng(0)
        self.branches, self.lost = 0, list[Any]()
        self.played: list[Branch] = []

    def play(self, branches: list[Branch], iteration: int) -> list[Any]:
        self.played += branches
        turn = Transition(TurnRecord(0, 0, 0, "a", "a", (), ""), reply=replace(NO_REPLY, usage=(5, 2)))
        wins = [bool(self.rng.random() < self.heads[b.episode]) for b in branches]
        results = [SimpleNamespace(success=won, transitions=[turn]) for won in wins]
        return [None if self.rng.random() < self.lose else result for result in results]


def found(coins: Coins, width: float = 0.15, budget: float = math.inf) -> tuple[Chances, list[Interval]]:
    """The chances of all coins."""
    chances = Chances(coins, EvalConfig(), width, budget)  # type: ignore[arg-type]
    queries = [Query(Branch(None, i), 2) for i in range(len(coins.heads))]  # type: ignore[arg-type]
    chances.find(queries)
    return chances, [query.chance for query in queries]


def test_intervals_cover_although_sampling_stops_early() -> None:
    """Chances and their differences, blame: at least .94 of 2,000 simulated; by their construction .95 of chances."""
    rng = np.random.default_rng(1)
    # Clear chances, unclear ones, and ones near which the rule stops at another look.
    heads = np.concatenate([rng.random(SIMULATED), rng.choice([0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.97], SIMULATED)])
    coins = Coins(heads)
    chances, intervals = found(coins)
    assert np.mean([i.low <= p <= i.high for i, p in zip(intervals, heads, strict=True)]) >= 1 - ALPHA
    assert max(map(half_width, intervals)) <= 0.15
    pairs = list(zip(intervals[::2], intervals[1::2], heads[::2] - heads[1::2], strict=True))
    assert len(pairs) == SIMULATED
    assert np.mean([(d := difference(a, b)).low <= truth <= d.high for a, b, truth in pairs]) >= 0.94
    sizes = [i.n for i in intervals]
    assert set(sizes) == set(looks(0.15)) and len(set(sizes)) == LOOKS
    clear = [i.n for i, p in zip(intervals, heads, strict=True) if p < 0.02]
    assert np.mean(clear) < 20 < 60 < np.mean([i.n for i, p in zip(intervals, heads, strict=True) if 0.4 < p < 0.6])
    assert chances.tokens == 2 * chances.episodes == 2 * len(coins.played) and chances.read == 5 * chances.episodes
    samples = [b.sample for b in coins.played if b.episode == 0]
    assert len(set(samples)) == len(samples) and 0 not in samples  # no two plays share their random numbers


def test_a_budget_is_kept() -> None:
    first, _, last = looks(0.15)
    for budget, played in ((2 * first - 1, 0), (2 * first, first), (2 * last, last), (math.inf, last)):
        chances, (chance,) = found(Coins([0.5]), budget=budget)
        assert chance.n == played and chances.tokens == 2 * played
        assert chances.spent is (played < last)


def test_replays_that_are_lost_are_no_failures() -> None:
    coins = Coins([1.0], lost=0.5)
    _, (chance,) = found(coins)
    assert chance.mean == 1.0 and 0 < chance.n < len(coins.played)
    assert chance == exact(chance.n, chance.n)


def test_a_difference_of_known_chances_is_known() -> None:
    assert difference(Interval(1.0, 1.0, 1.0, 1), Interval(0.0, 0.0, 0.0, 1)) == Interval(1.0, 1.0, 1.0, 1)
    d = difference(exact(30, 60), Interval(0.0, 0.0, 0.0, 1))
    assert (d.low, d.high) == pytest.approx((exact(30, 60).low, exact(30, 60).high))
