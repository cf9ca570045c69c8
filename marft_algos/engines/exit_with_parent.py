"""Becomes another program that ends with the process that has started it: ``python -m … PROGRAM WORDS…``.

A server that holds a GPU must not outlive a worker that was killed. The kernel sees to it (Linux only).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> None:
    """Asks for a signal at the parent's end, and becomes the program."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)  # it has ended meanwhile
    os.execv(words[0], words)


if __name__ == "__main__":
    main(sys.argv[1:])
