"""The list of system calls that a program may make, as a filter in the kernel's small machine language.

Everything else fails with ``EPERM``. A call with the numbers of another architecture kills the process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import struct
from collections.abc import Iterable

from . import syscalls

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000

_THREAD = 0x00050F00
"""The flags of ``clone`` that make a thread: VM, FS, FILES, SIGHAND, SYSVSEM, THREAD."""
_NEW_NAMESPACE = 0x7E020080
_WRITING = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000
"""The flags of ``open`` that write or create: access mode, CREAT, TRUNC, APPEND, TMPFILE."""
_FCNTL = (0, 1, 2, 3, 4, 1030)
"""DUPFD, GETFD, SETFD, GETFL, SETFL, DUPFD_CLOEXEC: no owner, no lock, no lease, no seals."""
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS (isatty), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""

_Code = list[tuple[int, int, int, int]]


def _verdict(error: int = 0) -> _Code:
    return [(_RETURN, 0, 0, _ERRNO | error if error else _ALLOW)]


def _load(argument: int, *, high: bool = False) -> tuple[int, int, int, int]:
    return _LOAD, 0, 0, 16 + 8 * argument + 4 * high


def _masked(argument: int, mask: int, wanted: int, error: int = errno.EPERM) -> _Code:
    """Allows the call if ``argument & mask == wanted``; the kernel looks at the low half only."""
    return [_load(argument), (_AND, 0, 0, mask), (_JUMP_EQUAL, 0, 1, wanted), *_verdict(), *_verdict(error)]


def _one_of(argument: int, values: Iterable[int]) -> _Code:
    code = [_load(argument)]
    for value in values:
        code += [(_JUMP_EQUAL, 0, 1, value), *_verdict()]
    return code + _verdict(errno.EPERM)


def _null(argument: int) -> _Code:
    """Allows the call if the argument, a pointer, is NULL in both halves."""
    no = (_JUMP_EQUAL, 0, 1, 0)
    low, high = _load(argument), _load(argument, high=True)
    return [low, (_JUMP_EQUAL, 0, 3, 0), high, no, *_verdict(), *_verdict(errno.EPERM)]


def _conditions(pid: int) -> dict[str, _Code]:
    return {
        "clone": _masked(0, _THREAD | _NEW_NAMESPACE, _THREAD),
        # Its flags lie in memory, where no filter reads; the C library then takes the older call.
        "clone3": _verdict(errno.ENOSYS),
        "openat2": _verdict(errno.ENOSYS),
        "open": _masked(1, _WRITING, 0, errno.EACCES),
        "openat": _masked(2, _WRITING, 0, errno.EACCES),
        "kill": _one_of(0, (pid,)),
        "tgkill": _one_of(0, (pid,)),
        "prlimit64": _one_of(0, (0, pid)),
        "prctl": _one_of(0, (syscalls.PR_SET_NAME, syscalls.PR_GET_NAME)),
        "fcntl": _one_of(1, _FCNTL),
        "ioctl": _one_of(1, _IOCTL),
        # A pair that talks to itself, as event loops use; no address, so no way to anybody else.
        "socketpair": _one_of(0, (1,)),
        "sendto": _null(4),
    }


_ANY_PID = 0x7FFF5A5A
"""Stands for the process in the filter that is made once: more than any process id."""


@functools.cache
def _template() -> tuple[bytes, ...]:
    """The filter, cut where the process id belongs."""
    return tuple(_assemble(_ANY_PID).split(struct.pack("=I", _ANY_PID)))


def program(pid: int) -> bytes:
    """The filter for the process ``pid``, as the kernel takes it."""
    return struct.pack("=I", pid).join(_template())


def _assemble(pid: int) -> bytes:
    code: _Code = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, _ARCHITECTURES[syscalls.MACHINE]), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, 0))
    if syscalls.MACHINE == "x86_64":
        code += [(_JUMP_ABOVE, 0, 1, _X32), *_verdict(errno.EPERM)]
    for name in syscalls.ALWAYS_ALLOWED:
        if name in syscalls.NUMBERS:
            code += [(_JUMP_EQUAL, 0, 1, syscalls.NUMBERS[name]), *_verdict()]
    for name, block in _conditions(pid).items():
        if name in syscalls.NUMBERS:
            code += [(_JUMP_EQUAL, 0, len(block), syscalls.NUMBERS[name]), *block]
    code += _verdict(errno.EPERM)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(pid: int) -> None:
    """Puts the calling thread, which has to be the only one, under the filter for good.

    Raises:
        OSError: The kernel refused.
    """
    code = program(pid)
    syscalls.prctl(syscalls.PR_SET_SECCOMP, 2, _Program(len(code) // 8, code))
