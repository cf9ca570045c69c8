"""Statistics of ``marft bench``: closed forms, brute force, and simulated benchmarks with a known effect."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.correctness.statistics import simulate
from marft_algos.extras.bench import statistics as st
from marft_algos.extras.bench import tables
from marft_algos.runs import intervals
from marft_algos.runs.intervals import Interval, wilson
from marft_envs.errors import ConfigError


def crossed(seeds: int, problems: int, sds: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    return (
        rng.normal(0, sds[0], (seeds, 1)) + rng.normal(0, sds[1], problems) + rng.normal(0, sds[2], (seeds, problems))
    )


@pytest.mark.parametrize(
    ("df", "t"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (10, 2.22814), (30, 2.04227), (1e9, 1.95996)]
)
def test_students_quantile_is_that_of_the_tables(df: float, t: float) -> None:
    assert st.student_quantile(0.975, df) == pytest.approx(t, rel=1e-5)


def test_students_distribution_with_one_and_two_degrees_of_freedom_is_the_closed_form() -> None:
    for t in (-3.0, -0.2, 0.0, 1.7, 20.0):
        assert st.student_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)
        assert st.student_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)


def test_the_variance_of_a_mean_is_that_of_simulated_means() -> None:
    rng, sds = np.random.default_rng(0), (0.3, 2.0, 1.0)
    panels = [crossed(5, 40, sds, rng) for _ in range(2000)]
    truth = sds[0] ** 2 / 5 + sds[1] ** 2 / 40 + sds[2] ** 2 / 200
    assert np.var([p.mean() for p in panels]) == pytest.approx(truth, rel=0.1)
    assert np.mean([st.spread(p).variance for p in panels]) == pytest.approx(truth, rel=0.1)


def test_degrees_of_freedom_follow_what_varies() -> None:
    rng = np.random.default_rng(0)
    assert st.spread(crossed(5, 200, (5.0, 0.1, 0.1), rng)).df == pytest.approx(4, abs=0.1)
    assert st.spread(crossed(5, 200, (0.0, 5.0, 0.1), rng)).df > 150


def test_an_interval_is_as_wide_as_students_and_holds_the_mean() -> None:
    panel = crossed(5, 100, (0.5, 1.0, 1.0), np.random.default_rng(3))
    found, part = st.estimate([panel]), st.spread(panel)
    width = 2 * st.student_quantile(0.975, part.df) * math.sqrt(part.variance)
    assert found.mean == pytest.approx(panel.mean())
    assert found.high - found.low == pytest.approx(width, rel=0.05)
    assert found.low < found.mean < found.high and found == st.estimate([panel])


def test_the_order_of_seeds_and_problems_changes_little() -> None:
    rng = np.random.default_rng(4)
    panel = crossed(5, 100, (0.5, 1.0, 1.0), rng)
    one, other = st.estimate([panel]), st.estimate([panel[rng.permutation(5)][:, rng.permutation(100)]])
    assert other.mean == pytest.approx(one.mean)
    assert other.high - other.low == pytest.approx(one.high - one.low, rel=0.1)


def test_pairing_on_problems_narrows_the_difference() -> None:
    rng = np.random.default_rng(5)
    hard = rng.normal(0, 2, 300)
    a, b = (hard + rng.normal(0, 0.3, (5, 300)) for _ in range(2))
    paired, alone = st.estimate([a - b]), st.estimate([a])
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)


def test_too_few_seeds_have_no_interval_but_a_mean() -> None:
    found = st.estimate([np.array([[1.0, 0.0], [1.0, 1.0]])])
    assert found.mean == 0.75 and math.isnan(found.low) and math.isnan(found.high)
    with pytest.raises(ConfigError, match="nothing to estimate"):
        st.estimate([])


def test_a_solved_panel_is_bounded_by_its_number_of_problems() -> None:
    found = st.estimate([np.ones((5, 500))])
    assert (found.mean, found.high) == (1.0, 1.0) and found.low == pytest.approx(wilson(500, 500).low)
    assert st.estimate([np.zeros((5, 500))]) == Interval(
        0.0, 0.0, pytest.approx(wilson(0, 500).high), 5, agreeing_seeds=5
    )
    same = st.estimate([np.zeros((5, 500))], difference=True)
    assert same.low == -same.high < 0
    returns = st.estimate([np.full((3, 50), 10.0)])
    assert returns.mean == 10 and math.isnan(returns.low) and math.isnan(returns.high), "shares alone have exceptions"


@pytest.mark.parametrize(
    ("panels", "difference", "said"),
    [
        ([np.ones((5, 500))], False, "1.000 [0.992, 1.000] over problems; 5 of 5 seeds [0.478, 1.000], n = 5"),
        ([np.zeros((3, 500))], True, "0.000 [-0.008, 0.008] over problems; 3 of 3 seeds [0.292, 1.000], n = 3"),
        ([np.tile([1.0, 0.0], (4, 50))], False, "] over problems; 4 of 4 seeds [0.398, 1.000], n = 4"),
        ([np.ones((5, 9)), np.ones((3, 9))], False, "] over problems; 3 of 3 seeds [0.292, 1.000], n = 8"),
        ([np.ones((5, 9)), np.eye(5, 9)], False, "], n = 10"),  # in the second environment seeds differ
        ([np.eye(3)], False, "], n = 3"),  # equal scores on other problems: another draw of seeds shows
    ],
)
def test_seeds_that_agree_say_how_far_they_bound_other_seeds(
    panels: Sequence[np.ndarray], difference: bool, said: str
) -> None:
    found = st.estimate(panels, difference=difference)
    assert str(found).endswith(said) and found.seeds in tables.points(found)
    assert ("over problems" in said) is ("over problems" in found.points())
    assert Interval(-1e-17, -1e-4, 0.0, 2).points() == "+0.0 points [-0.0, +0.0]", "rounding has no sign"


def test_runs_that_are_all_above_the_others_say_so_of_their_seeds() -> None:
    above = st.probability_of_improvement([np.ones((5, 50))], [np.zeros((4, 50))])
    assert tables.share(above) == "1.00 [1.00, 1.00] over problems; 4 of 4 seeds [0.398, 1.000]"
    split = st.probability_of_improvement([np.repeat([[1.0], [0.0], [1.0]], 50, 1)], [np.zeros((3, 50))])
    assert tables.share(split).endswith("1.00]") and "seeds" not in tables.share(split)


@pytest.mark.parametrize("seeds", [3, 5])
def test_seeds_that_agree_hold_the_share_of_seeds_that_solve(seeds: int) -> None:
    """Runs that solve all or nothing: of benchmarks whose seeds agree, the bounds over problems hold no p in between."""
    for p in (0.05, 0.3, 0.6, 0.97):
        solved = np.random.default_rng(seeds).binomial(seeds, p, size=4000)
        missed = by_problems = 0.0
        for k, share in ((0, 1 - p), (seeds, p)):  # nobody solves, or all do: of how many other seeds is that true?
            found, often = st.estimate([np.full((seeds, 300), k / seeds)]), float((solved == k).mean())
            missed += often * (share < float(found.seeds.split("[")[1].split(",")[0]))
            by_problems += often * (not found.low <= p <= found.high)
        assert missed <= 0.05 < (by_problems if p in (0.05, 0.6) else 1)


def test_an_interval_ends_where_no_score_can_be() -> None:
    panel = np.ones((5, 100))
    panel[0, 50:] = 0  # four seeds solve all, one solves half
    found = st.estimate([panel])
    assert found.mean == pytest.approx(0.9) and found.low < 0.8 and found.high == 1.0
    assert st.estimate([1 - panel]).low == 0.0
    assert st.estimate([panel - 1]).high < 0.1 and st.estimate([2 * panel[::-1] - panel - 1]).low >= -1.0  # differences
    assert st.estimate([10 * panel]).high > 10.0  # returns have no such end


def test_a_difference_that_is_never_below_0_may_be_by_another_draw() -> None:
    gap = np.zeros((5, 100))
    gap[0, :50] = 1  # one seed of five is better on half of the problems, no other outcome differs
    found = st.estimate([gap], difference=True)
    assert found.mean == pytest.approx(0.1) and found.low < -0.05
    every = st.estimate([np.ones((3, 20))], difference=True)
    assert 0 < every.low < every.high == 1.0 and st.estimate([-np.ones((3, 20))], difference=True).low == -1.0


def test_a_departure_of_shares_lies_between_their_ends() -> None:
    old = np.repeat([[0.0], [1.0], [0.0]], 50, axis=1)
    found = st.departure(np.ones((1, 50)), old)
    assert (found.low, found.high) == (-1.0, 1.0)
    assert st.departure(10 * np.ones((1, 50)), 10 * old).high > 10.0  # returns


def test_environments_count_alike_and_their_variances_add_up() -> None:
    rng = np.random.default_rng(6)
    a, b = crossed(5, 100, (0.5, 1.0, 1.0), rng), 3 + crossed(4, 50, (0.1, 1.0, 1.0), rng)
    found = st.estimate([a, b])
    assert found.mean == pytest.approx((a.mean() + b.mean()) / 2) and found.n == 9
    deviation = math.sqrt(st.spread(a).variance + st.spread(b).variance) / 2
    assert 1.9 * 2 * deviation < found.high - found.low < 3 * 2 * deviation


def test_iqm_is_the_mean_without_a_quarter_at_either_end() -> None:
    weights = np.full(8, 1 / 8)
    assert st.iqm(np.array([[9.0, 1, 2, 3, 4, 5, 6, 100]]), weights)[0] == pytest.approx(np.mean([3, 4, 5, 6]))
    assert st.iqm(np.array([[5.0, 1, 2, 3, 100]]), weights[:5])[0] == pytest.approx(np.mean([2, 3, 5]))


def test_the_bootstrap_draws_problems_once_for_all_seeds() -> None:
    """Seeds that agree on every problem are alike in every resample."""
    panel = np.tile(np.random.default_rng(7).normal(size=30), (4, 1))
    resampled = st.resample(panel)
    assert np.ptp(resampled, axis=1).max() == pytest.approx(0, abs=1e-12)
    assert resampled.std() == pytest.approx(panel[0].std() / math.sqrt(30), rel=0.1)


def test_probability_of_improvement_counts_pairs() -> None:
    a, b = np.array([[3.0, 3], [1, 1], [2, 2]]), np.array([[1.0, 1], [2, 2], [0, 0]])
    brute = np.mean([1.0 if x > y else 0.5 if x == y else 0.0 for x, y in itertools.product([3, 1, 2], [1, 2, 0])])
    found = st.probability_of_improvement([a], [b])
    assert found.mean == pytest.approx(brute) and found.low <= found.mean <= found.high
    assert st.probability_of_improvement([a], [a]).mean == 0.5


def test_a_profile_falls_from_all_runs_to_none() -> None:
    panel = np.array([[0.0, 0], [1, 0], [1, 1]])
    share = st.profile([panel], np.array([0.0, 0.5, 0.75, 1.01]))
    assert share[0] == pytest.approx([1, 2 / 3, 1 / 3, 0])
    assert (share[1] <= share[0]).all() and (share[0] <= share[2]).all()


def test_departure_is_the_two_sample_t_interval_on_scores() -> None:
    rng = np.random.default_rng(8)
    old, new = rng.normal(size=(5, 40)), rng.normal(size=(3, 40))
    found = st.departure(new, old)
    a, b = new.mean(1), old.mean(1)
    pooled = ((2 * a.var(ddof=1) + 4 * b.var(ddof=1)) / 6) ** 0.5
    assert found.high - found.mean == pytest.approx(2.446912 * pooled * (1 / 3 + 1 / 5) ** 0.5, rel=1e-5)
    assert math.isnan(st.departure(new, old[:2]).low)
    assert not st.departure(new[:1] - 5, old).high > 0, "one new run can be told to be worse"


def test_identical_runs_do_not_depart_and_a_single_problem_is_no_regression() -> None:
    solved = np.ones((5, 500))
    once = solved.copy()
    once[0, 0] = 0
    assert st.departure(solved, solved).mean == 0.0
    assert st.departure(once, solved).high > 0 > st.departure(once - 0.05, solved).high


@pytest.mark.parametrize("spread", [1.0, 4.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.0, 2.0))])
def test_coverage_and_power_on_simulated_benchmarks(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small here; ``python -m benchmarks statistics`` runs it at full size. Wilson's bounds allow for the number of draws."""
    monkeypatch.setattr(intervals, "RESAMPLES", 10)  # of the interval over problems, which is not looked at
    coverage, power, _ = simulate(spread, benchmarks=250)
    assert coverage.mean >= 0.92, coverage
    if spread <= 1:
        assert power.mean >= 0.85, power


def test_three_seeds_are_covered_where_an_interval_over_problems_is_not_enough() -> None:
    coverage, _, over_problems = simulate(2.9, benchmarks=60, seeds=3)
    assert coverage.mean >= 0.9 and over_problems.mean < 0.85, (coverage, over_problems)
