"""The processes that train together, and all that they say to each other; nothing else imports torch.distributed.

Every rank holds the same policies and does the same at the same time, on its own share of episodes and pieces.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from marft_algos.lazy import torch
from marft_envs.errors import ConfigError

T = TypeVar("T")


class RankGroup:
    """Ranks that do the same at the same time; each call is made by all of them. What stands here is of one rank."""

    rank: int = 0
    """Of this process, from 0. Rank 0 decides and writes."""
    size: int = 1
    """How many there are: a power of two."""
    seconds: float = 0.0
    """Spent in these calls so far: waiting for the others, and sending."""

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """Adds a tensor over the ranks, in place, as a binary tree with neighbours first: the same bits on each."""
        return x

    def gather(self, x: T) -> list[T]:
        """Returns what every rank gave, in their order; it must be picklable."""
        return [x]

    def agree(self, flag: bool) -> bool:
        """Returns whether any rank says so."""
        return flag

    def first(self, x: T) -> T:
        """Returns what rank 0 gave."""
        return x

    def close(self) -> None:
        """Leaves the others."""


class Alone(RankGroup):
    """One process: nothing is sent."""


class Ranks(RankGroup):
    """Processes that a launcher has started: torchrun, or ``marft train --nproc``.

    Args:
        timeout: Seconds after which a call that somebody else does not make is an error.
        device: Where tensors are added; its kind decides the transport (gloo on a CPU, nccl on a GPU).
    """

    def __init__(self, timeout: float, device: torch.device) -> None:
        import torch.distributed as dist

        self._dist, self.seconds = dist, 0.0
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        patience = datetime.timedelta(seconds=timeout)
        store, rank, size = next(dist.rendezvous("env://", timeout=patience))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # Torchrun's own store outlives the ranks, and in it the addresses of those that have died.
            store = dist.PrefixStore(f"marft/{restarts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        if not power_of_two(self.size):
            raise ConfigError(
                f"{self.size} ranks cannot train together: sums are added in pairs, so that they do not depend on how"
                f" many there are. Expected a power of two: --nproc {1 << (self.size.bit_length() - 1)}"
            )

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """Adds a tensor over the ranks, in place, as a binary tree with neighbours first: the same bits on each."""
        theirs, step = torch.empty_like(x), 1
        with self._timed():
            while step < self.size:
                partner = self.rank ^ step
                sent = self._dist.P2POp(self._dist.isend, x, partner)
                received = self._dist.P2POp(self._dist.irecv, theirs, partner)
                # In the order of ranks: the lower one sends first, so that no transport waits for both.
                for work in self._dist.batch_isend_irecv([sent, received] if self.rank < partner else [received, sent]):
                    work.wait()
                x.add_(theirs)  # floats add up to the same whichever comes first
                step *= 2
        return x

    def gather(self, x: T) -> list[T]:
        """Returns what every rank gave, in their order; it must be picklable."""
        found: list[T | None] = [None] * self.size
        with self._timed():
            self._dist.all_gather_object(found, x)
        return cast(list[T], found)

    def agree(self, flag: bool) -> bool:
        """Returns whether any rank says so."""
        said = torch.tensor([int(flag)])
        with self._timed():
            self._dist.all_reduce(said, op=self._dist.ReduceOp.MAX)
        return bool(said.item())

    def first(self, x: T) -> T:
        """Returns what rank 0 gave."""
        found: list[T | None] = [x if self.rank == 0 else None]
        with self._timed():
            self._dist.broadcast_object_list(found, src=0)
        return cast(T, found[0])

    def close(self) -> None:
        """Leaves the others."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started


def lead(group: RankGroup, work: Callable[[], T]) -> T:
    """Does something on rank 0, and returns what it returned, or raises what it raised, on all of them."""
    done: tuple[T | None, Exception | None] = (None, None)
    if group.rank == 0:
        try:
            done = (work(), None)
        except Exception as error:
            group.first((None, error))
            raise
    result, raised = group.first(done)
    if raised is not None:
        raise raised
    return cast(T, result)


def power_of_two(count: int) -> bool:
    """Returns whether a number is 1, 2, 4 or the like."""
    return count > 0 and count & (count - 1) == 0


def launched() -> int:
    """Returns how many ranks a launcher has started, this process being one of them; 0: none has."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() else 0


def restarts() -> int:
    """Returns how often a launcher has started the ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def local_rank() -> int | None:
    """Returns the number of this rank on its machine; None where no launcher has started it."""
    return int(os.environ.get("LOCAL_RANK", "0")) if launched() else None


def local_size() -> int:
    """Returns how many ranks share this machine, this one being one of them."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if launched() else 1


def join(timeout: float, device: torch.device) -> RankGroup:
    """Returns the ranks that a launcher has started, or this process alone."""
    return Ranks(timeout, device) if launched() else Alone()
