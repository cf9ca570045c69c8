"""Namespaces of its own for a worker: users, processes, files, network, IPC, host name."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from . import syscalls

UID = 65534
"""What the program is inside, and outside too where the host may say so: nobody."""

_NEW = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWNET, NEWIPC, NEWUTS."""
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_STATVFS_RELATIME, _RELATIME = 4096, 1 << 21
_DETACH, _RECURSIVE, _AT_FDCWD = 2, 0x8000, -100 & (1 << 64) - 1
DEVICES = ("/dev/null", "/dev/urandom")
FOREIGN = ("site-packages", "dist-packages")
"""Folders of the library that hold other people's packages, this one among them perhaps."""
ZONES = "/usr/share/zoneinfo"


def library() -> list[str]:
    """The folders and archives that this interpreter imports the standard library from."""
    return [path for path in sys.path if os.path.isabs(path) and os.path.exists(path)]


def readable() -> list[tuple[str, bool]]:
    """What a program may read, as ``landlock.restrict_files`` takes it: the standard library and little else."""
    paths = [(path, True) for path in (*DEVICES, ZONES)]
    for folder in library():
        if not os.path.isdir(folder):
            paths.append((folder, True))
            continue
        paths.append((folder, False))
        paths += [(os.path.join(folder, name), True) for name in os.listdir(folder) if name not in FOREIGN]
    return paths


def enter() -> bool:
    """Moves this process into new namespaces; its next child will be process 1 of them.

    A host that is root maps two users, itself for the time of the setup and nobody for the program. Any other
    host can map only itself, so that the program has the host's uid outside, without being able to use it.

    Returns:
        Whether the program will have a uid of its own outside.

    Raises:
        OSError: The kernel refused.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0 and _map_from_outside():
        return True
    if not _entered:
        syscalls.call("unshare", _NEW)
    _write("setgroups", "deny")
    _write("uid_map", f"{UID} {uid} 1")
    _write("gid_map", f"{UID} {gid} 1")
    return False


_entered = False


def _write(name: str, text: str, process: int | str = "self") -> None:
    path = f"/proc/{process}/{name}"
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"write {path}") from None


def _map_from_outside() -> bool:
    """Enters and has a child that stayed outside write the maps, as only a process outside may map two users."""
    global _entered
    parent = os.getpid()
    ask_read, ask_write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        with suppress(OSError):
            os.close(ask_write)
            if os.read(ask_read, 1):
                for name in ("uid_map", "gid_map"):
                    _write(name, f"0 0 1\n{UID} {UID} 1", parent)
                status = 0
        os._exit(status)
    os.close(ask_read)
    try:
        syscalls.call("unshare", _NEW)
        _entered = True
        os.write(ask_write, b"x")
    finally:
        os.close(ask_write)
        status = os.waitpid(child, 0)[1]
    return status == 0


def become_nobody() -> None:
    """Leaves root for good: the uid and gid are nobody's, no groups, no capabilities."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    try:
        syscalls.call("mount", text(source), text(target), text(kind), flags, text(data) if data else None)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"mount {kind or 'bind'}") from None


class _Attributes(syscalls.ctypes.Structure):
    _fields_ = tuple((name, syscalls.ctypes.c_uint64) for name in ("set", "clear", "propagation", "user"))


def _seal(target: str, flags: int) -> None:
    """Makes a mount and all below it read-only; old kernels: this one alone, with the flags that it has."""
    try:
        attributes = _Attributes(flags, 0, 0, 0)
        syscalls.call("mount_setattr", _AT_FDCWD, os.fsencode(target), _RECURSIVE, attributes, 32)
    except OSError as error:
        if error.errno != 38:
            raise
        has = os.statvfs(target).f_flag
        kept = has & 0xC0F | (_RELATIME if has & _STATVFS_RELATIME else 0)
        _mount(None, target, None, _REMOUNT | _BIND | kept | flags)


def _base(sources: list[str]) -> str:
    for path in ("/sys", "/mnt", "/media", "/opt", "/tmp", "/var"):
        if os.path.isdir(path) and not any(source == path or source.startswith(f"{path}/") for source in sources):
            return path
    raise OSError(2, "no folder to mount on", "mount tmpfs")


def change_root() -> None:
    """Puts this process into an empty, read-only file system that shows the standard library and two devices.

    Raises:
        OSError: The kernel refused.
    """
    sources = [*library(), *DEVICES, *([ZONES] if os.path.isdir(ZONES) else [])]
    _mount(None, "/", None, _REC | _PRIVATE)
    base = _base([os.path.realpath(path) for path in sources] + sources)
    _mount("tmpfs", base, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m,nr_inodes=4096")
    for source in sources:
        target = base + source
        if os.path.isdir(source):
            if not os.path.isdir(target):
                os.makedirs(target, 0o755)
        else:
            os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
            if not os.path.exists(target):
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        _mount(source, target, None, _BIND | _REC)
        _seal(target, _RDONLY | _NOSUID | _NOEXEC * (source in DEVICES) | _NODEV * (source not in DEVICES))
        for name in FOREIGN:
            hidden = os.path.join(target, name)
            if os.path.isdir(hidden):
                _mount("tmpfs", hidden, "tmpfs", _NOSUID | _NODEV | _RDONLY, "mode=755,size=4k")
    os.chdir(base)
    syscalls.call("pivot_root", b".", b".")
    syscalls.call("umount2", b".", _DETACH)
    os.chdir("/")
    _mount(None, "/", None, _REMOUNT | _BIND | _RDONLY | _NOSUID | _NODEV)
    syscalls.call("sethostname", b"sandbox", 7)
