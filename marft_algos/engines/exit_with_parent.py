"""Runs another program that ends with the process that has started it, and whose processes end with it.

A server that holds a GPU must not outlive a worker that was killed, and its engine must not outlive a server that was
killed. The kernel sees to the former (Linux only), this process to the latter.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress

GRACE_S = 25
"""Seconds that a program may take to end."""
_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> int:
    """Runs the program in a group of processes of its own; returns its exit status, once nothing of it is left."""
    _tie(os.getppid())
    here = os.getpid()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        _tie(here)
        os.execv(words[0], words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever has started this ends it, and says so by SIGTERM
    signal.signal(signal.SIGALRM, lambda number, frame: os.killpg(child, signal.SIGKILL))

    def end(number: int, frame: object) -> None:
        os.kill(child, number)
        signal.alarm(GRACE_S)

    signal.signal(signal.SIGTERM, end)
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _tie(parent: int) -> None:
    """Asks for a signal at the parent's end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)  # it has ended meanwhile


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
