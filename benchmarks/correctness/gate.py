"""Does a gate for releases fail equal teams, and does it find worse ones? Simulated comparisons of two teams.

::

    python -m benchmarks gate

Each team has one outcome, 0 or 1, of every problem; A scores .9, the outcomes of A and B have the correlation given,
and the margin is 2 points. McNemar's is the exact test, one-sided at 5 %. "Four metrics": the gate is of the score, a
second share of another 200 outcomes, tokens, and the 95th percentile of seconds, both log-normal and correlated by .5.
In brackets: Wilson's 95 % intervals.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.runs import share, table
from marft_algos.evaluation import gates
from marft_algos.evaluation.changes import judged
from marft_algos.runs.intervals import wilson

A = 0.9


def simulate(n: int, b: float, related: float, times: int, *, many: bool = False, margin: float = 2) -> Counter[str]:
    """Counts the outcomes of gates, and under ``McNemar`` how often the exact test finds B worse."""
    rng, found = np.random.default_rng([n, round(1000 * b), round(100 * related), many]), Counter[str]()
    limits = gates.gates({"parsed": "-0.02", "tokens": "+0.1", "seconds/p95": "+0.1"} if many else {}, margin)
    for _ in range(times):
        sides = {"score": _outcomes(n, b, related, rng)}
        if many:
            sides |= {"parsed": _outcomes(n, b, related, rng)} | {x: _amounts(n, rng) for x in ("tokens", "seconds")}
        pairs = {("", name): (old[:, None].tolist(), new[:, None].tolist()) for name, (old, new) in sides.items()}
        changes = judged(pairs)
        found[gates.outcome(gates.checks(changes, limits))] += 1
        won, lost = changes[0].paired.won or 0, changes[0].paired.lost or 0
        found["McNemar"] += 20 * sum(math.comb(won + lost, k) for k in range(won + 1)) <= 2 ** (won + lost)
    return found


def _outcomes(n: int, b: float, related: float, rng: np.random.Generator) -> NDArray[np.float64]:
    both = A * b + related * math.sqrt(A * (1 - A) * b * (1 - b))
    drawn = rng.choice(4, n, p=[both, A - both, b - both, 1 - A - b + both])
    return np.stack([drawn <= 1, drawn % 2 == 0]).astype(np.float64)


def _amounts(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.exp((rng.normal(size=n) + rng.normal(size=(2, n))) / math.sqrt(2))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5000, help="simulated comparisons per row")
    times, rows = parser.parse_args().times, []
    cases = [(*case, False) for case in itertools.product((200, 400), (A, 0.88, 0.8), (0.0, 0.3, 0.6))]
    for n, b, related, many in [*cases, (24, A, 0.3, False), (200, A, 0.3, True), (200, 0.8, 0.3, True)]:
        found = simulate(n, b, related, times, many=many)
        counts = [share(wilson(found[word], times)) for word in ("passed", "undecided", "failed", "McNemar")]
        rows.append([str(n), f"{b:g}", f"{related:g}", "four metrics" if many else "the score", *counts])
    print(table(["n", "B scores", "correlation", "gate", "passed", "undecided", "failed", "McNemar's"], rows))


if __name__ == "__main__":
    main()
