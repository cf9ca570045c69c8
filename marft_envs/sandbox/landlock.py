"""Landlock: the kernel lets a process give up the file system, TCP, and signals, without any right."""

from __future__ import annotations

import ctypes
import os

from . import syscalls

_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_O_PATH = 0o10000000


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The version of Landlock that the kernel offers.

    Raises:
        OSError: None: ENOSYS without Landlock, EOPNOTSUPP where it is switched off.
    """
    return syscalls.call("landlock_create_ruleset", None, 0, 1)


def _create(version: int, fs: int, net: int, scoped: int) -> int:
    size = 8 if version < 4 else 16 if version < 6 else 24
    return syscalls.call("landlock_create_ruleset", _Ruleset(fs, net, scoped), size, 0)


def _enforce(ruleset: int) -> None:
    try:
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def restrict_files(readable: list[tuple[str, bool]]) -> None:
    """From here on only these paths can be read, none written, no program executed, no TCP port used.

    Args:
        readable: Pairs of a path and whether everything beneath it may be read; if not, a folder's own names
            (and those beneath it) may be listed and that is all. Paths that do not exist are left out.
    """
    version = abi()
    fs = (1 << 13) - 1
    fs |= (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    ruleset = _create(version, fs, 3 if version >= 4 else 0, 0)
    for path, contents in readable:
        try:
            descriptor = os.open(path, _O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            access = _READ_DIR if os.path.isdir(path) else 0
            access |= _READ_FILE if contents else 0
            if access:
                syscalls.call("landlock_add_rule", ruleset, 1, _Beneath(access, descriptor), 0)
        finally:
            os.close(descriptor)
    _enforce(ruleset)


def restrict_signals() -> None:
    """From here on no signal and no abstract UNIX socket reaches a process outside, where the kernel offers it."""
    version = abi()
    if version >= 6:
        _enforce(_create(version, 0, 0, 3))
