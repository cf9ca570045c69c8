"""Does every algorithm learn? The table of ``examples/configs/bench_toys.toml``.

::

    marft bench run examples/configs/bench_toys.toml --out runs/toys --jobs 2
    python -m benchmarks toys_matrix runs/toys

The share is (score - ceiling under Independent) / (optimum - that ceiling), of the final greedy score over 500
episodes. An algorithm learns a toy when the share is at least .8 in 4 of 5 seeds. Exits with 1 if one does not that is
not among the exceptions, which were written down with their reasons before the runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import table
from marft_algos.extras.bench.folder import BenchFolder

CEILING = {"relay-v0": 1 / 4, "xor-v0": 1 / 2, "route-v0": 7 / 16, "signal-v0": 1 / 4}
"""Best scores under Independent; tests/envs/test_toys.py computes them."""
ENOUGH, OF = 4, 5
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("ippo", "xor-v0"): "needs the team-mates' view: the words of left and right are worth something together only, "
    "and each one's critic sees its own bit"
}
"""(algorithm, environment) -> why it need not reach .8."""


def share(env: str, score: float) -> float:
    """How far the score got from the ceiling under Independent to the optimum (1)."""
    return (score - CEILING[env]) / (1.0 - CEILING[env])


def verdict(algorithm: str, env: str, rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], bool]:
    """The table's row, and whether it is as promised."""
    done = sorted((r for r in rows if r["status"] == "done"), key=lambda r: r["seed"])
    if not done:
        why = next(r["error"] for r in rows)
        return [f"`{algorithm}`", f"`{env}`", "–", "–", "–", why], all(r["status"] == "skipped" for r in rows)
    shares = [share(env, r["score"]) for r in done]
    good = sum(round(s, 9) >= 0.8 for s in shares)  # .85 is .8 of the way, whatever its last bit
    learnt = good >= ENOUGH
    note = EXCEPTIONS.get((algorithm, env), "")
    cells = [f"{good} of {len(done)}", " ".join(f"{s:.2f}" for s in shares), f"{max(r['seconds'] for r in done):.0f}"]
    missing = "" if len(done) >= OF else f"{len(done)} of {OF} seeds so far"
    remark = f"exception: {note}" if note else ("" if learnt else missing or "does not learn")
    return [f"`{algorithm}`", f"`{env}`", *cells, remark], learnt or bool(note)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the benchmark")
    args = parser.parse_args()
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in BenchFolder(args.folder).rows():
        if row["algorithm"] != "untrained" and row["env"] in CEILING:
            cells.setdefault((row["algorithm"], row["env"]), []).append(row)
    verdicts = [verdict(*pair, rows) for pair, rows in sorted(cells.items())]
    header = ["algorithm", "environment", f"at least .8 (wanted: {ENOUGH} of {OF})", "shares", "seconds, slowest", ""]
    print(table(header, [row for row, _ in verdicts]))
    return 0 if all(kept for _, kept in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
