"""The words of ``marft versus``: what an interval says, and how often it is wrong on outcomes whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.correctness.versus import Truth, choose_then_compare
from marft_algos.extras.bench.versus import verdict
from marft_algos.runs.intervals import Interval

MARGIN = 0.05


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (0.01, 0.20, "ahead"),
        (0.01, 0.04, "level"),  # better, by less than is worth a team
        (-0.20, -0.10, "level"),
        (-0.01, 0.20, "open"),
        (-0.03, 0.04, "level"),
        (0.0, 0.1, "open"),
    ],
)
def test_a_word_says_where_the_interval_lies(low: float, high: float, says: str) -> None:
    assert verdict.word(Interval((low + high) / 2, low, high, 5), MARGIN) == says


def said(**words: verdict.Word) -> str:
    return verdict.needed({unit: verdict.Comparison(words.get(unit, "ahead"), None) for unit in verdict.UNITS})[0]


def test_the_verdict_follows_from_the_three_budgets() -> None:
    assert said() == "team needed"
    assert said(sampled="level", processed="level", latency="level") == "no team needed"
    assert said(sampled="level") == "no team needed"
    assert said(processed="level") == said(latency="level") == said(processed="level", latency="open") == "too costly"
    assert said(latency="open") == said(sampled="open", processed="level") == "no significant difference"


def test_the_latency_that_is_compared_is_that_of_training() -> None:
    words: dict[verdict.Unit, verdict.Word] = {"sampled": "ahead", "processed": "ahead", "latency": "open"}
    _, reason = verdict.needed({unit: verdict.Comparison(word, None) for unit, word in words.items()})
    assert reason == "The comparison at equal latency in training is open."


def test_what_is_open_has_its_reason() -> None:
    two = verdict.compare(np.ones((2, 50)), MARGIN)
    assert two.word == "open" and "2 of 3 seeds" in two.why
    unequal = verdict.compare(np.ones((3, 50)), MARGIN, unequal="the single agent has spent 0.5")
    assert unequal.word == "open" and unequal.difference is not None and "0.5" in unequal.why
    assert verdict.compare(None, MARGIN).word == "open"
    assert verdict.matters(None) == "not asked" and verdict.matters(two) == "no significant difference by D"


def test_a_retrained_team_without_d_says_whether_d_matters() -> None:
    for gap, word in ((0.5, "D matters"), (0.0, "D does not matter"), (-0.5, "D does not matter")):
        rng = np.random.default_rng(0)
        gaps = (rng.random((5, 200)) < 0.5 + gap / 2).astype(float) - (rng.random((5, 200)) < 0.5 - gap / 2)
        assert verdict.matters(verdict.compare(gaps, MARGIN)) == word


# On synthetic outcomes with a known truth -----------------------------------------------------------


@pytest.mark.parametrize(("spread", "found"), [(0.0, 0.3), (0.05, 0.1)])
def test_a_team_that_is_no_better_is_seldom_called_needed(spread: float, found: float) -> None:
    trials = [choose_then_compare(Truth(gain=0.0, spread=spread), seed) for seed in range(200)]
    assert np.mean([t.word == "ahead" for t in trials]) <= 0.06  # 2.5 % promised, of 200: .055 is its 99.5 % point
    assert np.mean([t.word == "level" for t in trials]) >= found


def test_a_gain_at_the_margin_is_seldom_called_none() -> None:
    trials = [choose_then_compare(Truth(gain=MARGIN, spread=0.02), seed) for seed in range(200)]
    assert np.mean([t.word == "level" for t in trials]) <= 0.06


def test_a_large_gain_is_found_and_its_interval_covers_it() -> None:
    trials = [choose_then_compare(Truth(gain=0.25, spread=0.04), seed) for seed in range(200)]
    assert np.mean([t.word == "ahead" for t in trials]) >= 0.95
    assert np.mean([t.low <= 0.25 <= t.high for t in trials]) >= 0.9  # Wilson's 99 % bound of 95 % in 200 is .90


def test_choosing_on_the_problems_that_are_compared_on_would_flatter_the_single_agent() -> None:
    """The control of the control: with the choice and the comparison on one set of runs, the truth is missed."""
    fair = [choose_then_compare(Truth(0.0, 0.06, rivals=8, problems=100), seed) for seed in range(200)]
    flattered = [choose_then_compare(Truth(0.0, 0.06, rivals=8, problems=100), seed, same=True) for seed in range(200)]
    assert abs(np.mean([t.mean for t in fair])) < 0.01
    assert np.mean([t.mean for t in flattered]) < -0.02
