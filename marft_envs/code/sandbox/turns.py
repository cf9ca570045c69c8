"""Whose turn it is: which of the waiting runs gets the next worker.

Programs differ a thousandfold in what they cost, and nobody can tell beforehand. Most need milliseconds; one that hangs
needs all of its limit. So a run first gets a short *look*. If it is not done then and others wait, it gives its worker
back and begins again later, with a longer look, behind those that have had less; the last look has no end but the run's
own limits. Beginning again changes no verdict: a program is always run from its start, under its own limits.

* Runs of the same look take turns in the order in which they came: nobody overtakes.
* Shorter looks go first, but of every two workers that become free one goes to whoever has waited longest, if that is
  more than a second, so that long runs end while short ones never cease to come.
* While long runs hold all workers, one more worker takes first looks. It never goes beyond them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LOOKS = (0.005, 0.06, 0.4)
"""CPU seconds of the looks before the last. The first is counted anew whenever a test is done, up to the second in all:
a program that answers goes on, one that does not is known to be slow. What gave way three times has cost less than a
quarter of the 2 s that one test may take."""
IDLE_S = 0.015
"""Seconds by the clock, in which it took no CPU time and asked for none, after which a run in a look counts as idle."""
WALL = 40.0
"""How many times its CPU seconds a look may take by the clock, on a machine that is busy with other things."""

PATIENCE_S = 1.0
"""Seconds after which a run that waits for a longer look need not let all shorter ones go first."""

_Slot = TypeVar("_Slot")


@dataclass(eq=False)
class Ticket(Generic[_Slot]):
    """One run, from its arrival to its end."""

    look: int = 0
    """Which look is its next, or goes on; ``len(LOOKS)`` is the last, which has no end."""
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
        express: One more, for first looks only.
        rank: Of free slots the next run gets the one for which this is lowest.
        clock: Tells the time in seconds.
    """

    def __init__(
        self,
        slots: list[_Slot],
        express: _Slot,
        rank: Callable[[_Slot], int] = lambda _: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._free, self._express, self._rank = list(slots), [express], rank
        self._waiting: list[deque[Ticket[_Slot]]] = [deque() for _ in range(len(LOOKS) + 1)]
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
        """At the end of a look: may the run keep its slot for the next look? If not, it has to leave and arrive."""
        with self._lock:
            ticket.look += 1
            return not ticket.express and not any(self._waiting[: ticket.look])

    def take_free(self) -> list[_Slot]:
        """Takes every slot that is free but the one for first looks, which stays."""
        with self._lock:
            found, self._free = self._free, []
            return found

    def take_express(self) -> list[_Slot]:
        """Takes the slot for first looks, if it is free, for good."""
        with self._lock:
            found, self._express = self._express, []
            return found

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

    def _call(self, ticket: Ticket[_Slot], slot: _Slot, express: bool) -> None:
        ticket.slot, ticket.express = slot, express
        ticket.called.set()
