"""Plays chunks of episodes: with the run's environments, its engine, and replays where credit wants them."""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from marft_algos import seeds
from marft_algos.config.settings import TrainConfig
from marft_algos.credit import diagnostics
from marft_algos.engines.base import Publisher
from marft_algos.lazy import extra
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.rollout.collector import Collector, OnProgress
from marft_algos.rollout.episodes import Chunk, Played, chunk_of, settle, whole
from marft_algos.rollout.replay import Replayer, StartEngine, TreeCollector
from marft_algos.training.parts import Parts
from marft_algos.training.policies import sampling, slots
from marft_algos.types import Trajectory
from marft_envs.core.vector import VectorEnv


class RolloutBackend:
    """Plays chunks with the policies' published weights.

    By default nothing is made before it is played with, and there is no memory to give back.
    """

    chunk: int
    """Episodes of a chunk, into which an iteration is cut; 0: it is one chunk."""

    apart: bool
    """Whether others play than learn. Rank 0 alone asks them, and tells the other ranks; it may do so from another
    thread, while it learns. Otherwise all ranks call ``play``, and each plays its share."""

    lost: Path | None
    """Folder for chunks that end every worker that plays them; none: they are not kept."""

    def play(self, chunks: Sequence[Chunk], on_progress: OnProgress, weights: Any = None) -> list[Played]:
        """Plays every chunk once; returns what they came to, in their order.

        Args:
            chunks: What to play.
            on_progress: Receives the progress.
            weights: What ``pin`` returned; None: what is published now.
        """
        raise NotImplementedError

    def prepare(self) -> None:
        """Makes the environments to train in; otherwise the first chunk does."""

    def pin(self) -> Any:
        """Returns what is published now, to be played with later; None where it is played at once."""

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Plays these policies with their present weights from now on."""

    def rest(self) -> None:
        """Gives back the memory that only playing needs, while the policies learn."""

    def wake(self) -> None:
        """Undoes ``rest``; to be called before the next ``publish`` or ``play``."""

    def metrics(self) -> dict[str, Any]:
        """Returns what to log that was counted since the last call: ``time_…`` as it is, the rest under ``engine/``.

        ``time_players`` says who played how much of what is learnt from, see ``RolloutStats``.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends environments, engines and connections."""


class RolloutStats:
    """Counts what each rank or worker has played of what is learnt from."""

    def __init__(self) -> None:
        self._counted: defaultdict[str, dict[str, float]] = defaultdict(
            lambda: {"chunks": 0, "episodes": 0, "tokens": 0, "seconds": 0.0}
        )

    def add(self, chunk: Chunk, played: Played) -> None:
        """Counts a chunk that was played."""
        if chunk.iteration == seeds.EVALUATION:
            return
        counted = self._counted[played.player]
        counted["chunks"] += 1
        counted["episodes"] += len(chunk.prompts)
        counted["tokens"] += sum(trajectory.tokens for trajectory in played.trajectories)
        counted["seconds"] += played.seconds

    def take(self) -> list[dict[str, Any]]:
        """Returns a row for each, by name, and begins anew."""
        counted, self._counted = self._counted, RolloutStats()._counted
        return [{"name": name, **counted[name]} for name in sorted(counted, key=_natural) if name]


def _natural(name: str) -> tuple[int, str]:
    """Orders ``rank 2`` before ``rank 10``."""
    number = name.split(" ")[1:2]
    return int(number[0]) if number and number[0].isdecimal() else 0, name


def make(parts: Parts, reduction: ReductionSlots) -> RolloutBackend:
    """Makes the kind that the settings name.

    Raises:
        ConfigError, EngineError: See ``RayRollouts``.
        MissingExtraError: It needs a package that is not installed.
    """
    if parts.config.rollouts == "here":
        return LocalRollouts(parts, reduction)
    return cast(RolloutBackend, extra("ray").RayRollouts(parts, reduction))


class LocalRollouts(RolloutBackend):
    """Plays in this process, or each of several ranks its share.

    Args:
        parts: Of the run.
        reduction: The ranks.
    """

    def __init__(self, parts: Parts, reduction: ReductionSlots) -> None:
        config, self.apart = parts.config, False
        self.lost: Path | None = None
        on_gpus = parts.policies.device.type == "cuda"
        self.chunk = chunk_of(config, reduction.count, on_gpus=on_gpus) if reduction.count > 1 else config.chunk
        self._worker, self._reduction, self._engine = RolloutWorker(parts, self.chunk), reduction, parts.engine
        self._publisher = Publisher(parts.engine, parts.policies, config.adapter_dir or None)
        self._name, self._stats = f"rank {reduction.group.rank} on {socket.gethostname()}", RolloutStats()
        self._publishing = 0.0

    def play(self, chunks: Sequence[Chunk], on_progress: OnProgress, weights: Any = None) -> list[Played]:
        """Plays every chunk on one of the ranks, which all have the results."""
        total, ended, tokens, mine = sum(len(chunk.prompts) for chunk in chunks), 0, 0, dict[int, Played]()

        def show(done: int, _: int, sampled: int) -> None:
            on_progress(ended + done, total, tokens + sampled)

        self._worker.on_progress = show
        with self._reduction.together():
            for number in self._reduction.numbers(len(chunks)):
                started = time.monotonic()
                mine[number] = played = self._worker.play(chunks[number])
                played.player, played.seconds = self._name, time.monotonic() - started
                ended += len(chunks[number].prompts)
                tokens += sum(trajectory.tokens for trajectory in played.trajectories)
        results = self._reduction.merged(mine)
        for chunk, played in zip(chunks, results, strict=True):
            self._stats.add(chunk, played)
        return results

    def prepare(self) -> None:
        """Makes this process's environments."""
        self._worker.prepare()

    def publish(self, policies: Iterable[str], version: int) -> None:
        """Publishes to the engine, through a folder where it wants one."""
        started = time.monotonic()
        self._publisher.publish(policies, version)
        self._publishing += time.monotonic() - started

    def rest(self) -> None:
        """Lets the engine give back its memory."""
        self._engine.sleep()

    def wake(self) -> None:
        """Lets the engine take it again."""
        self._engine.wake()

    def metrics(self) -> dict[str, Any]:
        """Returns the engine's, and who played."""
        spent, self._publishing = self._publishing, 0.0
        return {**self._engine.metrics(), "time_publish": spent, "time_players": self._stats.take()}

    def close(self) -> None:
        """Ends environments and engine."""
        self._worker.close()
        self._engine.close()
        self._publisher.close()


