"""An algorithm of your own: advantage-weighted regression (arXiv 1910.00177) for teams, registered and trained.

Run it: ``python examples/custom_algorithm.py``. Or write it where the name of an algorithm is asked for:
``marft train examples.custom_algorithm:AWR --env relay-v0``.

Every turn of an episode is imitated, the more the better its team did: loss −exp((R − mean)/(σ·β))·log π(a).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from marft_algos.algorithms.base import Algorithm, UpdateConfig, register
from marft_algos.ranges import POSITIVE


@dataclass(frozen=True)
class AWRConfig(UpdateConfig):
    """Settings of AWR: what stands under a field is its help, what stands beside its type is its range."""

    beta: Annotated[float, POSITIVE] = 0.5
    """Temperature of the weights: towards 0 only the best episodes count."""
    cap: Annotated[float, POSITIVE] = 20.0
    """Largest weight of an episode; 20: the paper."""


@register("awr")
class AWR(Algorithm):
    """Advantage-weighted regression on whole replies; no critic, no ratio."""

    Config = AWRConfig
    level = "action"

    def credit(self, trajectories, estimates):
        """Hook 2: the weight of each turn, as its advantage."""
        scores = np.array([trajectory.score for trajectory in trajectories])
        standard = (scores - scores.mean()) / max(scores.std(), 1e-8)
        weights = np.minimum(np.exp(standard / self.config.beta), self.config.cap)
        for trajectory, weight in zip(trajectories, weights, strict=True):
            for turn in trajectory.transitions:
                estimates.advantages[turn] = np.full(1, weight, np.float32)
        return {"weight_max": float(weights.max())}

    def surrogate(self, logprobs, batch):
        """Hook 4: the loss of some turns of one policy, and numbers to log."""
        return -batch.mean(batch.advantages * batch.row_sum(logprobs)), {}


if __name__ == "__main__":
    import sys

    import marft_algos

    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    run = marft_algos.train("toy", algo="awr", env="relay-v0", iterations=iterations)
    print(f"success {run.metrics()[0]['eval/success']:.2f} -> {run.metrics()[-1]['eval/success']:.2f}")
    print(f"report: {run.report_file}")
