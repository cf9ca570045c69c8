"""System calls that Python's library does not offer, by number, through ctypes. Linux on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "syscalls.txt")
"""Calls, a line each: name, number on x86_64, number on aarch64 (``-``: not there), and whether the filter of programs
allows them whatever their arguments: none of those reaches another process or changes a file. The numbers are from the
kernel's unistd tables."""

_COLUMN = {"x86_64": 1, "aarch64": 2}
MACHINE = os.uname().machine if hasattr(os, "uname") else ""
SUPPORTED = sys.platform == "linux" and MACHINE in _COLUMN and sys.maxsize > 1 << 32

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_NAME = 1, 4, 15, 16
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 24, 38, 47


with open(_TABLE, encoding="ascii") as _file:
    _ROWS = [line.split() for line in _file][1:]
NUMBERS = {row[0]: int(number) for row in _ROWS if (number := row[_COLUMN.get(MACHINE, 1)]) != "-"}
"""System call numbers of this machine."""
ALWAYS_ALLOWED = tuple(name for name, *_, allowed in _ROWS if allowed == "always")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


if SUPPORTED:
    _syscall = ctypes.CDLL(None, use_errno=True).syscall
    _syscall.restype = ctypes.c_long


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | ctypes.Structure | None) -> int:
    """Makes a system call; integers are passed as unsigned longs, structures by address.

    Raises:
        OSError: The call failed; its ``filename`` is the name of the call.
    """
    passed: list[object] = []
    for argument in arguments:
        if isinstance(argument, int):
            passed.append(ctypes.c_ulong(argument))
        elif isinstance(argument, ctypes.Structure):
            passed.append(ctypes.byref(argument))
        else:
            passed.append(argument)
    result: int = _syscall(ctypes.c_long(NUMBERS[name]), *passed)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def prctl(option: int, first: int = 0, second: int | ctypes.Structure = 0) -> int:
    """``prctl`` with the unused arguments 0, as the kernel demands."""
    return call("prctl", option, first, second, 0, 0)


def drop_bounding() -> None:
    """Empties the bounding set of the calling thread, if it may; ``no_new_privs`` guards the same door."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # beyond the kernel's last capability, or not allowed


def drop_capabilities() -> None:
    """Empties the ambient, permitted, effective and inheritable sets of the calling thread."""
    try:
        prctl(PR_CAP_AMBIENT, 4)
    except OSError as error:
        if error.errno != errno.EINVAL:  # kernels without ambient capabilities
            raise
    call("capset", _Header(0x20080522, 0), bytes(24))


def no_new_privs() -> None:
    """From here on no program that is executed gains rights; Landlock and seccomp demand it."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
