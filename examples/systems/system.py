"""What every file of this folder says of its system, and how such a system is trained beside its rivals.

A file registers its team as an environment and has a ``SYSTEM``; ``run.py`` trains one or all of them. Everything runs
offline on a CPU, with tasks that are made here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import marft_algos
from marft_algos.runs.folder import RunFolder

LONGEST = 1000
"""Iterations at most of a run that ends at a budget."""


@dataclass(frozen=True)
class System:
    """A system of the literature, as it runs here."""

    title: str
    """As its paper calls it, with the arXiv id."""
    env: str
    """Id of its team's environment."""
    algo: str
    """Its algorithm, or the nearest one here."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the run; the preset is ``toy`` unless they name another."""
    single: str = ""
    """Id of the same task for one agent; "" where one agent cannot be given it."""
    single_settings: Mapping[str, Any] = field(default_factory=dict)
    """What is set otherwise for the one agent."""
    control: Mapping[str, Any] = field(default_factory=dict)
    """What is set otherwise for the team without what the paper adds; empty where there is no such team."""
    claim: str = ""
    """What the paper says comes of it, in a sentence, as far as it can be asked here."""

    def train(
        self,
        iterations: int = 0,
        seed: int = 0,
        who: str = "team",
        runs: str | Path = "runs/systems",
        processed: int | None = None,
    ) -> RunFolder:
        """Trains the team, or a rival of it, and returns the run.

        Args:
            iterations: As many, and few episodes; 0: as the settings say.
            seed: Of the run.
            who: ``team``, ``single`` (one agent) or ``control`` (the team without what the paper adds).
            runs: Folder of the run.
            processed: Tokens, sampled and read, after which the run ends instead.
        """
        changed = {"single": self.single_settings, "control": self.control}.get(who, {})
        settings = {"preset": "toy", "env_kwargs": {}, "algo": self.algo, **self.settings, **changed}
        settings |= {"env": self.single if who == "single" else self.env, "seed": seed, "runs_dir": str(runs)}
        if processed:
            settings |= {"iterations": LONGEST, "processed_budget": processed}
        if iterations:
            short = {"iterations": iterations, "episodes_per_iteration": 8, "eval_episodes": 16, "eval_every": 0}
            settings |= {**short, "warm_start": min(settings.get("warm_start", 0), 1), "warm_episodes": 8}
        return marft_algos.train(settings.pop("preset"), **settings)


def scores(run: RunFolder) -> tuple[float, float]:
    """Returns what a run's team scored before and after training."""
    lines = [line["eval/success"] for line in run.metrics() if "eval/success" in line]
    return lines[0], lines[-1]


def processed(run: RunFolder) -> int:
    """Returns how many tokens a run's training has sampled or read."""
    return sum(int(line.get("tokens_processed", 0)) for line in run.metrics() if line.get("iteration"))


def main(system: System) -> None:
    """Trains one system: ``python examples/systems/NAME.py [ITERATIONS]``."""
    run = system.train(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    before, after = scores(run)
    print(f"{system.title}: success {before:.2f} -> {after:.2f}\nreport: {run.report_file}")
