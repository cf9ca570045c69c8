"""Are the words of ``marft versus`` right as often as they promise? Simulated trials with a known truth.

::

    python -m benchmarks versus --trials 1000

A team and several single agents; one of these is chosen by its score on runs and problems of the sweep, and compared
on others. Outcomes are coins, whose chances a problem's difficulty and a run's luck move. All single agents are equally
good, so that noise alone decides the choice. Brackets: Wilson's 95 % intervals.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.runs import share, table
from marft_algos.extras.bench.versus import verdict
from marft_algos.runs.intervals import wilson

MARGIN = 0.05


@dataclass(frozen=True)
class Truth:
    """A population of problems and seeds in which the team is ``gain`` better than any single agent."""

    gain: float
    """Mean outcome, team minus single."""
    spread: float
    """Standard deviation of a run's score over seeds."""
    rivals: int = 4
    problems: int = 200
    seeds: int = 5
    level: float = 0.5
    """Mean outcome of a single agent."""

    def runs(self, mean: float, count: int, hard: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draws outcomes [count, problems]; chances are linear, so that their mean is ``mean``."""
        chances = mean + hard + self.spread * rng.standard_normal((count, 1))
        return (rng.random((count, len(hard))) < chances).astype(np.float64)


@dataclass(frozen=True)
class Simulated:
    """What one trial said."""

    word: verdict.Word
    mean: float
    low: float
    high: float


def choose_then_compare(truth: Truth, seed: int, same: bool = False) -> Simulated:
    """Simulates one trial.

    Args:
        truth: Of the populations.
        seed: Of the trial.
        same: Choose by the very runs that are compared: what must not be done.
    """
    rng = np.random.default_rng([seed, truth.rivals, truth.problems])
    hard, others = (rng.uniform(-0.15, 0.15, truth.problems) for _ in range(2))
    swept = [truth.runs(truth.level, 1, others, rng).mean() for _ in range(truth.rivals)]
    rivals = [truth.runs(truth.level, truth.seeds, hard, rng) for _ in range(truth.rivals)]
    chosen = int(np.argmax([runs.mean() for runs in rivals] if same else swept))
    team = truth.runs(truth.level + truth.gain, truth.seeds, hard, rng)
    comparison = verdict.compare(team - rivals[chosen], MARGIN)
    assert comparison.difference is not None
    difference = comparison.difference
    return Simulated(comparison.word, difference.mean, difference.low, difference.high)


def main() -> None:
    """Prints how often which word is said, and how often the interval covers the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    rows = []
    for gain in (0.0, MARGIN, 0.1, 0.25):
        for spread in (0.0, 0.02, 0.05):
            said = [choose_then_compare(Truth(gain, spread), seed) for seed in range(trials)]
            hits = {w: sum(t.word == w for t in said) for w in ("ahead", "level", "open")}
            covered = wilson(sum(t.low <= gain <= t.high for t in said), trials)
            shares = [f"{n / trials:.3f}" for n in hits.values()]
            rows.append([f"{100 * gain:g}", f"{100 * spread:g}", *shares, share(covered)])
    print(table(["gain, points", "seed sd, points", "ahead", "level", "open", "coverage"], rows))


if __name__ == "__main__":
    main()
