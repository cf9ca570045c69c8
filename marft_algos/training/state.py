"""The state of a run: makes its folder, writes checkpoints of all that learns, and takes the last whole one over."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from marft_algos.config.settings import TrainConfig
from marft_algos.learner.learner import Learner
from marft_algos.models.critic import Critics
from marft_algos.ranks.consistency import check_state
from marft_algos.ranks.group import lead, restarts
from marft_algos.runs import checkpoint
from marft_algos.runs import start as starts
from marft_algos.runs.disk import write_whole
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.progress import RunProgress
from marft_algos.runs.read_only import seen
from marft_algos.terminal import say
from marft_algos.training.collect import RolloutQueue
from marft_algos.training.parts import Parts
from marft_algos.training.policies import saved_policies, take_values


class RunState:
    """Keeps what a run has learnt: policies, learner, critics, waiting episodes, progress. Rank 0 writes.

    Args:
        parts: Of the run.
        config: Its settings, with the number of reduction slots.
        learner: What learns.
        critics: Their value heads, if there are any.
        queue: What is played and not yet learnt from.
    """

    def __init__(
        self, parts: Parts, config: TrainConfig, learner: Learner, critics: Critics | None, queue: RolloutQueue
    ) -> None:
        self._parts, self._config, self._policies = parts, config, parts.policies
        self._learner, self._critics, self._queue, self._group = learner, critics, queue, learner.reduction.group
        self._saved = saved_policies(config, parts.policies)
        self.silent = 0.0
        """Seconds between the last sign of life and a restart of the ranks."""

    def create(self) -> RunFolder:
        """Makes the folder of a new run."""
        take_values(self._parts.spec, self._critics)
        run = seen(lead(self._group, partial(starts.create, self._config, self._parts.spec.local)), self._group)
        self.check_data(run)
        return run

    def check_data(self, run: RunFolder) -> None:
        """Compares what the run draws from, and is evaluated on, with what it began with; see ``runs/start.py``."""
        lead(self._group, partial(starts.check_data, run, self._config, self._parts.data))
        lead(self._group, partial(starts.check_evaluation, run, self._parts.problems.held_out.options))

    def begun(self, run: RunFolder) -> bool:
        """Whether there is a checkpoint: all ranks take rank 0's word, for they save together."""
        return lead(self._group, lambda: bool(checkpoint.steps(run.checkpoints)))

    def load(self, run: RunFolder) -> RunProgress:
        """Takes over the last whole checkpoint; a damaged one is renamed.

        Raises:
            DamagedError: No checkpoint is whole.
        """
        self.silent = run.silent() if restarts() else 0.0
        path, damaged = lead(self._group, partial(checkpoint.newest_whole, run.checkpoints))
        if damaged and run.writes:
            say(*(f"note: {what}" for what in damaged), f"note: going on from {path}", sep="\n", error=True)
        progress = checkpoint.read_progress(path)
        checkpoint.load_policies(path, self._policies, self._saved)
        state = checkpoint.load_state(path)
        self._learner.load_state_dict(state["learner"])
        if self._critics is not None:
            self._critics.load_state_dict(state["critics"])
        self._queue.load_state_dict(state.get("ahead", []), progress)
        self._queue.evidence, self._queue.progress = state.get("curriculum", {}), state.get("progress", {})
        self._policies.version = progress.version
        return progress

    def save(self, run: RunFolder, progress: RunProgress, again: bool = False) -> None:
        """Writes a checkpoint; all ranks have to hold what it writes.

        Raises:
            RanksDiffer: They do not.
        """
        state: dict[str, Any] = {
            "learner": self._learner.state_dict(),
            "critics": self._critics.state_dict() if self._critics is not None else {},
            "curriculum": dict(self._queue.evidence),
            "progress": dict(self._queue.progress),
        }
        if self._group.size > 1:
            check_state(self._group, [self._policies.state_dict(), state], str(run.root))
        if not run.writes or (not again and checkpoint.steps(run.checkpoints)[-1:] == [progress.iteration]):
            return
        progress.version = self._policies.version
        if profiles := self._learner.algorithm.profiles(None):
            write_whole(run.profiles_file, json.dumps(profiles, indent=2, ensure_ascii=False) + "\n")
        state["ahead"] = self._queue.state_dict()
        checkpoint.save(run.checkpoints, progress, self._policies, self._saved, state)
        checkpoint.prune(run.checkpoints, self._config.keep, progress.best_iteration)
