"""Evaluates a team on its held-out panel in the course of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import RolloutEngine
from marft_algos.evaluation import records as rows
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.evaluation.play import Player, records
from marft_algos.models.chat import Renderer
from marft_algos.rollout.collector import OnProgress
from marft_algos.rollout.panel import summary
from marft_algos.runs import folder as folders
from marft_algos.runs.folder import UNTRAINED, PanelFacts, RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.runs.loggers import Display
from marft_algos.runs.progress import RunProgress
from marft_algos.training.parts import Parts
from marft_algos.training.policies import sampling
from marft_algos.training.session import Hindrances, advice
from marft_algos.types import Trajectory


def slots(config: TrainConfig) -> int:
    """Returns how many episodes are in flight at most at an evaluation."""
    return config.num_envs or max(config.episodes_per_iteration, config.engine_batch)


def player(config: TrainConfig, make_env: EnvFactory, renderer: Renderer, engine: RolloutEngine) -> Player:
    """Makes what plays as a run's settings say for evaluations: greedily, unless they say otherwise."""
    return Player(make_env, renderer, engine, sampling(config, evaluation=True), config.seed, slots(config), config)


def numbers(
    estimate: Interval, gain: Interval | None, facts: PanelFacts, counted: Mapping[str, float]
) -> dict[str, float]:
    """Returns what is logged of an evaluation: its score, the gain over the untrained team, and what was counted."""
    logged = {"success": estimate.mean, "low": estimate.low, "high": estimate.high, "n": float(estimate.n)}
    logged |= {"instances": float(facts.instances), "held_out": float(facts.held_out)}
    if gain is not None:
        logged |= {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}
    kept = ("tokens", "critical_path", "infra", "task_errors", "agent/", "task/")
    return logged | {k: v for k, v in counted.items() if k.startswith(kept)}


class Evaluator:
    """Plays the held-out panel in the course of a run, and says what is in the way of learning.

    Args:
        parts: Of the run.
        held_out: Plays the panel.
    """

    def __init__(self, parts: Parts, held_out: Callable[[OnProgress], list[Trajectory]]) -> None:
        self._config, self._apart, self._taught = parts.config, parts.problems.apart, parts.demonstrations is not None
        self._held_out, self.notes, self._advised = held_out, Hindrances(parts.demonstrations), False

    def evaluate(self, run: RunFolder, display: Display, progress: RunProgress) -> dict[str, float]:
        """Plays the panel, writes its episodes and notes the best score; returns its numbers."""

        def show(done: int, total: int, tokens: int) -> None:
            display.phase(f"evaluating: {done}/{total}")

        started, iteration = time.monotonic(), progress.iteration
        played = self._held_out(show)
        run.write_episodes("eval", iteration, [rows.row(t) for t in played])
        now = records(played)
        estimate = folders.estimate(now)
        first = iteration == UNTRAINED or not run.writes
        gain = None if first else folders.compare(run.evaluation(UNTRAINED), now)[2]
        facts = PanelFacts.of([record.task_id for record in now], held_out=self._apart)
        display.evaluated(iteration, estimate, gain, str(facts))
        self.notes.show(display, played)
        if estimate.mean > progress.best_score:
            progress.best_score, progress.best_iteration = estimate.mean, iteration
        counted = summary(played)
        untaught = self._taught and iteration == UNTRAINED  # others' replies will teach it
        if not self._advised and not untaught and (words := advice(counted, self._config)):
            self._advised = True  # once is enough
            display.note(words)
        measured = numbers(estimate, gain, facts, counted)
        return {f"eval/{k}": v for k, v in measured.items()} | {"time_eval": time.monotonic() - started}