def _answered(t: Trajectory, answer: Trajectory) -> Trajectory:
    """Returns an episode with what its replays have found out about it."""
    found = {name: getattr(answer, name) for name in ("replayed", "candidates", "leaves", "hindsight")}
    return replace(t, **found)


class RolloutWorker:
    """Plays chunks with the parts of a run. It is made before a run goes on: replays may need where policies began.

    Args:
        parts: Of the run.
        chunk: Episodes of a chunk at most; 0: as many as there are.
    """

    def __init__(self, parts: Parts, chunk: int) -> None:
        config, algorithm = parts.config, parts.algorithm
        self._parts, self._config, self._algorithm = parts, config, algorithm
        self._chunk, self._assignment = chunk, None if parts.pool is None else parts.pool.assign
        self.on_progress: OnProgress = lambda done, total, tokens: None
        self._sampling = sampling(config)
        self._replayer = Replayer(
            parts.policies.renderer,
            parts.engine,
            self._sampling,
            seed=config.seed,
            slots=self._slots(config),
            start=StartEngine(parts.engine, parts.policies) if "start" in algorithm.rule.needs else None,
            assignment=self._assignment,
        )
        self._training: VectorEnv | None = None
        self._held_out: VectorEnv | None = None
        self._collector: Collector | None = None

    def prepare(self) -> Collector:
        """Makes the environments to train in, and returns what plays in them."""
        if self._collector is None:
            config, algorithm = self._config, self._algorithm
            seeds.start_global(seeds.tasks(config.seed, -1))
            self._training = VectorEnv([self._parts.make_env] * self._slots(config))
            place = (self._training, self._parts.policies.renderer, self._parts.engine, self._sampling)
            kwargs: dict[str, Any] = {"seed": config.seed, "overlap": config.overlap, "on_progress": self._show}
            kwargs |= {"assignment": self._assignment, "states": self._replayer.states}
            if algorithm.candidates > 1:
                kwargs |= {"replayer": self._replayer, "candidates": algorithm.candidates, "worth": algorithm.worth}
            self._collector = (Collector if algorithm.candidates == 1 else TreeCollector)(*place, **kwargs)
        return self._collector

    def play(self, chunk: Chunk) -> Played:
        """Plays a chunk's episodes, and their replays."""
        training = chunk.iteration != seeds.EVALUATION
        collector = self._for_training(chunk) if training else self._for_evaluation(chunk)
        groups = collector.stream(
            chunk.prompts.seeds,
            chunk.prompts.options,
            iteration=chunk.iteration,
            first=chunk.first,
            group_size=chunk.group_size,
            keep=chunk.keep,
        )
        raw = sorted(chain.from_iterable(groups), key=lambda t: t.number)
        return self._credited(chunk, raw) if training else Played(raw, frozenset(t.number for t in raw))

    def _credited(self, chunk: Chunk, raw: list[Trajectory]) -> Played:
        """Plays the replays of a chunk's episodes that credit wants."""
        replayer = self._replayer
        settled, size = settle(raw), chunk.group_size
        split = [settled[start : start + size] for start in range(0, len(settled), size)]
        kept = [t for group in split if self._algorithm.wanted(whole(group)) for t in group]
        credited, judged = whole(kept), list[diagnostics.Judged]()
        credited = self._algorithm.rule.replay(credited, replayer, chunk.iteration)
        if chunk.judged:
            few = [t for t in credited if t.number < chunk.first + chunk.judged]
            judged = diagnostics.judge(few, replayer, chunk.iteration)
        played = Played(raw, frozenset(t.number for t in kept), judged, replayer.branches, replayer.lost)
        if replayer.spent or replayer.states:
            played.trajectories = replayer.add_costs(raw)
        answers = {t.number: t for t in credited}
        played.trajectories = [_answered(t, answers.get(t.number, t)) for t in played.trajectories]
        return played

    def close(self) -> None:
        """Ends the environments; the engine belongs to the run."""
        for vec in (self._training, self._held_out):
            if vec is not None:
                vec.close()
        self._training = self._held_out = self._collector = None

    def _for_evaluation(self, chunk: Chunk) -> Collector:
        """Returns what plays held-out episodes."""
        parts, config = self._parts, self._config
        if self._held_out is None:
            seeds.start_global(seeds.tasks_at_evaluation())
            self._held_out = VectorEnv([parts.make_eval_env] * min(slots(config), len(chunk.prompts)))
        seeds.start_global(seeds.tasks_at_evaluation(chunk.place))
        place = (self._held_out, parts.policies.renderer, parts.engine, sampling(config, evaluation=True))
        return Collector(*place, seed=config.seed, on_progress=self._show)

    def _for_training(self, chunk: Chunk) -> Collector:
        """Returns what plays episodes to learn from, and ends the environments of the evaluation before."""
        if self._held_out is not None:
            self._held_out.close()
            self._held_out = None
        collector = self.prepare()
        self._replayer.forget()  # an interrupted chunk
        seeds.start_global(seeds.tasks(self._config.seed, chunk.iteration, chunk.refill, chunk.place))
        return collector

    def _slots(self, config: TrainConfig) -> int:
        """Returns the number of episodes in flight."""
        episodes = min(config.episodes_per_iteration, self._chunk or config.episodes_per_iteration)
        return min(config.num_envs or episodes, episodes)

    def _show(self, done: int, total: int, tokens: int) -> None:
        self.on_progress(done, total, tokens)
