"""A folder that behaves as one on a network disk does: what the system says there, on the disk of the tests.

* ``nfs``: a file that is deleted while another process has it open stays under a hidden name, and so does its folder.
* ``cifs``: what is open can neither be deleted nor renamed, nor can a folder that holds it; folders cannot be synced,
  and there are neither links nor rights.
* ``fuse``: as ``nfs``, and nothing can be synced or locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class OddDisk:
    """What stands in the place of the system's calls below a folder.

    Args:
        kind: ``nfs``, ``cifs`` or ``fuse``.
        root: The folder.
        patch: Puts the system's own calls back.
    """

    def __init__(self, kind: str, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.kind, self.root = kind, os.path.realpath(root)
        self.open = ""
        """The folder of which another process has every file open, by whatever name it goes; empty: none is."""
        refused = {"fsync": self._fsync, "unlink": self._unlink, "remove": self._unlink}
        refused |= {"rename": self._rename, "replace": self._rename}
        if kind == "cifs":
            refused |= {name: self._refusing(errno.EPERM) for name in ("link", "symlink", "chmod", "utime", "setxattr")}
        for name, call in refused.items():
            patch.setattr(os, name, self._below(getattr(os, name), call))
        if kind == "fuse":
            patch.setattr(fcntl, "flock", self._refusing(errno.ENOSYS))

    def _below(self, real: Callable[..., Any], odd: Callable[..., Any]) -> Callable[..., Any]:
        """Calls the odd one for what is below the folder."""

        def call(path: Any, *rest: Any, **named: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fspath(path)
            if (folder := named.get("dir_fd")) is not None:
                place = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), place)
            place = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
            if not place.startswith(self.root):
                return real(path, *rest, **named)
            return odd(real, place, path, *rest, **named)

        return call

    def _is_open(self, place: str) -> bool:
        named = re.search(rf"/(\.tmp-old-)?{self.open}-*/", place) if self.open else None
        return named is not None and stat.S_ISREG(os.lstat(place).st_mode)

    def _fsync(self, real: Any, place: str, descriptor: int) -> None:
        if self.kind == "fuse" or (self.kind == "cifs" and os.path.isdir(place)):
            raise OSError(errno.ENOSYS if self.kind == "fuse" else errno.EINVAL, "cannot be synced")
        real(descriptor)

    def _unlink(self, real: Any, place: str, path: Any, **named: Any) -> None:
        if not self._is_open(place):
            return real(path, **named)
        name = os.path.basename(place)
        if self.kind == "cifs" or name.startswith("."):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), place)
        os.rename(place, os.path.join(os.path.dirname(place), f".{self.kind}_{name}"))
        return None

    def _rename(self, real: Any, place: str, *paths: Any, **named: Any) -> Any:
        inside = [place, *(os.path.join(at, name) for at, _, files in os.walk(place) for name in files)]
        if self.kind == "cifs" and any(map(self._is_open, inside)):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), place)
        return real(*paths, **named)

    @staticmethod
    def _refusing(number: int) -> Callable[..., None]:
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

        return refuse
