"""Greedy scores beside sampled ones, and the differences that sampled ones make.

::

    python -m benchmarks sampled runs/shapes

A report's differences are of greedy outcomes. Here a problem's outcome is its mean over the k sampled answers of a run
(avg@k), for the rows that have them, and in a second table whether some answer of the k is right (pass@k). Differences
are paired by seed and problem as in the report, to the grid's baseline, or ``--baseline``, and its reference.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.runs import table
from marft_algos.extras.bench import tables
from marft_algos.extras.bench.folder import BenchFolder
from marft_envs.errors import ConfigError


def rows(
    runs: Sequence[Mapping[str, Any]], baseline: str, reference: str = "", score: Literal["avg", "pass"] = "avg"
) -> list[list[str]]:
    """The table of a score, its head first.

    Raises:
        ConfigError: No finished run has sampled answers, or there is no such row to compare with.
    """
    drawn = [r for r in runs if r["status"] == "done" and "sampled" in r]
    if not drawn:
        raise ConfigError("No run here has sampled answers. Put `samples = 8` into the grid, and run it again.")
    greedy = {(x.env, x.algorithm): x.mean for x in tables.lines(drawn, baseline, reference)}
    k = f"{score}@{drawn[0]['samples']}"
    head = ["environment", "algorithm", "greedy", k, f"{k} less {baseline}'s", f"{k} less {reference}'s"]
    body = [
        [
            x.env,
            x.algorithm,
            tables.score(greedy[x.env, x.algorithm]),
            tables.score(x.mean),
            tables.points(x.difference),
            tables.points(x.across),
        ]
        for x in tables.lines([{**r, "outcomes": _outcomes(r["sampled"], score)} for r in drawn], baseline, reference)
    ]
    return [row if reference else row[:-1] for row in (head, *body)]


def _outcomes(means: Sequence[float | None], score: str) -> list[float | None]:
    """Returns each problem's score, of its mean over k answers; None for an infrastructure error."""
    return [mean if mean is None or score == "avg" else float(mean > 0) for mean in means]


def main() -> int:
    """Prints the tables of one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the benchmark")
    parser.add_argument("--baseline", default="", help="differences are to this row; the grid's baseline by default")
    args = parser.parse_args()
    folder = BenchFolder(args.folder)
    to = args.baseline or folder.baseline, folder.described()["grid"].get("reference", "")
    averages, passed = rows(folder.rows(), *to), rows(folder.rows(), *to, score="pass")
    print(f"{table(averages[0], averages[1:])}\n\n{table(passed[0], passed[1:])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
