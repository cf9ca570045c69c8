"""What papers claim, beside what five seeds of the embedded model come to; claims.toml has the claims.

marft bench run examples/configs/bench_paper.toml --out runs/paper
python examples/systems/claims.py runs/paper             # prints the table
python examples/systems/claims.py runs/paper --write     # and puts it into the page

Differences of scores are paired by seed and problem, with the two-level interval of ``marft bench``. Peaks, falls,
drops and collapses are a number a run: their differences are paired by seed, with Student's interval. Where all seeds
agree it is Wilson's, of the share of seeds that may not.
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.runs import points, table
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.statistics import estimate, student_quantile
from marft_algos.runs.intervals import Interval, paired

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/systems.md"
MARKS = ("<!-- claims: python examples/systems/claims.py runs/paper --write -->", "<!-- end of claims -->")
HEADER = ("claim", "the paper", "decided by", "here", "difference, points", "comes out")
COLLAPSE = 0.1
Curves = Mapping[str, Sequence[np.ndarray]]
"""Label of the grid -> the outcomes of each seed, [evaluations, problems]."""
METRICS: dict[str, Callable[[np.ndarray], float]] = {
    "peak": lambda scores: float(scores.max()),
    "fall": lambda scores: float(scores.max() - scores[-1]),
    "drop": lambda scores: max(0.0, float((scores[:-1] - scores[1:]).max())),
    "collapse": lambda scores: float(scores.max() - scores[-1] >= COLLAPSE - 1e-9),
}
"""Of a run's scores over its evaluations."""


def curves(folder: Path) -> Curves:
    """Reads every run's evaluations, by label and in the order of seeds."""
    found: dict[str, list[np.ndarray]] = {}
    for row in sorted(BenchFolder(folder).rows(), key=lambda row: int(row["seed"])):
        found.setdefault(row["env"], []).append(np.array([p["outcomes"] for p in row["curve"]], np.float64))
    return found


def side(claim: Mapping[str, Any], runs: Curves, which: str) -> np.ndarray:
    """Returns one side of a claim, [seeds, problems], or [seeds, 1] of a metric of whole runs; labels are averaged."""
    when = claim.get("when", (-1, -1))[which == "less"]
    metric = METRICS.get(claim.get("metric", "score"))
    return np.mean([[[metric(run.mean(1))] if metric else run[when] for run in runs[env]] for env in claim[which]], 0)


def difference(one: np.ndarray, other: np.ndarray) -> Interval:
    """Returns the mean of one side less the other, [seeds, problems] or [seeds, 1], and its interval."""
    if (gains := one - other).shape[1] > 1:
        return estimate([gains], difference=True)
    if not np.ptp(gains):
        return paired(other[:, 0], one[:, 0])
    mean, half = float(gains.mean()), float(gains.std(ddof=1)) / math.sqrt(len(gains))
    half *= student_quantile(0.975, len(gains) - 1)
    return Interval(mean, mean - half, mean + half, len(gains))


def decided(claim: Mapping[str, Any]) -> tuple[str, Callable[[Interval], str]]:
    """Returns what a claim asks of its interval, in words and as a verdict."""
    if (bound := claim.get("above")) is not None:
        yes, no = (lambda i: i.low > bound), (lambda i: i.high <= bound)
        said = f"above {100 * bound:g}"
    elif (bound := claim.get("within")) is not None:
        yes, no = (lambda i: -bound < i.low and i.high < bound), (lambda i: i.low >= bound or i.high <= -bound)
        said = f"within ±{100 * bound:g}"
    else:
        bound = float(claim["apart"])
        yes, no = (lambda i: i.low > bound or i.high < -bound), (lambda i: -bound <= i.low and i.high <= bound)
        said = f"beyond ±{100 * bound:g}"
    return said, lambda found: "yes" if yes(found) else "no" if no(found) else "cannot tell"


def line(claim: Mapping[str, Any], runs: Curves) -> list[str]:
    """Returns a claim's row."""
    one, other = (side(claim, runs, which) for which in ("of", "less"))
    found, (asks, verdict) = difference(one, other), decided(claim)
    here = f"{claim.get('metric', 'score')} {one.mean():.3f}, {other.mean():.3f}"
    comes_out = f"{verdict(found)} {claim.get('length', '')}".rstrip()
    return [claim["says"], claim["paper"], asks, here, points(found).partition(";")[0], comes_out]


def text(folder: Path) -> str:
    """Makes the table."""
    claims = tomllib.loads((HERE / "claims.toml").read_text(encoding="utf-8"))["claim"]
    return table(HEADER, [line(claim, curves(folder)) for claim in claims])


def main() -> None:
    """Prints the table, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the benchmark")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    args = parser.parse_args()
    if args.write:
        head, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
        PAGE.write_text(f"{head}{MARKS[0]}\n{text(args.folder)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")
    else:
        print(text(args.folder))


if __name__ == "__main__":
    main()
