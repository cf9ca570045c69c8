"""How long a token takes on its way from rewards to returns and advantages: CPU µs of one process.

::

    python -m benchmarks returns [--episodes 8 64 512 4096] [--tokens 600]

Episodes of two turns in a row with a value for each token; lengths of replies are log-normal around ``--tokens``.
A rank of a run computes this for its share of the episodes, and is told the others'. The least of three repetitions.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.runs import table
from marft_algos.functional import Discounts, chain

WAYS = {"γ = λ = 1": Discounts(), "γ = .99, λ = .95": Discounts(0.99, 0.99, 0.95, 0.95)}


def measure(episodes: int, tokens: float, discounts: Discounts) -> float:
    """Returns µs a token."""
    rng = np.random.default_rng(0)
    lengths = [max(1, round(x)) for x in rng.lognormal(np.log(tokens) - 0.125, 0.5, 2 * episodes)]
    values = [rng.normal(size=n).astype(np.float32) for n in lengths]
    after: list[tuple[int, ...]] = [() if k % 2 else (k + 1,) for k in range(2 * episodes)]
    seconds = []
    for _ in range(3):
        start = time.process_time()
        chain(values, lengths, [1.0] * len(after), after, discounts)
        seconds.append(time.process_time() - start)
    return 1e6 * min(seconds) / sum(lengths)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--tokens", type=float, default=600.0, help="mean of a turn's reply")
    args = parser.parse_args()
    rows = [[str(n), *(f"{measure(n, args.tokens, d):.3f}" for d in WAYS.values())] for n in args.episodes]
    print(table(["episodes", *WAYS], rows))


if __name__ == "__main__":
    main()
