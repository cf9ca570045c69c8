"""Collects what iterations learn from: groups of episodes, played anew until the algorithm has those it wants.

With staleness s, iteration i learns from episodes of version max(0, i − s): the first s + 1 iterations are played by
the untrained team, and after update i the team of version i + 1 plays iteration i + 1 + s. Nothing is played that
nobody would learn from. What waits is in the checkpoint. Where others play than learn, they play meanwhile, by the same
plan: what is learnt does not depend on who is faster.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from marft_algos import seeds
from marft_algos.algorithms.base import GroupConfig
from marft_algos.config.settings import TrainConfig
from marft_algos.credit import diagnostics
from marft_algos.ranks.group import RankGroup, lead
from marft_algos.rollout import episodes as batches
from marft_algos.rollout.collector import OnProgress
from marft_algos.rollout.curriculum import Evidence, Progress, progressed, tell, with_profiles
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.episodes import Played, Prompts, summary, whole
from marft_algos.runs.progress import RunProgress
from marft_algos.training import packing
from marft_algos.training.parts import Parts
from marft_algos.training.rollouts import RolloutBackend
from marft_algos.training.session import Variety
from marft_algos.types import Estimates, Keep, Trajectory
from marft_envs.errors import DataError, reading


@dataclass(frozen=True, slots=True)
class Collected:
    """Holds what an iteration has played."""

    trajectories: Sequence[Trajectory]
    """To learn from."""
    metrics: dict[str, Any]
    """Return and the like of the first prompts, which no choice has touched, and counts of everything sampled."""
    judged: Sequence[diagnostics.Judged] = ()
    """What replays say about some turns."""
    evidence: Evidence = field(default_factory=dict)
    """Of the curriculum, these episodes included."""
    progress: Progress = field(default_factory=dict)
    """Of what the task follows, these episodes included."""

    @property
    def tokens(self) -> int:
        """Returns how many were sampled for it, whatever became of them."""
        return int(self.metrics.get("tokens_played", self.metrics["tokens"]))

    def learnt_from(self, config: TrainConfig, iteration: int) -> list[Trajectory]:
        """Leaves out episodes lost to infrastructure errors, which say nothing about the replies before."""
        trajectories = whole(self.trajectories)
        if not config.permute_rewards:
            return trajectories
        return batches.permuted(trajectories, seeds.generator(seeds.permuted_rewards(config.seed, iteration)))

    def judge(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Returns what replays say about the update's advantages, where there were some."""
        return diagnostics.metrics(self.judged, trajectories, estimates) if self.judged else {}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is played of an iteration, and by which version of the policies."""

    iteration: int
    version: int
    played: Future[Collected]

    @property
    def collected(self) -> Collected | None:
        """Returns what was played, once it is all there."""
        return self.played.result() if self.played.done() and self.played.exception() is None else None


class RolloutQueue:
    """Plays iterations, and holds what is played and not yet learnt from.

    Args:
        parts: Of the run: its algorithm says which groups it wants, its problems are played, and its demonstrations, if
            it has some, are learnt from instead.
        config: Says how many iterations may wait beside the one that is learnt from next, and what ends the run.
        backend: Plays.
        group: The ranks.
    """

    def __init__(self, parts: Parts, config: TrainConfig, backend: RolloutBackend, group: RankGroup) -> None:
        self._algorithm, self._problems, self._demonstrations = parts.algorithm, parts.problems, parts.demonstrations
        self._config, self._backend, self._group = config, backend, group
        self._curriculum, self._followed = parts.curriculum, parts.followed
        self.evidence: Evidence = {}
        """Of the curriculum, after the iterations that were learnt from."""
        self.progress: Progress = {}
        """Of what the task follows, likewise."""
        self._variety = Variety(self._algorithm.group_size)
        self._queue = deque[Waiting]()
        self._elsewhere = ThreadPoolExecutor(1, "marft-elsewhere")  # where others play than learn
        self.waited = 0.0
        """Seconds for which :meth:`take` has waited."""

    def fill(self, progress: RunProgress, version: int, on_progress: OnProgress) -> None:
        """Plays the iterations that lack, in order, with the policies as they are; or lets others begin to.

        Args:
            progress: Of the learner.
            version: Of the policies.
            on_progress: Receives the progress, unless the learner goes on meanwhile.

        Raises:
            InfrastructureError: Too many episodes were lost.
            TaskError: The task's code does not work.
        """
        while self._lacks(progress):
            iteration, backend = progress.iteration + len(self._queue), self._backend
            collect = partial(self._collect, iteration, self._queue[-1].played if self._queue else None)
            played = Future[Collected]()  # of ranks other than the first: that one sends what others play to all
            if self._demonstrations is not None:
                played.set_result(self._demonstrated(self._demonstrations, iteration, version))
            elif not backend.apart:
                played.set_result(collect(on_progress))
            elif self._group.rank == 0:
                shown = _unseen if self._config.staleness else on_progress
                played = self._elsewhere.submit(collect, shown, backend.pin())
            self._queue.append(Waiting(iteration, version, played))

    def take(self) -> Collected:
        """Returns what the next iteration learns from, once it is there; it waits no longer."""
        started, played = time.monotonic(), self._queue[0].played
        collected = lead(self._group, played.result) if self._backend.apart else played.result()
        self.waited += time.monotonic() - started
        self._queue.popleft()
        return collected

    def close(self) -> None:
        """Lets nothing more begin."""
        self._elsewhere.shutdown(wait=False)

    def held_out(self, on_progress: OnProgress) -> list[Trajectory]:
        """Plays the held-out evaluation set.

        Args:
            on_progress: Receives the progress.

        Raises:
            InfrastructureError: Too many episodes were lost for a score; see ``max_error_rate`` and ``on_task_error``.
            TaskError: The task's code does not work.
        """
        if self._backend.apart:
            return lead(self._group, partial(self._held_out, on_progress))
        return self._held_out(on_progress)

    def _held_out(self, on_progress: OnProgress) -> list[Trajectory]:
        prompts = with_profiles(self._problems.held_out, [self._algorithm.profiles(None)])
        chunks = batches.cut(prompts, self._backend.chunk, seeds.EVALUATION)
        played = [t for part in self._backend.play(chunks, on_progress) for t in part.trajectories]
        batches.check_any(played)
        batches.check(played, self._config, "an evaluation")
        return batches.settle(played)

    def _collect(
        self, iteration: int, before: Future[Collected] | None, on_progress: OnProgress, weights: Any = None
    ) -> Collected:
        """Plays the iteration's groups; those that the algorithm does not want are replaced by fresh ones.

        Args:
            iteration: Problems and samples depend on it.
            before: The iteration before it, if that has not been learnt from.
            on_progress: Receives the progress.
            weights: What is played with, see ``RolloutBackend.pin``.

        Raises:
            InfrastructureError: Too many episodes were lost.
            TaskError: The task's code does not work.
        """
        config, algorithm = self._config, self._algorithm
        known = self if before is None else before.result()
        evidence, progress = known.evidence, known.progress
        judge = config.credit_diagnostics if due(iteration + 1, config.record_every) else 0
        keep: Keep = "decisions" if judge else algorithm.rule.keep
        size = algorithm.group_size
        lacking = config.episodes_per_iteration // size
        played: list[Trajectory] = []
        kept: list[Trajectory] = []
        parts: list[Played] = []
        for refill in range(1 + algorithm.refills):
            prompts = self._prompts(evidence, iteration, lacking, refill).repeated(size)
            if self._followed:
                prompts = tell(prompts, progress)
            prompts = with_profiles(prompts, [algorithm.profiles(i) for i in range(size)])
            chunks = batches.cut(
                prompts,
                self._backend.chunk,
                iteration,
                first=len(played),
                group_size=size,
                keep=keep,
                judged=judge,
                refill=refill,
            )
            done = self._backend.play(chunks, on_progress, weights)
            fresh = [trajectory for part in done for trajectory in part.trajectories]
            if not refill:
                batches.check_any(fresh)
            fresh = batches.settle(fresh)
            wanted = [t for t in fresh if any(t.number in part.kept for part in done)]
            played, kept, parts = played + fresh, kept + wanted, parts + done
            lacking -= len({t.group for t in wanted})
            if not lacking:
                break
        collected = self._counted(played, kept, parts, iteration)
        collected = replace(collected, progress=progressed(progress, self._followed, played))
        if self._curriculum is None:
            return collected
        collected.metrics["curriculum/rate"] = self._curriculum.rate(evidence, played)
        return replace(collected, evidence=self._curriculum.after(evidence, played))

    def _prompts(self, evidence: Evidence, iteration: int, n: int, refill: int) -> Prompts:
        """Draws n starts; where ranks play, the first one does for all."""
        config = self._config
        if self._curriculum is None:
            return self._problems.train(config.seed, iteration, n, refill)
        if not self._backend.apart:
            seeds.start_global(seeds.tasks(config.seed, iteration, refill))
        draw = partial(self._curriculum.draw, evidence, config.seed, iteration, n, refill)
        return draw() if self._backend.apart else lead(self._group, draw)

    def _counted(
        self, played: Sequence[Trajectory], kept: Sequence[Trajectory], parts: Sequence[Played], iteration: int
    ) -> Collected:
        config, size = self._config, self._algorithm.group_size
        branches, lost = sum(part.branches for part in parts), [episode for part in parts for episode in part.lost]
        batches.check(played, config, f"iteration {iteration + 1}", branches, lost)
        metrics: dict[str, Any] = {}
        if branches:
            replayed = sum(t.replayed_tokens for t in played)
            metrics = {"branches": branches, "branches_lost": len(lost), "tokens_replayed": replayed}
        metrics |= summary(played[: config.episodes_per_iteration]) | batches.counts(played)
        metrics |= self._variety.measure(whole(played)) | {"episodes_played": len(played)}
        metrics["tokens_played"] = sum(trajectory.tokens for trajectory in played)
        metrics["tokens_processed"] = sum(trajectory.processed for trajectory in played)
        metrics["latency_played"] = sum(trajectory.critical_path for trajectory in played)
        if isinstance(self._algorithm.config, GroupConfig):
            metrics |= {"groups": len(kept) // size, "groups_dropped": (len(played) - len(kept)) // size}
        return Collected(kept, metrics, [judged for part in parts for judged in part.judged])

    def _demonstrated(self, demonstrations: Demonstrations, iteration: int, version: int) -> Collected:
        """Collects demonstrations, which rank 0 draws for all, as if the policies of this version had said them."""
        config = self._config

        def draw() -> tuple[Sequence[Trajectory], dict[str, float]]:
            prompts = self._problems.train(config.seed, iteration, config.episodes_per_iteration)
            return demonstrations.draw(prompts, iteration, version), demonstrations.metrics()

        drawn, metrics = lead(self._group, draw)
        return Collected(drawn, summary(drawn) | metrics)

    def _lacks(self, progress: RunProgress) -> bool:
        if not self._queue:
            return True
        played = replace(progress, iteration=progress.iteration + len(self._queue))
        for waiting in self._queue:
            if (collected := waiting.collected) is not None:
                played.spend(collected.metrics)
        return len(self._queue) <= self._config.staleness and not played.done(self._config)

    def state_dict(self) -> list[Any]:
        """Returns what waits, as plain values; what is being played is waited for, up to what has failed."""
        rows: list[Any] = []
        for waiting in self._queue:
            if waiting.played.exception() is not None:  # waits; the same will be raised where it is taken
                break
            collected = waiting.played.result()
            packed = {name: packing.pack(getattr(collected, name)) for name in _PACKED}
            known = {"evidence": dict(collected.evidence), "progress": dict(collected.progress)}
            rows.append({"iteration": waiting.iteration, "version": waiting.version, **packed, **known})
        return rows

    def load_state_dict(self, state: Sequence[Any], progress: RunProgress) -> None:
        """Restores ``state_dict``, unless some of it is too old for the run's present staleness: then all is replayed.

        Raises:
            DataError: It is no such state, or of another iteration.
        """
        with reading("The checkpoint's waiting episodes cannot be read", "Begin another run.", DataError):
            queue = [Waiting(row["iteration"], row["version"], _done(_unpacked(row))) for row in state]
        if [waiting.iteration for waiting in queue] != [progress.iteration + i for i in range(len(queue))]:
            raise DataError(
                f"The checkpoint of iteration {progress.iteration} holds episodes of others: {queue[0].iteration} and "
                "later. Move it away, and the same command takes the one before."
            )
        ages = [progress.version + i - waiting.version for i, waiting in enumerate(queue)]
        self._queue = deque(queue if max(ages, default=0) <= self._config.staleness else [])


_PACKED = ("trajectories", "metrics", "judged")
"""Parts of what was collected that hold arrays and objects."""


def _unpacked(row: Mapping[str, Any]) -> Collected:
    packed = {name: packing.unpack(row[name]) for name in _PACKED}
    return Collected(**packed, evidence=row.get("evidence", {}), progress=row.get("progress", {}))


def due(iteration: int, every: int) -> bool:
    """Whether something that is done every so many iterations is done after this one; every 0: never."""
    return every > 0 and iteration % every == 0


def _unseen(done: int, total: int, tokens: int) -> None:
    """Shows nothing: what is shown is what the learner does meanwhile."""


def _done(collected: Collected) -> Future[Collected]:
    future = Future[Collected]()
    future.set_result(collected)
    return future
