"""Plays ahead of the learner: episodes of some more iterations wait to be learnt from.

With staleness s, iteration i learns from episodes of version max(0, i − s): the first s + 1 iterations are played by
the untrained team, and after update i the team of version i + 1 plays iteration i + 1 + s. Nothing is played that
nobody would learn from. What waits is in the checkpoint. Where others play than learn, they play meanwhile, by the same
plan: what is learnt does not depend on who is faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from marft_algos.config.settings import TrainConfig
from marft_algos.runs import plain
from marft_algos.runs.progress import Progress
from marft_algos.training.collect import Collected
from marft_envs.errors import DataError


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


def done(collected: Collected) -> Future[Collected]:
    """Returns what is there already as something that may have been waited for."""
    future = Future[Collected]()
    future.set_result(collected)
    return future


class Ahead:
    """Holds what is played and not yet learnt from.

    Args:
        config: Says how many iterations may wait beside the one that is learnt from next, and what ends the run.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._queue = deque[Waiting]()

    def fill(self, play: Callable[[int], Future[Collected]], progress: Progress, version: int) -> None:
        """Has the iterations played that lack, in order, with the policies as they are.

        Args:
            play: Plays an iteration, or begins to.
            progress: Of the learner.
            version: Of the policies.
        """
        while self._lacks(progress):
            iteration = progress.iteration + len(self._queue)
            self._queue.append(Waiting(iteration, version, play(iteration)))

    def take(self, wait: Callable[[Future[Collected]], Collected]) -> Collected:
        """Returns what the next iteration learns from, which waits no longer.

        Args:
            wait: Returns what was played, once it is there.
        """
        collected = wait(self._queue[0].played)
        self._queue.popleft()
        return collected

    def _lacks(self, progress: Progress) -> bool:
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
            rows.append(
                {
                    "iteration": waiting.iteration,
                    "version": waiting.version,
                    "trajectories": plain.pack(collected.trajectories),
                    "metrics": plain.pack(collected.metrics),
                    "judged": plain.pack(collected.judged),
                }
            )
        return rows

    def load_state_dict(self, state: Sequence[Any], progress: Progress) -> None:
        """Restores ``state_dict``, unless some of it is too old for the run's present staleness: then all is replayed.

        Raises:
            DataError: It is no such state, or of another iteration.
        """
        try:
            queue = [
                Waiting(
                    row["iteration"],
                    row["version"],
                    done(Collected(*(plain.unpack(row[name]) for name in ("trajectories", "metrics", "judged")))),
                )
                for row in state
            ]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"The checkpoint's waiting episodes cannot be read ({error!r}); begin another run."
            ) from error
        if [waiting.iteration for waiting in queue] != [progress.iteration + i for i in range(len(queue))]:
            raise DataError(
                f"The checkpoint of iteration {progress.iteration} holds episodes of others: {queue[0].iteration} and "
                "later. Move it away, and the same command takes the one before."
            )
        ages = [progress.version + i - waiting.version for i, waiting in enumerate(queue)]
        self._queue = deque(queue if max(ages, default=0) <= self._config.staleness else [])
