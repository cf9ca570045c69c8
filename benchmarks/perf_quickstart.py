"""The quick start against the same run by the plain implementation (``benchmarks/plain.py``), in turn.

::

    python -m benchmarks perf_quickstart                       # all 80 iterations, then 500 held-out problems each
    python -m benchmarks perf_quickstart --iterations 3        # the cost only

``math-dual-v0``, level 0, with the preset ``quickstart``: the same problems, seeds and optimiser settings. Each
iteration is made by both, one after the other. CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import marft_envs
from benchmarks.paired import publish
from benchmarks.plain import PlainEngine, PlainMARFT
from marft_algos import config, presets, stats
from marft_algos.algos.marft import MARFT
from marft_algos.critic import Critics
from marft_algos.engines import NativeEngine
from marft_algos.engines.base import RolloutEngine
from marft_algos.policy import PolicySet
from marft_algos.rollout import Collector
from marft_algos.types import SamplingParams
from marft_algos.update import Learner

HELD_OUT = 1_000_000
"""First seed of the problems that nobody trains on."""


class Run:
    """One of the two ways to do it."""

    def __init__(self, plain: bool) -> None:
        self.settings = config.build(presets.get("quickstart"))
        team = {f"{policy}_0": f"{policy}_0" for policy in ("reasoner", "actor")}
        self.policies = PolicySet.build("embedded", team, device="cpu")
        self.learner: Any
        if plain:
            self.learner = PlainMARFT(self.policies, self.settings.algorithm)
            self.engine: RolloutEngine = PlainEngine(self.learner)
        else:
            algorithm = MARFT(self.settings.algorithm)
            self.learner = Learner(algorithm, self.policies, Critics(self.policies))
            self.engine = NativeEngine(self.policies)
        self.spent: list[tuple[float, float]] = []

    def play(self, seeds: Sequence[int], iteration: int, greedy: bool = False) -> list[Any]:
        """Plays an episode per seed."""
        vec = marft_envs.make_vec("math-dual-v0", len(seeds), levels=(0,), split="test" if greedy else "train")
        params = SamplingParams(self.settings.max_new_tokens, greedy=greedy)
        return Collector(vec, self.policies, self.engine, params).collect(list(seeds), iteration=iteration)

    def iterate(self, iteration: int) -> None:
        """One iteration; its rollout's and its update's CPU seconds are kept."""
        n, start = self.settings.episodes_per_iteration, time.process_time()
        played = self.play(range(iteration * n, (iteration + 1) * n), iteration)
        middle = time.process_time()
        self.learner.update(played, iteration)
        self.spent.append((middle - start, time.process_time() - middle))

    def score(self, problems: int) -> str:
        """Accuracy on held-out problems with its 95 % interval."""
        solved = sum(bool(t.success) for t in self.play(range(HELD_OUT, HELD_OUT + problems), -1, greedy=True))
        return str(stats.wilson(solved, problems))


def main() -> None:
    """Prints the table and writes perf_quickstart.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=80)
    parser.add_argument("--problems", type=int, default=500, help="held-out problems every 20 iterations; 0: none")
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = {"plain": Run(plain=True), "marft": Run(plain=False)}
    scores: dict[str, dict[str, str]] = {name: {} for name in runs}
    for iteration in range(args.iterations):
        for name, run in runs.items():
            if args.problems and iteration % 20 == 0:
                scores[name][f"after {iteration}"] = run.score(args.problems)
                print(f"{name} after {iteration}: {scores[name][f'after {iteration}']}", flush=True)
            run.iterate(iteration)
        if iteration % 10 == 9:
            shown = ", ".join(f"{name} {sum(map(sum, run.spent)):.0f} s" for name, run in runs.items())
            print(f"{iteration + 1} of {args.iterations} iterations: {shown}", flush=True)
    rows = []
    for name, run in runs.items():
        if args.problems:
            scores[name][f"after {args.iterations}"] = run.score(args.problems)
        rollout, update = (sum(part[i] for part in run.spent) for i in (0, 1))
        cost = {"rollout, s": rollout, "update, s": update, "all, s": rollout + update}
        rows.append({"run": name, **cost, **scores[name]})
    pairs = zip(runs["plain"].spent, runs["marft"].spent, strict=True)
    print(f"plain / marft, median over iterations: {statistics.median(sum(a) / sum(b) for a, b in pairs):.2f}")
    publish("perf_quickstart", rows, list(rows[0]), args.out)


if __name__ == "__main__":
    main()
