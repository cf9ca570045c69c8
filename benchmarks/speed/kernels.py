"""What each forward pass of our own is worth in a whole run: the quickstart's iterations with all of them, and without.

::

    python -m benchmarks kernels [--repeats 7] [--iterations 5]

The passes are named by the environment variable MARFT_KERNELS: forward (scoring and training), decode, merge (adapters
added to the weights before a pass). Runs are made in turn in one process; CPU seconds of one thread, of all iterations
but the first and the last (which evaluates). A ratio says how many times as long an iteration takes without the passes:
the median of the repetitions, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.pack import RESULTS
from benchmarks.paired import publish, ratios
from marft_algos import Trainer, build
from marft_algos.config import presets
from marft_algos.config import settings as config
from marft_algos.models.weights import FUSED, FUSED_PASSES
from marft_algos.runs.loggers import Display

ALL = ",".join(FUSED_PASSES)
COMPARED = {
    "forward": ("decode,merge", ALL),
    "decode": ("forward,merge", ALL),
    "merge": ("forward,decode", ALL),
    "merge, where transformers' passes run": ("none", "merge"),
    "all": ("none", ALL),
}
"""What is measured -> MARFT_KERNELS without it, and with it."""


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


def seconds(passes: str, iterations: int, seed: int) -> float:
    """Trains the quickstart with these passes; returns the CPU seconds of an iteration."""
    os.environ[FUSED] = passes
    with tempfile.TemporaryDirectory() as folder:
        own = {"iterations": iterations, "eval_every": 0, "save_every": 0, "record_every": 0, "eval_episodes": 8}
        trainer = Trainer(build(config.build(presets.get("quickstart") | own | {"runs_dir": folder, "seed": seed})))
        clock = Clock()
        trainer.train(trainer.start(), clock)
    return sum(clock.seconds[1:-1]) / (iterations - 2)


def main() -> None:
    """Prints the table and writes kernels.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of a model that is decoded by transformers: it is told to be
    variants = list(dict.fromkeys(passes for pair in COMPARED.values() for passes in pair))
    times: dict[str, list[float]] = {passes: [] for passes in variants}
    for repeat in range(args.repeats + 1):
        for passes in variants if repeat % 2 else variants[::-1]:
            used = seconds(passes, args.iterations, seed=repeat)
            if repeat:  # the first does not count
                times[passes].append(used)
    rows = [
        {"pass": name, "without / with": ratios(times, without, with_it), "seconds with": min(times[with_it]),
         "seconds": {without: times[without], with_it: times[with_it]}}
        for name, (without, with_it) in COMPARED.items()
    ]  # fmt: skip
    publish("kernels", rows, ["pass", "without / with", "seconds with"], args.out)


if __name__ == "__main__":
    main()
