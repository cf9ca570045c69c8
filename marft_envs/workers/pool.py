"""Runs work in pools of killable processes: queues runs, replaces killed processes, and leaves none behind.

Runs differ a thousandfold in what they cost, and nobody can tell beforehand. Most need milliseconds; one that hangs
needs all of its limit. So a run first gets a short *look*. If it is not done then and others wait, it gives its worker
back and begins again later, with a longer look, behind those that have had less; the last look has no end but the run's
own limits. Beginning again changes no verdict: a program is always run from its start, under its own limits.

* Runs of the same look take turns in the order in which they came: nobody overtakes.
* Shorter looks go first, but of every two workers that become free one goes to the run that has waited longest, if that
  is more than a second. So long runs end although short ones keep coming.
* While long runs hold all workers, one more worker takes first looks. It never goes beyond them.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from subprocess import Popen
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from marft_envs.errors import ConfigError, WorkerError

START_DEADLINE = 60.0
"""Seconds a process may take to become ready; its own limit, since a busy machine imports slowly."""
LOOKS = (0.005, 0.06, 0.4)
"""CPU seconds of the looks before the last. The first is counted anew whenever a test is done, up to the second in all:
a program that answers goes on, one that does not is known to be slow. What gave way three times has cost less than a
quarter of the 2 s that one test may take."""
IDLE_S = 0.015
"""Seconds by the clock, in which it took no CPU time and asked for none, after which a run in a look counts as idle."""
WALL = 40.0
"""How many times its CPU seconds a look may take by the clock, on a machine that is busy with other things."""

LAST = len(LOOKS)
"""The look that has no end; runs of one kind, which begin with it, take turns in the order in which they come."""

PATIENCE_S = 1.0
"""Seconds after which a run that waits for a longer look need not let all shorter ones go first."""

NODE = "MARFT_NODE_PROCESSES"
"""Environment variable: how many processes of this machine share the sizes of pools. Without it that is what torchrun
says of its own (LOCAL_WORLD_SIZE)."""

_Slot = TypeVar("_Slot")


class GaveWay(Exception):
    """The look was over and others wait: the run ended without a verdict and has to begin again."""


@dataclass(eq=False)
class Ticket(Generic[_Slot]):
    """One run, from its arrival to its end."""

    look: int = 0
    """Which look is its next, or goes on."""
    slot: _Slot | None = None
    express: bool = False
    """Whether its worker is the one for first looks only."""
    since: float = 0.0
    """When it arrived, by the queue's clock."""
    called: threading.Event = field(default_factory=threading.Event)


