"""Plays ahead of the learner: episodes of some more iterations wait to be learnt from.

With staleness s, iteration i learns from episodes of version max(0, i − s): the first s + 1 iterations are played by
the untrained team, and after update i the team of version i + 1 plays iteration i + 1 + s. Nothing is played that
nobody would learn from. What waits is in the checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marft_algos.runs import plain
from marft_algos.runs.folder import Progress
from marft_algos.training.collect import Collected
from marft_envs.errors import DataError


@dataclass(frozen=True, slots=True)
class Waiting:
    """What was played of an iteration, and by which version of the policies."""

    iteration: int
    version: int
    collected: Collected


class Ahead:
    """Holds what is played and not yet learnt from.

    Args:
        staleness: Iterations that may wait beside the one that is learnt from next.
        iterations: Of the run.
        token_budget: Ends the run when so many tokens are played; None: nothing but ``iterations`` does.
    """

    def __init__(self, staleness: int, iterations: int, token_budget: int | None) -> None:
        self._staleness, self._iterations, self._budget = staleness, iterations, token_budget
        self._queue = deque[Waiting]()

    def fill(self, play: Callable[[int], Collected], progress: Progress, version: int) -> None:
        """Plays the iterations that lack, in order, with the policies as they are.

        Args:
            play: Plays an iteration.
            progress: Of the learner.
            version: Of the policies.
        """
        while self._lacks(progress):
            iteration = progress.iteration + len(self._queue)
            self._queue.append(Waiting(iteration, version, play(iteration)))

    def take(self) -> Collected:
        """Returns what the next iteration learns from, which waits no longer."""
        return self._queue.popleft().collected

    def _lacks(self, progress: Progress) -> bool:
        if not self._queue:
            return True
        played = progress.tokens + sum(waiting.collected.tokens for waiting in self._queue)
        return (
            len(self._queue) <= self._staleness
            and progress.iteration + len(self._queue) < self._iterations
            and (self._budget is None or played < self._budget)
        )

    def state_dict(self) -> list[Any]:
        """Returns what waits, as plain values."""
        return [
            {
                "iteration": waiting.iteration,
                "version": waiting.version,
                "trajectories": plain.pack(waiting.collected.trajectories),
                "metrics": plain.pack(waiting.collected.metrics),
                "judged": plain.pack(waiting.collected.judged),
            }
            for waiting in self._queue
        ]

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
                    Collected(*(plain.unpack(row[name]) for name in ("trajectories", "metrics", "judged"))),
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
        self._queue = deque(queue if max(ages, default=0) <= self._staleness else [])
