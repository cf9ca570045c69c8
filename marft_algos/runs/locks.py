"""One process at a time writes into a run's folder.

The lock is the kernel's (``flock`` on an open file), so it ends with the process that holds it, however that ends: a
file that a killed process has left behind is no obstacle. Between machines it holds where the file system says so: NFS
since version 4, Lustre and the like if mounted with locking.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from marft_envs.errors import MarftError

FILE = ".lock"


class InUse(MarftError, RuntimeError):
    """Another process writes into the run."""


@dataclass
class _Held:
    file: IO[str]
    depth: int = 0


_HELD: dict[str, _Held] = {}
"""Folders that this process has locked: it may lock them again."""


@contextmanager
def held(folder: Path, command: str = "") -> Iterator[None]:
    """Holds the folder's lock; again in the same process, as long as the first time lasts.

    Args:
        folder: Of the run; it exists.
        command: What the holder does, for whoever is refused.

    Raises:
        InUse: Another process holds it; the message says which, on which machine, since when.
        OSError: The folder cannot be written.
    """
    key = os.path.realpath(folder)
    mine = _HELD.get(key)
    if mine is None:
        mine = _HELD[key] = _Held(_taken(folder, command))
    mine.depth += 1
    try:
        yield
    finally:
        mine.depth -= 1
        if not mine.depth and _HELD.pop(key, None) is not None:
            mine.file.truncate(0)
            mine.file.close()


def _taken(folder: Path, command: str) -> IO[str]:
    file = (folder / FILE).open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            file.seek(0)
            message = _refusal(folder, file.read())
            file.close()
            raise InUse(message) from None
        # A file system without locks. To refuse would keep runs off it; to say nothing would hide what may happen.
        warnings.warn(
            f"{folder} lies on a file system that cannot lock files ({error.strerror}): see to it that only one process"
            " writes into the run.",
            stacklevel=4,
        )
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": command}
    file.truncate(0)
    file.write(json.dumps(who))
    file.flush()
    return file


def _refusal(folder: Path, text: str) -> str:
    """Says who holds the lock, and what to do."""
    try:
        who: dict[str, Any] = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(who["since"])))
        by = f"process {int(who['pid'])} on {who['host']} since {since}"
        by += f" ({who['command']})" if who["command"] else ""
        end = f"kill {int(who['pid'])}" if who["host"] == socket.gethostname() else "kill it on that machine"
    except (ValueError, KeyError, TypeError):  # it has the lock, and has not said who it is yet
        by, end = "another process", "end it"
    return f"'{folder}' is being written by {by}. Two would mix up its records. Wait until it is done, or {end} first."


def _forget() -> None:
    """Forgets the locks in a forked child: they are the parent's, and end with it, not with its last child."""
    for mine in _HELD.values():
        mine.file.close()
    _HELD.clear()


os.register_at_fork(after_in_child=_forget)
