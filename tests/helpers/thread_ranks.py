"""Ranks that are threads of one process: what they say to each other goes through a list, under a barrier."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


class ThreadRank:
    """One of several ranks; whatever is said is pickled, as between processes."""

    seconds = 0.0

    def __init__(self, rank: int, size: int, said: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._said, self._barrier = said, barrier
        self.calls: Counter[str] = Counter()

    def add(self, x: Tensor) -> Tensor:
        step = 1
        while step < self.size:
            self.calls["add"] += 1
            x.add_(self._exchange(x)[self.rank ^ step])
            step *= 2
        return x

    def gather(self, x: T) -> list[T]:
        self.calls["gather"] += 1
        return self._exchange(x)

    def agree(self, flag: bool) -> bool:
        self.calls["agree"] += 1
        return any(self._exchange(flag))

    def first(self, x: T) -> T:
        self.calls["first"] += 1
        return self._exchange(x)[0]

    def close(self) -> None:
        pass

    def _exchange(self, x: Any) -> list[Any]:
        self._said[self.rank] = pickle.dumps(x)
        self._barrier.wait()
        found = [pickle.loads(data) for data in self._said]
        self._barrier.wait()
        return found


def together(size: int, work: Callable[[ThreadRank], T]) -> list[T]:
    """Does the work on so many ranks; an error on one ends the others, and is raised."""
    barrier, said = threading.Barrier(size, timeout=60), [None] * size
    ranks = [ThreadRank(rank, size, said, barrier) for rank in range(size)]

    def one(rank: ThreadRank) -> T:
        try:
            return work(rank)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        jobs = [threads.submit(one, rank) for rank in ranks]
    errors = [job.exception() for job in jobs]
    own = [error for error in errors if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    for error in [*own, *filter(None, errors)]:
        raise error
    return [job.result() for job in jobs]
