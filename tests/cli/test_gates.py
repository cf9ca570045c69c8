"""The statistics of a gate: levels by enumeration, honest outcomes at small n, Holm without copies, power."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from benchmarks.correctness.gate import simulate
from marft_algos.evaluation import gates
from marft_algos.evaluation.changes import Change, judged
from marft_algos.evaluation.differences import PairedDifference, Values, holm
from marft_envs.errors import ConfigError

MARGIN = {"score": "-0.02"}


def alone(numbers: Iterable[float]) -> list[list[float]]:
    return [[float(x)] for x in numbers]


def pairs(won: int, lost: int, n: int) -> tuple[Values, Values]:
    """Of n problems some that B alone solves, some that A alone solves, and the rest solved by both."""
    rest = n - won - lost
    return alone([0] * won + [1] * (lost + rest)), alone([1] * won + [0] * lost + [1] * rest)


def gate(limits: dict[str, str], **sides: tuple[Values, Values]) -> tuple[str, list[gates.Check]]:
    checks = gates.checks(judged({("", name): both for name, both in sides.items()}), limits)
    return gates.outcome(checks), checks


def probable(n: int, gain: float, loss: float) -> Iterator[tuple[int, int, float]]:
    """Every number of problems won and lost, and its probability where each is won and lost with these."""
    for won, lost in itertools.product(range(n + 1), repeat=2):
        if won + lost <= n:
            ways = math.comb(n, won) * math.comb(n - won, lost)
            yield won, lost, ways * gain**won * loss**lost * (1 - gain - loss) ** (n - won - lost)


@pytest.mark.parametrize("n", [3, 10, 24])
def test_levels_of_binary_pairs_by_enumeration(n: int) -> None:
    """An equal team fails with 5 % at most, one that is worse by the margin passes with little more than 5 %."""
    of = {(won, lost): PairedDifference.of(*pairs(won, lost, n)) for won, lost, _ in probable(n, 0.1, 0.1)}
    failed = {at for at, d in of.items() if d.reversed().p_above(0.0) <= 0.05}
    for each in (0.01, 0.05, 0.15, 0.3, 0.45):
        assert sum(p for won, lost, p in probable(n, each, each) if (won, lost) in failed) <= 0.05
    for margin, gain in itertools.product((0.02, 0.1, 0.15, 0.3), (0.0, 0.01, 0.1, 0.3)):
        passed = {at for at, d in of.items() if d.p_above(-margin) <= 0.05}
        assert sum(p for won, lost, p in probable(n, gain, gain + margin) if (won, lost) in passed) <= 0.055


@pytest.mark.parametrize(("won", "lost", "n"), [(0, 1, 1), (0, 4, 4), (0, 5, 5), (12, 24, 50), (3, 12, 200), (0, 0, 9)])
def test_whether_it_is_worse_is_mcnemars_exact_test(won: int, lost: int, n: int) -> None:
    flips = list(itertools.accumulate(math.comb(won + lost, k) for k in range(won + 1)))[-1] / 2 ** (won + lost)
    d = PairedDifference.of(*pairs(won, lost, n))
    assert d.reversed().p_above(0.0) == pytest.approx(max(flips, 0.0), abs=0.02)
    assert (d.reversed().p_above(0.0) <= 0.05) == (flips <= 0.05) == (-d.reversed().lower() <= 0)
    interval = d.interval()
    assert -1 <= interval.low <= d.mean <= interval.high <= 1 and interval.low < interval.high


def test_one_problem_or_none_that_differs_has_an_interval_that_admits_n() -> None:
    for n, least in ((1, 1.0), (24, 0.1), (200, 0.013)):
        d = PairedDifference.of(*pairs(0, 0, n))
        assert d.interval().high == -d.interval().low >= least
        assert gate(MARGIN, score=pairs(0, 0, n))[0] == ("passed" if n == 200 else "undecided")
    assert gate(MARGIN, score=pairs(0, 1, 1))[0] == gate(MARGIN, score=pairs(1, 0, 1))[0] == "undecided"
    same = alone([7] * 10), alone([7] * 10)
    assert gate({"tokens": "+1"}, tokens=same)[0] == "undecided" and gate({"tokens": "+3"}, tokens=same)[0] == "passed"
    nothing = alone([0] * 10), alone([0] * 10)
    assert PairedDifference.of(*nothing).share and math.isfinite(PairedDifference.of(*nothing).interval().low)
    small = alone([0.1] * 3), alone([0.2] * 3)
    assert gate({"tokens": "+0"}, tokens=small)[0] == "undecided", "equal differences of three problems"


def test_numbers_have_students_interval_over_problems() -> None:
    before, after = [[1.0, 3.0], [2.0], [6.0], [4.0]], [[2.0], [4.0, 6.0], [6.5], [5.0]]
    d, gaps = PairedDifference.of(before, after), np.array([0.0, 3.0, 0.5, 1.0])
    half = 3.182446 * gaps.std(ddof=1) / 2
    assert (d.mean, d.n, d.share) == (gaps.mean(), 4, False)
    assert (d.interval().low, d.interval().high) == pytest.approx((gaps.mean() - half, gaps.mean() + half), abs=1e-5)
    assert not PairedDifference.of(alone([0.5, 1, 0]), alone([1, 1, 0])).share
    many = PairedDifference.of([[1.0, 0.0]] * 30, [[1.0, 1.0]] * 15 + [[0.0, 1.0]] * 15)
    assert many.share and many.won is None and 0.1 < many.interval().low < many.mean == 0.25


def test_percentiles_are_of_episodes_and_need_tasks_beyond_them() -> None:
    rng = np.random.default_rng(0)
    sides = [[list(x) for x in np.exp(rng.normal(size=(n, 2)))] for n in (120, 120)]
    slower = [[3 * x for x in task] for task in sides[0]]
    d = PairedDifference.of(sides[0], sides[1], 95)
    assert d.before == np.percentile(np.concatenate(sides[0]), 95) and d.interval().low < d.mean < d.interval().high
    assert gate({"seconds/p95": "+0.5"}, seconds=(sides[0], slower))[0] == "failed"
    few = {name: both[:90] for name, both in (("a", sides[0]), ("b", slower))}
    outcome, checks = gate({"seconds/p95": "+99", "seconds/p50": "+99"}, seconds=(few["a"], few["b"]))
    assert outcome == "undecided" and [check.outcome for check in checks] == ["passed", "undecided"]
    assert math.isnan(checks[1].bound) and checks[1].row()[2] == "none"


def test_a_loss_that_is_smaller_than_the_margin_passes() -> None:
    assert gate({"score": "-0.05"}, score=pairs(0, 6, 400))[0] == "passed"
    assert gate({"score": "-0.01"}, score=pairs(0, 6, 400))[0] == "failed"


def test_failures_hold_for_all_that_is_asked_and_copies_count_once() -> None:
    worse, same = pairs(0, 5, 60), pairs(3, 3, 60)
    limits = {"score": "-0.01", "em": "-0.01"}
    assert gate(limits, score=worse, em=worse)[0] == "failed", "a copy is no second test"
    assert gate(limits, score=worse, em=same)[0] == "undecided", "5 of 5: p = .031, and .062 of two"
    assert gate(limits, score=pairs(0, 6, 60), em=same)[0] == "failed"
    other = worse[0], worse[1][::-1]
    assert PairedDifference.of(*worse) != PairedDifference.of(*other), (
        "the same numbers of other problems are another column"
    )
    ps = {PairedDifference.of(*pairs(0, k, 60)): p for k, p in enumerate((0.01, 0.03, 0.02))}
    assert list(holm(ps).values()) == [0.03, 0.04, 0.04]


def test_verdicts_are_of_the_primary_metric_and_of_the_others_together() -> None:
    lost, many = pairs(0, 6, 60), {f"m{i}": pairs(0, 6, 60) for i in range(3)}
    other = {f"m{i}": (side[0], [*side[1][i:], *side[1][:i]]) for i, side in enumerate(many.values())}
    for others, expected in ((many, "worse"), (other, "")):
        sides = {"score": lost, **others, "obeyed": lost, "calls/worker_0": lost, "error_rate/worker_0": lost}
        verdicts = {c.name: c.verdict for c in judged({("", name): both for name, both in sides.items()})}
        assert verdicts.pop("score") == "worse" and verdicts.pop("m0") == expected
        assert verdicts["calls/worker_0"] == "" and verdicts["obeyed"] == verdicts["error_rate/worker_0"] != "worse"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_is_named(odd: float) -> None:
    with pytest.raises(
        ConfigError, match=r"accuracy of B is (nan|inf) in problem 2 of 3, and no number in 1\. Expected finite"
    ):
        judged({("", "accuracy"): (alone([1, 1, 1]), alone([1, odd, 1]))})


def test_the_simulation_in_short() -> None:
    """`python -m benchmarks gate` has the figures of 5,000 comparisons."""
    for related in (0.0, 0.6):
        assert simulate(200, 0.9, related, 300)["failed"] <= 0.075 * 300, "5 %, and what 300 may show of it"
        worse = simulate(200, 0.8, related, 300)
        assert abs(worse["failed"] - worse["McNemar"]) <= 0.02 * 300
        assert simulate(400, 0.8, related, 200)["failed"] >= 0.95 * 200
    assert simulate(200, 0.88, 0.3, 300)["passed"] <= 0.075 * 300, "worse by the margin"
    assert simulate(120, 0.9, 0.3, 100, many=True)["failed"] <= 10


def test_a_gate_says_its_power() -> None:
    rng = np.random.default_rng(1)
    sides = alone(rng.random(200) < 0.9), alone(rng.random(200) < 0.9)
    d, (titles, row) = PairedDifference.of(*sides), gates.table(gate(MARGIN, score=sides)[1])
    shown = dict(zip(titles, row, strict=True))
    assert (shown["gate"], shown["n"], shown["r"]) == ("score", "200", f"{d.correlation:.2f}")
    assert shown["shows"] == f"{100 * 2.486 * d.error:.1f}" and shown["passes"].endswith(" %")
    plan = gates.power(sides[0], 5)
    assert [row[1] for row in plan] == ["r", "0.00", "0.50", "0.80"]
    foreseen = [float(row[2]) for row in plan[1:]]
    assert foreseen == sorted(foreseen, reverse=True)
    assert foreseen[0] == pytest.approx(100 * 2.486 * math.sqrt(0.18 / 200), rel=0.15)
    assert gates.power(sides[0], 50)[1][-1] == "100 %"
    four = [task * 4 for task in sides[0]]
    assert foreseen[0] > float(gates.power(four, 5)[1][2]), "an episode more or less is a quarter of a task"


def test_a_change_is_written_with_its_unit() -> None:
    change = Change("cost", PairedDifference.of(alone([0.001, 0.002, 0.003]), alone([0.002, 0.002, 0.005])))
    row = gates.Check(change, "+0.001", "undecided", 1.0, 1.0).row()
    assert row[:4] == ["cost", "+0.001000", "+0.002686", "+0.001"]
