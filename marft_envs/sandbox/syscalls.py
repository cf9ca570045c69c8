"""System calls that Python's library does not offer, by number, through ctypes. Linux on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_TABLE = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, preadv 295 69, lseek 8 62, close 3 57
close_range 436 436, fstat 5 80, newfstatat 262 79, stat 4 -, lstat 6 -, statx 332 291, access 21 -
faccessat 269 48, faccessat2 439 439, open 2 -, openat 257 56, openat2 437 437, getdents64 217 61
readlink 89 -, readlinkat 267 78, getcwd 79 17, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59
eventfd2 290 19, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, ioctl 16 29, fcntl 72 25
socketpair 53 199, sendto 44 206, recvfrom 45 207, socket 41 198, connect 42 203
mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, brk 12 214
futex 202 98, set_robust_list 273 99, rseq 334 293, set_tid_address 218 96, clone 56 220, clone3 435 435
fork 57 -, vfork 58 -, execve 59 221, exit 60 93, exit_group 231 94
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigtimedwait 128 137, rt_sigsuspend 130 133
rt_sigpending 127 136, sigaltstack 131 132, restart_syscall 219 128, kill 62 129, tgkill 234 131
alarm 37 -, pause 34 -, getitimer 36 102, setitimer 38 103, nanosleep 35 101, clock_nanosleep 230 115
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153
getpid 39 172, gettid 186 178, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177
getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgrp 111 -, getpgid 121 155, getsid 124 156
getrusage 98 165, prlimit64 302 261, prctl 157 167
sched_yield 24 124, sched_getaffinity 204 123, sched_getparam 143 121, sched_getscheduler 145 120
sched_get_priority_max 146 125, sched_get_priority_min 147 126, getcpu 309 168, uname 63 160, sysinfo 99 179
getrandom 318 278, wait4 61 260, waitid 247 95, setuid 105 146, ptrace 101 117, process_vm_readv 310 270
unshare 272 97, mount 165 40, umount2 166 39, pivot_root 155 41, mount_setattr 442 442, sethostname 170 161
capset 126 91, memfd_create 319 279, seccomp 317 277
landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446
"""
"""Name, number on x86_64, number on aarch64 (``-``: not there). From the kernel's unistd tables."""

_COLUMN = {"x86_64": 1, "aarch64": 2}
MACHINE = os.uname().machine if hasattr(os, "uname") else ""
SUPPORTED = sys.platform == "linux" and MACHINE in _COLUMN and sys.maxsize > 1 << 32

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_GET_NAME = 1, 4, 15, 16
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 24, 38, 47


def _numbers() -> dict[str, int]:
    rows = [entry.split() for line in _TABLE.strip().splitlines() for entry in line.split(",")]
    column = _COLUMN.get(MACHINE, 1)
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


NUMBERS = _numbers()
"""System call numbers of this machine."""


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
