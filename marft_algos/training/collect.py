"""Collects what an iteration learns from: groups of episodes, played anew until the algorithm has those it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marft_algos import seeds
from marft_algos.algorithms import base as algorithms
from marft_algos.algorithms.base import Algorithm
from marft_algos.config.settings import TrainConfig
from marft_algos.credit.branches import Keep
from marft_algos.credit.diagnostics import Judged
from marft_algos.ranks.group import Group, lead
from marft_algos.rollout.chunks import Played, cut
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.panel import Problems, Variety, check, check_any, counts, settle, summary, whole
from marft_algos.training.rollouts import Progress, Rollouts
from marft_algos.types import Trajectory


@dataclass(frozen=True, slots=True)
class Collected:
    """Holds what an iteration has played."""

    trajectories: Sequence[Trajectory]
    """To learn from."""
    metrics: dict[str, Any]
    """Return and the like of the first panel, which no choice has touched, and counts of everything sampled."""
    judged: Sequence[Judged] = ()
    """What replays say about some turns."""

    @property
    def tokens(self) -> int:
        """Returns how many were sampled for it, whatever became of them."""
        return int(self.metrics.get("tokens_played", self.metrics["tokens"]))


class Episodes:
    """Collects episodes that the policies play.

    Args:
        config: The run's settings.
        algorithm: Says which groups it wants.
        problems: What is played.
        rollouts: Play it.
    """

    def __init__(self, config: TrainConfig, algorithm: Algorithm, problems: Problems, rollouts: Rollouts) -> None:
        self._config, self._algorithm, self._problems, self._rollouts = config, algorithm, problems, rollouts
        self._variety = Variety(algorithm.group_size)

    def collect(self, iteration: int, judge: int, on_progress: Progress, weights: Any = None) -> Collected:
        """Plays the iteration's groups; those that the algorithm does not want are replaced by fresh ones.

        Args:
            iteration: Problems and samples depend on it.
            judge: Turns of so many episodes are judged by replays.
            on_progress: Is told how far it is.
            weights: What is played with, see ``Rollouts.pin``.

        Raises:
            OutageError: Too many episodes were lost.
            TaskError: The task's code does not work.
        """
        config, algorithm = self._config, self._algorithm
        keep: Keep = "decisions" if judge else algorithm.rule.keep
        size = algorithm.group_size
        lacking = config.episodes_per_iteration // size
        played: list[Trajectory] = []
        kept: list[Trajectory] = []
        parts: list[Played] = []
        for refill in range(1 + algorithm.refills):
            panel = self._problems.train(config.seed, iteration, lacking, refill).repeated(size)
            chunks = cut(
                panel,
                self._rollouts.chunk,
                iteration,
                first=len(played),
                group_size=size,
                keep=keep,
                judged=judge,
                refill=refill,
            )
            done = self._rollouts.play(chunks, on_progress, weights)
            fresh = [trajectory for part in done for trajectory in part.trajectories]
            if not refill:
                check_any(fresh)
            fresh = settle(fresh)
            wanted = [t for t in fresh if any(t.number in part.kept for part in done)]
            played, kept, parts = played + fresh, kept + wanted, parts + done
            lacking -= len({t.group for t in wanted})
            if not lacking:
                break
        return self._counted(played, kept, parts, iteration)

    def held_out(self, on_progress: Progress) -> list[Trajectory]:
        """Plays the held-out panel.

        Args:
            on_progress: Is told how far it is.

        Raises:
            OutageError: Too many episodes were lost for a score; see the settings ``max_lost`` and ``on_task_error``.
            TaskError: The task's code does not work.
        """
        chunks = cut(self._problems.held_out, self._rollouts.chunk, seeds.EVALUATION)
        played = [t for part in self._rollouts.play(chunks, on_progress) for t in part.trajectories]
        check_any(played)
        check(played, self._config, "an evaluation")
        return settle(played)

    def _counted(
        self, played: Sequence[Trajectory], kept: Sequence[Trajectory], parts: Sequence[Played], iteration: int
    ) -> Collected:
        config, size = self._config, self._algorithm.group_size
        branches, lost = sum(part.branches for part in parts), [episode for part in parts for episode in part.lost]
        check(played, config, f"iteration {iteration + 1}", branches, lost)
        metrics: dict[str, Any] = {}
        if branches:
            replayed = sum(t.replayed_tokens for t in played)
            metrics = {"branches": branches, "branches_lost": len(lost), "tokens_replayed": replayed}
        metrics |= summary(played[: config.episodes_per_iteration]) | counts(played)
        metrics |= self._variety.measure(whole(played)) | {"episodes_played": len(played)}
        metrics["tokens_played"] = sum(trajectory.tokens for trajectory in played)
        metrics["tokens_processed"] = sum(trajectory.processed for trajectory in played)
        metrics["latency_played"] = sum(trajectory.critical_path for trajectory in played)
        if isinstance(self._algorithm.config, algorithms.GroupConfig):
            metrics |= {"groups": len(kept) // size, "groups_dropped": (len(played) - len(kept)) // size}
        return Collected(kept, metrics, [judged for part in parts for judged in part.judged])


def demonstrated(
    config: TrainConfig,
    problems: Problems,
    demonstrations: Demonstrations,
    iteration: int,
    version: int,
    group: Group,
) -> Collected:
    """Collects demonstrations, which rank 0 draws for all.

    Args:
        config: The run's settings.
        problems: What is demonstrated.
        demonstrations: Where they come from.
        iteration: Problems depend on it.
        version: Of the policies that learn from them, as if they had said it.
        group: The ranks.
    """

    def draw() -> tuple[Sequence[Trajectory], dict[str, float]]:
        panel = problems.train(config.seed, iteration, config.episodes_per_iteration)
        return demonstrations.draw(panel, iteration, version), demonstrations.metrics()

    drawn, metrics = lead(group, draw)
    return Collected(drawn, summary(drawn) | metrics)
