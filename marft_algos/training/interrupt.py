"""Ctrl-C, SIGTERM and SIGHUP: a run is broken off where what it has learnt can be saved."""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from marft_algos import terminal
from marft_algos.ranks.group import Alone, RankGroup

SAME_S = 2.0
"""Seconds within which two signals to one of several ranks are one."""
STACK_S = 25.0
"""Seconds after which a rank that was told to stop says where it hangs: after 30 its launcher kills it."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP, after the state was saved."""


class Interrupt:
    """Handles Ctrl-C, SIGTERM or SIGHUP: at once while nothing that a checkpoint holds changes, else as soon as it can.

    A second one takes effect at once, and leaves the last checkpoint as it is. Where several ranks train, all of them
    stop behind the same iteration.

    Args:
        group: The ranks.
    """

    def __init__(self, group: RankGroup | None = None) -> None:
        self._group = group or Alone()
        self.whole = False
        """The interruption came where the state can be saved."""
        self._requested = False
        self._when = -math.inf
        self._safe = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            terminal.leave()
        # A terminal's Ctrl-C reaches every rank, and then the launcher sends each of them a SIGTERM.
        same = self._group.size > 1 and time.monotonic() - self._when < SAME_S
        again, self._requested, self._when = self._requested and not same, True, time.monotonic()
        if self._safe or again:
            self.whole = self._safe
            raise KeyboardInterrupt
        if self._group.size > 1 and sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(STACK_S, file=sys.__stderr__)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Marks code in which nothing that a checkpoint holds changes."""
        if self._group.size > 1:  # the others would wait for this one: see ``agreed``
            yield
            return
        if self._requested:
            self.whole = True
            raise KeyboardInterrupt
        self._safe = True
        try:
            yield
        finally:
            self._safe = False

    def agreed(self) -> None:
        """Stops all ranks, if one is to stop; called behind an iteration."""
        if self._group.size > 1 and self._group.agree(self._requested):
            self.whole = True
            faulthandler.cancel_dump_traceback_later()
            raise KeyboardInterrupt

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Receives the signals while inside; a SIGHUP that is ignored stays so (``nohup``)."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals reach the main thread only
            return
        heard = [signal.SIGINT, signal.SIGTERM]
        heard += [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
        before = {number: signal.signal(number, self) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