class Turns(Generic[_Slot]):
    """The queue before a number of slots. Safe to share between threads.

    Args:
        slots: Places for runs.
        express: More of them (one at the most), for first looks only.
        rank: Of free slots the next run gets the one for which this is lowest.
        clock: Tells the time in seconds.
    """

    def __init__(
        self,
        slots: list[_Slot],
        express: Sequence[_Slot] = (),
        rank: Callable[[_Slot], int] = lambda _: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._free, self._express, self._rank = list(slots), list(express), rank
        self._waiting: list[deque[Ticket[_Slot]]] = [deque() for _ in range(LAST + 1)]
        self._by_age = False

    def arrive(self, ticket: Ticket[_Slot]) -> None:
        """Queues a run, behind all that came before it and have the same look. ``ticket.called`` tells of its slot."""
        with self._lock:
            ticket.called.clear()
            ticket.since = self._clock()
            self._waiting[ticket.look].append(ticket)
            self._assign()

    def leave(self, ticket: Ticket[_Slot]) -> None:
        """Takes a run's slot back, or its place in the queue."""
        with self._lock:
            if ticket.slot is None:
                self._waiting[ticket.look].remove(ticket)
                return
            (self._express if ticket.express else self._free).append(ticket.slot)
            ticket.slot = None
            self._assign()

    def goes_on(self, ticket: Ticket[_Slot]) -> bool:
        """Returns, at the end of a look, whether the run may keep its slot; if not, it has to leave and arrive."""
        with self._lock:
            ticket.look += 1
            return not ticket.express and not any(self._waiting[: ticket.look])

    def take_free(self) -> list[_Slot]:
        """Takes every slot that is free but the one for first looks, which stays."""
        with self._lock:
            slots, self._free = self._free, []
            return slots

    def take_express(self) -> list[_Slot]:
        """Takes the slot for first looks, if it is free, for good."""
        with self._lock:
            slots, self._express = self._express, []
            return slots

    def put_back(self, slots: list[_Slot]) -> None:
        """Gives back what :meth:`take_free` took."""
        with self._lock:
            self._free += slots
            self._assign()

    def _assign(self) -> None:
        while self._free and any(self._waiting):
            ticket = self._next()
            slot = min(self._free, key=self._rank)
            self._free.remove(slot)
            self._call(ticket, slot, express=False)
        if self._express and self._waiting[0]:
            self._call(self._waiting[0].popleft(), self._express.pop(), express=True)

    def _next(self) -> Ticket[_Slot]:
        """Takes the next run for a regular slot out of the queue, which is not empty."""
        lines = [line for line in self._waiting if line]
        oldest = min(lines, key=lambda line: line[0].since)
        self._by_age = not self._by_age and self._clock() - oldest[0].since > PATIENCE_S
        return (oldest if self._by_age else lines[0]).popleft()

    def _call(self, ticket: Ticket[_Slot], slot: _Slot, *, express: bool) -> None:
        ticket.slot, ticket.express = slot, express
        ticket.called.set()


class Process(Protocol):
    """What a pool asks of a process. One thread at a time uses it."""

    ready: bool
    """Whether it has started."""
    worn: bool
    """Whether it has run so often that it is to be replaced."""
    _popen: Popen[bytes]

    @property
    def pid(self) -> int:
        """Returns its number."""
        return self._popen.pid

    def wait_ready(self) -> None:
        """Waits until it has started, or raises what kept it from that."""

    def signal(self) -> None:
        """Kills it. Legal from any thread."""

    def kill(self) -> None:
        """Kills it, waits for its end, and closes what leads to it."""

    def forget(self) -> None:
        """Marks it as ended in a forked copy of this process: it is the original's child, and not to be waited for."""
        self._popen.returncode = 0


_P = TypeVar("_P", bound=Process)
_Result = TypeVar("_Result")


class Slot(Generic[_P]):
    """A place for one process; empty until needed."""

    def __init__(self, spawn: Callable[[], _P]) -> None:
        self.process: _P | None = None
        self._spawn = spawn
        self._lock = threading.RLock()  # a signal's handler may close the pool

    def start(self) -> _P:
        """Returns the process, which starts if there is none."""
        with self._lock:
            self.process = self.process or self._spawn()
            return self.process

    def rank(self) -> int:
        """Returns its place in the order of choice: a ready process, then one that starts, then none."""
        return 2 if self.process is None else 0 if self.process.ready else 1

    def drop(self) -> None:
        """Ends the process."""
        with self._lock:
            if self.process is not None:
                self.process.kill()
                self.process = None


def share(size: int, *, express: bool = False) -> tuple[int, bool]:
    """Returns how many processes a pool of this process may have, and whether there is one more for first looks.

    ``size`` is the machine's: where several processes of it play (ranks, workers of a cluster), each has its part, at
    least one, the one for first looks included. So all of them have ``size`` together, or one each if they are more.

    Raises:
        ConfigError: ``MARFT_NODE_PROCESSES`` is no number of processes.
    """
    said = os.environ.get(NODE) or os.environ.get("LOCAL_WORLD_SIZE") or "1"
    if not said.isdecimal() or not int(said):
        raise ConfigError(f"{NODE} is '{said}'; expected how many processes of this machine play, from 1.")
    if int(said) == 1:
        return size, express
    part = max(size // int(said), 1)
    return (part - 1, True) if express and part > 1 else (part, False)


class ProcessPool(Generic[_P]):
    """Processes that start when a run needs them, are queued for, killed and replaced.

    Safe to share between threads: a deep copy is the pool itself. A forked copy of this process starts processes of its
    own; none outlives this process.

    Args:
        name: What errors call it.
        spawn: Starts a process.
        size: Most runs at once on this machine; further ones wait. Processes that play beside this one share it.
        express: One more process, for first looks.
    """

    spoilt_by: ClassVar[tuple[type[Exception], ...]]
    """Errors of a run after which its process is replaced; the next one starts while the caller goes on."""
    kept_after: ClassVar[tuple[type[Exception], ...]] = (GaveWay,)
    """Errors of a run after which its process is as good as before. After any other it is ended."""
    failure: ClassVar[type[WorkerError]] = WorkerError
    """What a closed pool raises."""

    def __init__(self, name: str, spawn: Callable[[], _P], size: int, *, express: bool = False) -> None:
        self.closed = False
        self._name, self._spawn = name, spawn
        self._size, self._express = share(size, express=express)
        self._reset()

    def _reset(self) -> None:
        self.slots = [Slot(self._spawn) for _ in range(self._size)]
        self._extra = [Slot(self._spawn) for _ in range(self._express)]
        self._turns = Turns(self.slots, self._extra, Slot.rank)
        _POOLS.add(self)

    def _run(self, action: Callable[[_P, Ticket[Slot[_P]]], _Result], look: int = 0) -> _Result:
        """Runs ``action`` when its turn comes, and again from the start whenever it had to give way.

        Args:
            action: Gets a process and the run's ticket.
            look: The one that it begins with.
        """
        ticket = Ticket[Slot[_P]](look)
        while True:
            self._turns.arrive(ticket)
            try:
                if not ticket.called.is_set() and not self.closed:
                    self._start_extra()  # there are more runs than processes
                ticket.called.wait()
                return self._in(ticket, action)
            except GaveWay:
                pass  # it queues again, for a longer look
            finally:
                self._turns.leave(ticket)

    def _in(self, ticket: Ticket[Slot[_P]], action: Callable[[_P, Ticket[Slot[_P]]], _Result]) -> _Result:
        slot = ticket.slot
        assert slot is not None
        self._check_open()
        spoilt = False
        try:
            return action(slot.start(), ticket)
        except BaseException as error:
            spoilt = isinstance(error, self.spoilt_by)
            if not isinstance(error, self.kept_after):
                slot.drop()  # perhaps interrupted in the middle of a run, or not started
            raise
        finally:
            if spoilt or (slot.process is not None and slot.process.worn):
                slot.drop()
                if not self.closed:
                    slot.start()  # it gets ready while the caller goes on

    def _start_extra(self) -> None:
        for slot in self._extra:
            slot.start()

    def _check_open(self) -> None:
        if self.closed:
            raise self.failure(f"the {self._name} is closed; make a new {type(self).__name__}")

    def warm_up(self) -> None:
        """Starts the idle processes now, instead of at the first runs, and waits until they are ready."""
        self._check_open()
        idle = self._turns.take_free()
        try:
            for process in [slot.start() for slot in idle]:
                process.wait_ready()
            self._start_extra()
        finally:
            for slot in idle:
                if slot.rank() == 1:
                    slot.drop()  # it has failed to start
            self._turns.put_back(idle)

    def close(self) -> None:
        """Ends the processes. A run that goes on raises an error."""
        self.closed = True
        for slot in (*self.slots, *self._extra):
            if (process := slot.process) is not None:
                process.signal()  # a busy one is cleared away by its caller
        idle = self._turns.take_free()
        for slot in (*idle, *self._turns.take_express()):
            slot.drop()
        self._turns.put_back(idle)  # wakes those that wait, to find the pool closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


_POOLS: weakref.WeakSet[ProcessPool[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _forget_all() -> None:
    """Resets all pools in a forked child: the processes are the parent's, and so may be the locks."""
    for pool in list(_POOLS):
        for slot in (*pool.slots, *pool._extra):
            if slot.process is not None:
                slot.process.forget()
        pool._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
