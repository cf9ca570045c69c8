"""What do the seams for several processes cost a run that has one? CPU seconds of two checkouts, in pairs.

::

    git worktree add ../before 95206c8                        # the last commit without chunks, ranks and workers
    python -m benchmarks seams --reference ../before [--starts 3] [--iterations 10]

Two processes run the quickstart, one with each checkout's source and both with this interpreter and its packages. They
take turns, iteration by iteration, and who is first changes: an iteration of both is a pair. The same seed gives both
the same episodes, so a pair does the same work; it is checked that they sampled the same tokens. The first iteration of
a start is not counted. Printed are mean and median of the pairs' ratios of CPU time with 95 % intervals (Student's t;
order statistics, which a busy machine's outliers do not move), and the mean of each start: how memory lies differs
from process to process, so starts should agree, too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import table
from marft_algos.extras.bench.statistics import student_quantile
from marft_envs.errors import ConfigError

HERE = Path(__file__).resolve().parents[2]
RESULT = HERE / "benchmarks" / "results" / "seams.json"
SIDE = """
import json, sys, time
from rich.console import Console
from marft_algos.config import presets
from marft_algos.config import settings as configs
from marft_algos.runs.loggers import Display
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer

class Turns(Display):
    def log(self, metrics):
        print(json.dumps([time.process_time() - self.since, metrics.get("tokens", 0)]), flush=True)
        if metrics["iteration"] < self.total:
            sys.stdin.readline()
        self.since = time.process_time()

folder, seed, iterations = json.loads(sys.argv[1])
quick = {"runs_dir": folder, "seed": seed, "iterations": iterations, "eval_episodes": 16, "eval_every": 0}
spare = {"save_every": 0, "record_episodes": 0}
trainer = Trainer(build(configs.build({**presets.get("quickstart"), **quick, **spare})))
with Turns(iterations, 0, "", Console(quiet=True)) as display:
    display.since = time.process_time()
    trainer.train(trainer.start(), display)
"""
"""What a process runs: it says what an iteration took, and waits for its turn."""


class Side:
    """A process with a checkout's source.

    Args:
        checkout: Its folder.
        folder: Of the run.
        seed: Of the run.
        iterations: Of the run.
    """

    def __init__(self, checkout: Path, folder: Path, seed: int, iterations: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
        words = [sys.executable, "-c", SIDE, json.dumps([str(folder), seed, iterations])]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._checkout = checkout
        self._process = subprocess.Popen(words, cwd=checkout, env=environment, **pipes)
        self.read()  # the evaluation of the untrained team

    def turn(self) -> tuple[float, int]:
        """Lets it run an iteration; returns CPU seconds and tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.read()

    def read(self) -> tuple[float, int]:
        """Waits for what it says.

        Raises:
            ConfigError: It has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"'{self._checkout}' does not train; what it printed stands above.")
        seconds, tokens = json.loads(line)
        return float(seconds), int(tokens)

    def end(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()


def start(ways: dict[str, Path], seed: int, iterations: int) -> list[dict[str, float]]:
    """Starts both, and lets them take turns; returns CPU seconds, pair by pair.

    Raises:
        ConfigError: One of them does not train, or they have not done the same.
    """
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        sides = {way: Side(path, Path(folder) / way, seed, iterations + 1) for way, path in ways.items()}
        try:
            for number in range(iterations + 1):
                order = list(ways) if (number + seed) % 2 == 0 else list(ways)[::-1]
                took = {way: sides[way].turn() for way in order}
                if len({tokens for _, tokens in took.values()}) > 1:
                    raise ConfigError(f"In iteration {number + 1} the two checkouts sampled other tokens: {took}")
                pairs.append({way: seconds for way, (seconds, _) in took.items()})
        finally:
            for side in sides.values():
                side.end()
    return pairs[1:]


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the mean cost in percent, and half of its 95 % interval; of one pair there is none."""
    costs = [100 * (ratio - 1) for ratio in ratios]
    if len(costs) < 2:
        return costs[0], math.nan
    half = student_quantile(0.975, len(costs) - 1) * statistics.stdev(costs) / math.sqrt(len(costs))
    return statistics.mean(costs), half


def middle(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median cost in percent, and the order statistics that hold the true one in 95 % of cases."""
    costs, n = sorted(100 * (ratio - 1) for ratio in ratios), len(ratios)
    below, outside = 0, 1 / 2**n  # the chance that no more than `below` pairs lie under the true median
    while outside + math.comb(n, below + 1) / 2**n <= 0.025:
        below += 1
        outside += math.comb(n, below) / 2**n
    return statistics.median(costs), costs[below], costs[-1 - below]


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="the checkout before")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=10, help="pairs of a start")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/seams.json")
    args = parser.parse_args()
    if not (args.reference / "marft_algos").is_dir():
        raise ConfigError(f"'{args.reference}' is no checkout of MARFT. Make one: git worktree add ../before 95206c8")
    ways = {"before": args.reference.resolve(), "now": HERE}
    starts = []
    for seed in range(args.starts):
        starts.append(start(ways, seed, args.iterations))
        mean, half = interval([pair["now"] / pair["before"] for pair in starts[-1]])
        print(f"start {seed + 1}: {mean:+.2f} ± {half:.2f} %", flush=True)
    pairs = [pair for group in starts for pair in group]
    mean, half = interval([pair["now"] / pair["before"] for pair in pairs])
    spent = [f"{statistics.mean(pair[way] for pair in pairs):.3f}" for way in ways]
    median, low, high = middle([pair["now"] / pair["before"] for pair in pairs])
    cells = [*spent, f"{mean:+.2f} ± {half:.2f}", f"{median:+.2f} [{low:+.2f}, {high:+.2f}]"]
    print(table(["before, CPU s an iteration", "now", "cost, %: mean", "median"], [cells]))
    print(f"{len(pairs)} pairs in {len(starts)} starts")
    if args.write:
        kept = [{way: [round(pair[way], 4) for pair in group] for way in ways} for group in starts]
        RESULT.write_text(json.dumps({"mean": [mean, half], "median": [median, low, high], "starts": kept}) + "\n")


if __name__ == "__main__":
    main()
