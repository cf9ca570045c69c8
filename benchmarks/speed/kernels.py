"""What each forward pass of our own is worth in a whole run: iterations with all of them, and without one.

::

    python -m benchmarks kernels [--runs quickstart long] [--repeats 6] [--iterations 4]
    python -m benchmarks kernels --runs smollm2 --only plain --repeats 2    # against transformers and peft alone

The passes are named by the environment variable MARFT_KERNELS: forward (scoring and training), decode, merge (adapters
added to the weights before a pass); attention is a GPU's, and prefix belongs to transformers' pass. Two runs are
measured: the quickstart, whose replies have ten tokens, and the same with 16 episodes of a random model of that size,
whose replies have 64 (long); ``smollm2``, if it is named, has two rounds of that team and 8 episodes. Learning rates
are so small that all variants do the same work.

Variants run in turn in one process, all from one seed. Counted are CPU seconds of one thread, of all iterations but the
first and the last (which evaluates); of each iteration the least of the repetitions, since other work on the machine
only adds to it. A ratio says how many times as long an iteration takes without the passes; the interval is that of 95 %
over repetitions drawn again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import shapes
from benchmarks.pack import RESULTS
from benchmarks.paired import publish
from marft_algos import Trainer, build
from marft_algos.config import presets
from marft_algos.config import settings as config
from marft_algos.models.switches import FUSED, FUSED_PASSES
from marft_algos.runs.loggers import Display

ALL = ",".join(FUSED_PASSES)
COMPARED = {
    "forward": ("decode,merge,prefix", ALL),
    "decode": ("forward,merge,prefix", ALL),
    "merge": ("forward,decode,prefix", ALL),
    "merge, with transformers' passes": ("prefix", "merge,prefix"),
    "all": ("prefix", ALL),
    "plain": ("none", ALL),
}
"""What is measured -> MARFT_KERNELS without it, and with it."""
SHAPE = shapes.tiny(96, 3)
RUNS: dict[str, dict[str, Any]] = {
    "quickstart": {},
    "long": {"episodes_per_iteration": 16, "max_new_tokens": 64},
    "smollm2": {"env_kwargs": {"levels": [0], "rounds": 2}, "episodes_per_iteration": 8, "warm_start": 0},
}


class Clock(Display):
    """Notes the CPU seconds of each iteration."""

    def __init__(self) -> None:
        super().__init__(0, 0, "")
        self.seconds: list[float] = []
        self._before = 0.0

    def log(self, metrics: Any) -> None:
        now = time.process_time()
        if metrics["iteration"] > 0:
            self.seconds.append(now - self._before)
        self._before = now

    def note(self, text: str) -> None:
        """Shows nothing."""

    def evaluated(self, iteration: int, now: Any, gain: Any, panel: str = "") -> None:
        """Shows nothing."""


def seconds(run: str, passes: str, settings: dict[str, Any]) -> list[float]:
    """Trains with these passes; returns the CPU seconds of each iteration that counts."""
    os.environ[FUSED] = passes
    preset = presets.get("smollm2" if run == "smollm2" else "quickstart")
    quiet = {"eval_every": 0, "save_every": 0, "record_every": 0, "eval_episodes": 8}
    algorithm = preset["algorithm"] | {"lr": 1e-6, "critic_lr": 1e-6}
    with tempfile.TemporaryDirectory() as folder:
        chosen = preset | quiet | settings | {"algorithm": algorithm, "runs_dir": folder}
        trainer = Trainer(build(config.build(chosen)))
        clock = Clock()
        trainer.train(trainer.start(), clock)
    return clock.seconds[1:-1]


def compare(without: np.ndarray, with_it: np.ndarray) -> dict[str, float]:
    """Returns the ratio of two variants' least times [repeats, iterations], with an interval over repetitions."""
    rng = np.random.default_rng(0)

    def least(times: np.ndarray, rows: np.ndarray) -> float:
        return float(times[rows].min(0).sum())

    rows = np.arange(len(without))
    drawn = [rng.choice(rows, (2, len(rows))) for _ in range(2000)]
    low, high = np.quantile([least(without, a) / least(with_it, b) for a, b in drawn], [0.025, 0.975])
    return {"ratio": least(without, rows) / least(with_it, rows), "least": float(low), "greatest": float(high)}


def main() -> None:
    """Prints a table for each run and writes kernels_RUN.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=["quickstart", "long"])
    parser.add_argument("--only", nargs="+", choices=COMPARED, default=list(COMPARED))
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    compared = {name: COMPARED[name] for name in args.only}
    variants = list(dict.fromkeys(passes for pair in compared.values() for passes in pair))
    warnings.simplefilter("ignore")  # of a model that is decoded by transformers: it is told to be
    with tempfile.TemporaryDirectory() as folder:
        model = str(shapes.save(Path(folder), SHAPE))
        for run in args.runs:
            settings = RUNS[run] | {"iterations": args.iterations} | ({"models": model} if run == "long" else {})
            times: dict[str, list[list[float]]] = {passes: [] for passes in variants}
            for repeat in range(args.repeats + 1):
                for passes in variants if repeat % 2 else variants[::-1]:
                    used = seconds(run, passes, settings)
                    if repeat:  # the first does not count
                        times[passes].append(used)
            arrays = {passes: np.array(used) for passes, used in times.items()}
            rows: list[dict[str, Any]] = []
            for name, (without, with_it) in compared.items():
                ratio = compare(arrays[without], arrays[with_it])
                least = {"least s with": float(arrays[with_it].min(0).mean()), "seconds": times[without]}
                rows.append({"run": run, "pass": name, "without / with": ratio} | least)
            publish(f"kernels_{run}", rows, ["run", "pass", "without / with", "least s with"], args.out)


if __name__ == "__main__":
    main()
