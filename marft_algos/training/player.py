"""Plays chunks of episodes in this process: the run's environments, its engine, and replays where credit wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

from marft_algos import seeds
from marft_algos.config.settings import TrainConfig
from marft_algos.credit import diagnostics
from marft_algos.rollout import selfplay
from marft_algos.rollout.chunks import Chunk, Played
from marft_algos.rollout.collector import Collector
from marft_algos.rollout.panel import settle, whole
from marft_algos.rollout.replay import Replayer, StartEngine, TreeCollector
from marft_algos.training import evaluate, setup
from marft_algos.training.parts import Parts
from marft_algos.types import Trajectory
from marft_envs.vector import VectorEnv

Progress = Callable[[int, int, int], None]
"""(finished episodes, episodes, tokens sampled so far), of a chunk."""


class Player:
    """Plays chunks with the parts of a run. It is made before a run goes on: replays may need where policies began.

    Args:
        parts: Of the run.
        chunk: Episodes of a chunk at most; 0: as many as there are.
        pool: Past states of the policies that are played against.
    """

    def __init__(self, parts: Parts, chunk: int, pool: selfplay.Pool | None = None) -> None:
        config, algorithm = parts.config, parts.algorithm
        self._parts, self._config, self._algorithm = parts, config, algorithm
        self._chunk, self._assignment = chunk, None if pool is None else pool.assign
        self.on_progress: Progress = lambda done, total, tokens: None
        self._replayer = Replayer(
            parts.policies.renderer,
            parts.engine,
            setup.sampling(config),
            seed=config.seed,
            slots=self._slots(config),
            start=StartEngine(parts.engine, parts.policies) if "start" in algorithm.rule.needs else None,
            assignment=self._assignment,
        )
        self._training: VectorEnv | None = None
        self._held_out: VectorEnv | None = None
        self._collector: Collector | None = None

    def play(self, chunk: Chunk) -> Played:
        """Plays a chunk's episodes, and their replays."""
        if chunk.iteration == seeds.EVALUATION:
            return self._evaluate(chunk)
        collector, replayer = self._for_training(), self._replayer
        replayer.forget()  # a chunk that was broken off
        seeds.start_global(seeds.tasks(self._config.seed, chunk.iteration, chunk.refill, chunk.place))
        raw = self._collect(collector, chunk)
        settled, size = settle(raw), chunk.group_size
        groups = [settled[start : start + size] for start in range(0, len(settled), size)]
        kept = [t for group in groups if self._algorithm.wanted(whole(group)) for t in group]
        credited, judged = whole(kept), list[diagnostics.Judged]()
        if self._algorithm.rule.keep != "nothing":
            credited = self._algorithm.rule.replay(credited, replayer, chunk.iteration)
        if chunk.judged:
            few = [t for t in credited if t.number < chunk.first + chunk.judged]
            judged = diagnostics.judge(few, replayer, chunk.iteration)
        played = Played(raw, frozenset(t.number for t in kept), judged, replayer.branches, replayer.lost)
        if replayer.spent or replayer.states:
            played.trajectories = replayer.add_costs(raw)
        answers = {t.number: t.replayed for t in credited}
        played.trajectories = [replace(t, replayed=answers.get(t.number, ())) for t in played.trajectories]
        return played

    def close(self) -> None:
        """Ends the environments; the engine belongs to the run."""
        for vec in (self._training, self._held_out):
            if vec is not None:
                vec.close()
        self._training = self._held_out = self._collector = None

    def _collect(self, collector: Collector, chunk: Chunk) -> list[Trajectory]:
        groups = collector.stream(
            chunk.panel.seeds,
            chunk.panel.options,
            iteration=chunk.iteration,
            first=chunk.first,
            group_size=chunk.group_size,
            keep=chunk.keep,
        )
        return sorted(chain.from_iterable(groups), key=lambda t: t.number)

    def _evaluate(self, chunk: Chunk) -> Played:
        parts, config = self._parts, self._config
        if self._held_out is None:
            seeds.start_global(seeds.tasks_at_evaluation())
            self._held_out = VectorEnv([parts.make_eval_env] * evaluate.slots(config, len(chunk.panel)))
        seeds.start_global(seeds.tasks_at_evaluation(chunk.place))
        place = (self._held_out, parts.policies.renderer, parts.engine, setup.sampling(config, evaluation=True))
        played = self._collect(Collector(*place, seed=config.seed, on_progress=self._show), chunk)
        return Played(played, frozenset(t.number for t in played))

    def _for_training(self) -> Collector:
        """Returns what plays episodes to learn from, and ends the environments of the evaluation before."""
        if self._held_out is not None:
            self._held_out.close()
            self._held_out = None
        if self._collector is None:
            parts, config, algorithm = self._parts, self._config, self._algorithm
            seeds.start_global(seeds.tasks(config.seed, -1))
            self._training = VectorEnv([parts.make_env] * self._slots(config))
            place = (self._training, parts.policies.renderer, parts.engine, setup.sampling(config))
            kwargs: dict[str, Any] = {"seed": config.seed, "overlap": config.overlap, "on_progress": self._show}
            kwargs |= {"assignment": self._assignment, "states": self._replayer.states}
            if algorithm.candidates > 1:
                kwargs |= {"replayer": self._replayer, "candidates": algorithm.candidates, "worth": algorithm.worth}
            self._collector = (Collector if algorithm.candidates == 1 else TreeCollector)(*place, **kwargs)
        return self._collector

    def _slots(self, config: TrainConfig) -> int:
        """Returns the number of episodes in flight."""
        episodes = min(config.episodes_per_iteration, self._chunk or config.episodes_per_iteration)
        return min(config.num_envs or episodes, episodes)

    def _show(self, done: int, total: int, tokens: int) -> None:
        self.on_progress(done, total, tokens)
