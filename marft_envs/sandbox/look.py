"""One run's look: how long it may have its worker while others wait."""

from __future__ import annotations

import math
from typing import Any

from marft_envs.workers import pool

GLANCE = 0.003
"""Seconds between readings of a run's clocks while it has a look only."""


class Look:
    """Watches how long a run has had its worker, over all of its children; see :mod:`marft_envs.workers.pool`.

    Args:
        ticket: The run's; without one it has its worker to the end.
        queue: Asked at the end of each look whether the run goes on.

    Attributes:
        spent: CPU seconds of the run's children that have ended.
        again: When the look has to be checked, by the monotonic clock; infinite for the last.
        answered: Whether a test was done since it was last checked.
    """

    def __init__(self, ticket: pool.Ticket[Any] | None = None, queue: pool.Turns[Any] | None = None) -> None:
        self._ticket, self._queue = ticket, queue
        self._busy = self._seen = 0.0  # when it was last seen at work, and the CPU seconds until then
        self._since = self._mark = 0.0  # the same of the last test that was done
        self.spent = 0.0
        self.answered = True
        self.again = math.inf if ticket is None or ticket.look >= pool.LAST else 0.0

    def goes_on(self, pid: int, cpu: float, now: float, *, silent: bool) -> bool:
        """Whether the run keeps its worker; no: its look is over, and others wait.

        Args:
            pid: The run's present child.
            cpu: CPU seconds of it.
            now: The monotonic clock.
            silent: Nothing has come from it; else it may seem to sleep because it waits for this side.
        """
        assert self._ticket is not None and self._queue is not None
        self.again = now + GLANCE
        cpu += self.spent
        if self.answered:
            self.answered, self._since, self._busy, self._mark = False, now, now, cpu
        if not silent or cpu > self._seen + 1e-3 or not _sleeps(pid):
            self._seen, self._busy = cpu, now
        look = self._ticket.look
        over = cpu >= pool.LOOKS[max(look, 1)] or (look == 0 and cpu - self._mark >= pool.LOOKS[0])
        if not (over or now - self._busy >= pool.IDLE_S or now - self._since >= pool.WALL * pool.LOOKS[look]):
            return True
        if not self._queue.goes_on(self._ticket):
            return False
        if self._ticket.look >= pool.LAST:
            self.again = math.inf
        return True


def _sleeps(pid: int) -> bool:
    """Whether a process waits for something other than a processor."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"R", b"D")
    except (OSError, IndexError):
        return False
