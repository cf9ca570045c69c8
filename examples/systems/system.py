"""What every file of this folder says of its system, and how such a system is trained beside its rivals.

A file registers its team as an environment and has a ``SYSTEM``; ``run.py`` trains one or all of them. Everything runs
offline on a CPU, with tasks that are made here.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import marft_algos
from marft_algos.config import settings as config
from marft_algos.config import values
from marft_algos.extras.bench.worker import majority
from marft_algos.runs.folder import RunFolder
from marft_algos.training.evaluate import HeldOut

LONGEST = 1000
"""Iterations at most of a run that ends at a budget."""


@dataclass(frozen=True)
class Test:
    """What a full run is asked in each seed: whether the trained team is ahead by so much in the last evaluation."""

    __test__ = False
    than: str = "untrained"
    """The other side: ``untrained``, ``imitated`` (after a warm start), ``single``, ``control`` or ``zero``."""
    by: float = 0.05
    """It has to be ahead by this; below 0: it may be behind by as much."""
    metric: str = "success"
    """Or a metric of the task."""
    less: bool = False
    """Whether less is better."""

    def __str__(self) -> str:
        sign, by = ("<=", -self.by) if self.less else (">=", self.by)
        return f"{self.metric} {sign} {'' if self.than == 'zero' else f'{self.than} '}{by:+g}"

    def holds(self, after: Mapping[str, float], other: Mapping[str, float]) -> bool:
        """Whether it holds of a team's metrics and those of what it is compared with."""
        gain = after[self.metric] - (0.0 if self.than == "zero" else other[self.metric])
        return (-gain if self.less else gain) >= self.by - 1e-9


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
    tests: tuple[Test, ...] = (Test(),)
    """What decides it: all of them hold, in every seed."""
    votes: int = 0
    """Sampled answers to each problem, of which the commonest counts for the metric ``voted``; 0: none."""

    def asked(self, who: str = "team") -> dict[str, Any]:
        """Returns the settings of the team, or of a rival of it: ``single`` or ``control``."""
        changed = {"single": self.single_settings, "control": self.control}.get(who, {})
        asked = {"preset": "toy", "env_kwargs": {}, "algo": self.algo, **self.settings, **changed}
        return asked | {"env": self.single if who == "single" else self.env}

    def digest(self, who: str = "team") -> str:
        """Returns eight digits that change with the settings."""
        return hashlib.sha256(json.dumps(self.asked(who), sort_keys=True).encode()).hexdigest()[:8]

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
        settings = self.asked(who) | {"seed": seed, "runs_dir": str(runs)}
        if processed:
            settings |= {"iterations": LONGEST, "processed_budget": processed}
        if iterations:
            short = {"iterations": iterations, "episodes_per_iteration": 8, "eval_episodes": 16, "eval_every": 0}
            settings |= {**short, "warm_start": min(settings.get("warm_start", 0), 1), "warm_episodes": 8}
        return marft_algos.train(settings.pop("preset"), **settings)


def evaluations(run: RunFolder) -> list[dict[str, float]]:
    """Returns what the evaluations of a run came to: success, and the task's metrics; a warm start's come first."""
    warm = values.read(run.config_file).get("start")
    lines = [line for line in run.metrics() if "eval/success" in line]
    named = [{"success": line["eval/success"], "n": line["eval/n"]} | _of_task(line) for line in lines]
    return (evaluations(RunFolder.open(Path(warm).parents[1]))[:1] if warm else []) + named


def _of_task(line: Mapping[str, Any]) -> dict[str, float]:
    return {key.removeprefix("eval/task/"): value for key, value in line.items() if key.startswith("eval/task/")}


def voted(run: RunFolder, votes: int) -> float:
    """Returns the share of held-out problems that the commonest of so many sampled answers solves."""
    held_out = HeldOut(config.load(run.config_file))
    held_out.load(run)
    answers = zip(*(held_out.sample(i) for i in range(votes)), strict=True)
    assert held_out.answer_key is not None
    chosen = [majority(each, held_out.answer_key) for each in answers]
    known = [score for score in chosen if score is not None]
    return sum(known) / len(known)


def processed(run: RunFolder) -> int:
    """Returns how many tokens a run's training has sampled or read."""
    return sum(int(line.get("tokens_processed", 0)) for line in run.metrics() if line.get("iteration"))


def main(system: System) -> None:
    """Trains one system: ``python examples/systems/NAME.py [ITERATIONS]``."""
    run = system.train(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    before, *_, after = evaluations(run)
    print(f"{system.title}: success {before['success']:.2f} -> {after['success']:.2f}\nreport: {run.report_file}")
