"""Do the intervals of ``marft bench`` hold what they promise? Simulated benchmarks with a known effect.

::

    python -m benchmarks statistics

Two algorithms, 5 or 3 seeds each, the same 500 problems. Solving a problem is a coin whose log-odds are the problem's
difficulty plus the algorithm's taste for the problem plus the seed's luck. Under "half the coins kept", an algorithm's
seeds toss one coin together on half of the problems, so that they know less than five. Fresh problems and fresh seeds
in every benchmark; the truth is the mean over infinitely many of both. Coverage: how often the 95 % interval of the
paired difference holds the true gain. Power: how often it excludes 0. "Over problems": how often an interval holds it
that is a paired bootstrap over problems, of the seeds' mean. In brackets: Wilson's 95 % intervals.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.runs import share, table
from marft_algos.extras.bench import statistics
from marft_algos.runs.intervals import Interval, paired, wilson

PROBLEMS = 500
SPREADS = {5: (0.0, 1.0, 2.0, 4.0), 3: (0.0, 1.4, 2.9)}
"""Seeds -> standard deviations from seed to seed of one algorithm's score, in points."""
GAIN = 6.0
"""Points."""
DIFFICULTY = 1.5
"""Standard deviation of the problems' log-odds."""
TASTE = 0.5
"""Standard deviation of an algorithm's log-odds on a problem, around the problem's own."""
KEPT = (0.0, 0.5)
"""Shares of problems on which all seeds of an algorithm toss one coin."""


@dataclass(frozen=True)
class Truth:
    """A population of problems and seeds, calibrated to have the gain and the spread in points."""

    base: float
    gain: float
    luck: float

    def outcomes(
        self, seeds: int, difficulty: NDArray[np.float64], better: bool, kept: float, rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """Outcomes [S, P] of one algorithm on these problems."""
        taste = rng.normal(0, TASTE, PROBLEMS)
        luck = rng.normal(0, self.luck, (seeds, 1))
        odds = difficulty + taste + luck + self.base + (self.gain if better else 0.0)
        coins = rng.random((seeds, PROBLEMS))
        one = rng.random(PROBLEMS) < kept
        coins[:, one] = coins[0, one]
        return (coins < _share(odds)).astype(np.float64)


def calibrated(spread: float, gain: float, level: float = 0.6) -> Truth:
    """The truth in which one algorithm scores ``level``, the other ``gain`` points more, and seeds spread that much."""
    luck = 0.0
    for _ in range(8):  # a fixed point: the spread in points is nearly proportional to that of the log-odds
        base = _root(level, luck)
        _, deviation = _score(base, luck or 0.1)
        luck = (luck or 0.1) * spread / 100 / deviation
    return Truth(base, _root(level + gain / 100, luck) - base, luck)


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def _score(base: float, luck: float) -> tuple[float, float]:
    """Mean score over problems and seeds, and its standard deviation over seeds, by Gauss and Hermite's rule."""
    odds = base + np.hypot(DIFFICULTY, TASTE) * _NODES[:, None] + luck * _NODES
    by_seed = _WEIGHTS @ _share(odds)
    mean = float(by_seed @ _WEIGHTS)
    return mean, float(np.sqrt((by_seed - mean) ** 2 @ _WEIGHTS))


def _root(target: float, luck: float) -> float:
    low, high = -5.0, 5.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _score(middle, luck)[0] < target else (low, middle)
    return 0.5 * (low + high)


def _share(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-odds))


def simulate(
    spread: float, benchmarks: int, kept: float = 0.0, seeds: int = 5, seed: int = 0
) -> tuple[Interval, Interval, Interval]:
    """Coverage and power of the paired difference, and coverage over problems only, each with Wilson's interval."""
    truth, rng = calibrated(spread, GAIN), np.random.default_rng([seed, int(10 * spread), int(10 * kept)])
    held = discoveries = over_problems = 0
    for _ in range(benchmarks):
        difficulty = rng.normal(0, DIFFICULTY, PROBLEMS)
        gap = truth.outcomes(seeds, difficulty, True, kept, rng) - truth.outcomes(seeds, difficulty, False, kept, rng)
        e = statistics.estimate([gap], difference=True)
        held += e.low <= GAIN / 100 <= e.high
        discoveries += e.low > 0
        narrow = paired(np.zeros(PROBLEMS).tolist(), gap.mean(0).tolist())
        over_problems += narrow.low <= GAIN / 100 <= narrow.high
    return wilson(held, benchmarks), wilson(discoveries, benchmarks), wilson(over_problems, benchmarks)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmarks", type=int, default=2000, help="simulated benchmarks per row")
    args = parser.parse_args()
    rows = []
    for seeds, spreads in SPREADS.items():
        for kept, spread in itertools.product(KEPT, spreads):
            shares = simulate(spread, args.benchmarks, kept, seeds)
            rows.append([str(seeds), f"{kept:g}", f"{spread:g}", *map(share, shares)])
    header = ["seeds", "coins kept", "seed sd, points", "coverage of the 95 % interval"]
    header += [f"power, gain of {GAIN:g} points", "coverage of one over problems"]
    print(table(header, rows))


if __name__ == "__main__":
    main()
