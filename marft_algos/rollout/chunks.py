"""Panels are played in chunks, each on one rank, batched with nothing else: who plays a chunk makes no difference.

What is sampled for a row does not depend on its batch, but its log-probabilities do, in their last bits. The episodes
of a chunk are always decoded together, so a panel has the same bits on 1, 2 and 4 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from marft_algos.credit.branches import Keep
from marft_algos.ranks.lanes import Lanes
from marft_algos.rollout.collector import Collector, settled
from marft_algos.types import Trajectory

T = TypeVar("T")


class Chunks:
    """Plays panels as a ``Collector`` does, each rank some chunks of them; all ranks get all episodes.

    Args:
        collector: Of this rank.
        lanes: The ranks; with one lane a panel is one chunk.
        size: Episodes of a chunk; it becomes a multiple of a group.
    """

    def __init__(self, collector: Collector, lanes: Lanes, size: int) -> None:
        self._collector, self._lanes, self._size = collector, lanes, size
        self._chunks: list[range] = []
        """Numbers of the episodes of every chunk since ``forget``, whoever has played it."""

    def forget(self) -> None:
        """Begins another iteration."""
        self._chunks = []

    def collect(
        self,
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
        *,
        iteration: int = 0,
        first: int = 0,
        group_size: int = 1,
        keep: Keep = "nothing",
        all_may_be_lost: bool = False,
    ) -> list[Trajectory]:
        """Plays one episode per seed; see ``Collector.collect``."""
        size = len(seeds) if self._lanes.count == 1 else -(-self._size // group_size) * group_size
        starts = range(0, len(seeds), max(size, 1))
        self._chunks += [range(first + start, first + min(start + size, len(seeds))) for start in starts]

        def play(start: int) -> list[Trajectory]:
            part = slice(start, start + size)
            groups = self._collector.stream(
                seeds[part],
                None if options is None else options[part],
                iteration=iteration,
                first=first + start,
                group_size=group_size,
                keep=keep,
            )
            return sorted(chain.from_iterable(groups), key=lambda t: t.number)

        played = chain.from_iterable(self._lanes.spread(starts, play))
        return settled(list(played), all_may_be_lost)

    def apart(self, episodes: Sequence[Trajectory], work: Callable[[list[Trajectory]], list[T]]) -> list[T]:
        """Does something with episodes where they were played, chunk by chunk; for what needs copies of their states.

        Args:
            episodes: Of this iteration, in the order in which they were played.
            work: Returns as many results as it is given episodes.

        Returns:
            All results, in the order of the episodes.
        """
        if self._lanes.count == 1:
            return work(list(episodes))
        chunks = [[t for t in episodes if t.number in numbers] for numbers in self._chunks]
        return list(chain.from_iterable(self._lanes.spread(chunks, lambda part: work(part) if part else [])))
