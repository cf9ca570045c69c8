"""Runs an MCP server and ends it, and all that it started, when its client is gone: ``guard.py CLIENT COMMAND …``.

The client closes a server that it leaves. One that was killed closes nothing, and a server that hangs does not see that
its input has ended. So a process stands between that does nothing but wait: for the server, and on Linux for the
kernel's word that the client is gone; elsewhere it looks once a second. Standard library only; run with ``-I -S``.
"""

import ctypes
import os
import signal
import sys
import types

_PR_SET_PDEATHSIG = 1
_LOOK_S = 1.0


def main(client: int, command: list[str]) -> int:
    """Runs the command in this process's group; returns its exit status."""

    def look(number: int = 0, frame: types.FrameType | None = None) -> None:
        if os.getppid() != client:
            os.killpg(0, signal.SIGKILL)  # this process is of the group, too

    # The library asks a group to end by SIGTERM: then the client is there, the server has got it, and is waited for.
    signal.signal(signal.SIGTERM, look)
    if not _signalled_by_the_kernel():
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    look()  # it may have gone before the kernel was asked
    child = os.fork()
    if not child:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # the pipes are the server's: their ends must tell of it
    os.dup2(null, 1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _signalled_by_the_kernel() -> bool:
    """Asks for SIGTERM when the client's thread that started this process ends."""
    if sys.platform != "linux":
        return False
    try:
        return ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False  # a C library without it


if __name__ == "__main__":
    code = main(int(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
