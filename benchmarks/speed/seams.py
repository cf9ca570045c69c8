"""What do the seams for several processes cost a run that has one? CPU seconds of two checkouts, in pairs.

::

    git worktree add ../before 95206c8                        # the last commit without chunks, ranks and workers
    python -m benchmarks seams --reference ../before [--pairs 8] [--iterations 12]

Each pair is one ``marft train`` of the quickstart by either checkout, in turns (AB, BA, …), with this interpreter and
its packages, so that only the source differs. What counts is CPU time: of the iterations (``time_cpu`` of
metrics.jsonl) and of the whole process, start included. Printed are the means of the pairs' ratios with 95 %
intervals (Student's t), and whether both trained the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.correctness.same_weights import tensors
from benchmarks.runs import table
from marft_algos.bench.statistics import student_quantile
from marft_envs.errors import ConfigError

HERE = Path(__file__).resolve().parents[2]
RESULT = HERE / "benchmarks" / "results" / "seams.json"
SETTINGS = ("--preset", "quickstart", "--eval-episodes", "16", "--eval-every", "0", "--record-episodes", "0")


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a run."""

    iterations: float
    whole: float
    weights: dict[str, str]
    """Saved tensor -> hash of its bytes."""


def run(checkout: Path, folder: Path, iterations: int, seed: int) -> Cost:
    """Trains with a checkout's source.

    Raises:
        ConfigError: It does not run.
    """
    more = ("--iterations", f"{iterations}", "--seed", f"{seed}", "--runs-dir", f"{folder}", "--name", "run")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    words = [sys.executable, "-m", "marft_algos", "train", *SETTINGS, *more]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise ConfigError(f"'{checkout}' does not train:\n{done.stderr}")
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    spent = sum(line["time_cpu"] for line in map(json.loads, lines) if "score" in line)
    return Cost(spent, sum(after[:2]) - sum(before[:2]), tensors(folder / "run"))


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the mean cost in percent, and half of its 95 % interval; of one pair there is none."""
    costs = [100 * (ratio - 1) for ratio in ratios]
    if len(costs) < 2:
        return costs[0], math.nan
    half = student_quantile(0.975, len(costs) - 1) * statistics.stdev(costs) / math.sqrt(len(costs))
    return statistics.mean(costs), half


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="the checkout before")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/seams.json")
    args = parser.parse_args()
    if not (args.reference / "marft_algos").is_dir():
        raise ConfigError(f"'{args.reference}' is no checkout of MARFT. Make one: git worktree add ../before 95206c8")
    ways = {"before": args.reference.resolve(), "now": HERE}
    pairs: list[dict[str, Cost]] = []
    for number in range(args.pairs):
        order = list(ways) if number % 2 == 0 else list(ways)[::-1]
        with tempfile.TemporaryDirectory() as folder:
            pairs.append({way: run(ways[way], Path(folder) / way, args.iterations, number) for way in order})
    rows, kept = [], {}
    for name in ("iterations", "whole"):
        spent = {way: [getattr(pair[way], name) for pair in pairs] for way in ways}
        mean, half = interval([b / a for a, b in zip(spent["before"], spent["now"], strict=True)])
        rows.append([name, *(f"{statistics.mean(spent[way]):.2f}" for way in ways), f"{mean:+.1f} ± {half:.1f}"])
        kept[name] = {way: [round(x, 3) for x in spent[way]] for way in ways}
    print(table(["CPU seconds of", "before", "now", "cost, %"], rows))
    same = sum(pair["before"].weights == pair["now"].weights for pair in pairs)
    print(f"{len(pairs)} pairs of {args.iterations} iterations; equal weights in {same}")
    if args.write:
        RESULT.write_text(json.dumps({"equal_weights": same, "rows": rows, **kept}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
