"""What lies on disk: written whole, read with checks, and by one process at a time.

The lock is the kernel's (``flock`` on an open file), so it ends with the process that holds it, however that ends: a
file that a killed process has left behind is no obstacle. Between machines it holds where the file system says so: NFS
since version 4, Lustre and the like if mounted with locking.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from marft_algos.jsonl import drop_cut_line
from marft_envs.errors import DataError, MarftError, reading

FILE = ".lock"


class Inside:
    """The path of something in a folder, as an attribute of the class that has the folder as ``root``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, kind: type) -> Path:
        return Path(folder.root, self.name)


class InUse(MarftError, RuntimeError):
    """Another process writes into the run."""


_HELD: dict[str, IO[str]] = {}
"""Folders that this process has locked: it may lock them again."""


@contextmanager
def held(folder: Path, command: str = "") -> Iterator[None]:
    """Holds the folder's lock; again in the same process, as long as the first time lasts.

    Args:
        folder: Of the run; it exists.
        command: What the holder does, as a refusal says it.

    Raises:
        InUse: Another process holds it; the message says which, on which machine, since when.
        OSError: The folder cannot be written.
    """
    key = os.path.realpath(folder)
    if key in _HELD:
        yield
        return
    file = _HELD[key] = _taken(folder, command)
    try:
        yield
    finally:
        if _HELD.pop(key, None) is not None:
            file.truncate(0)
            file.close()


def writer(folder: Path) -> tuple[int, str] | None:
    """Returns process and machine of who holds a folder's lock, by what the holder wrote; it takes no lock itself.

    A process of this machine that was killed writes no more; of one on another machine what stands there is believed.
    """
    try:
        who = json.loads((folder / FILE).read_text(encoding="utf-8"))
        number, host = int(who["pid"]), str(who["host"])
        if host == socket.gethostname():
            with suppress(PermissionError):  # somebody else's process
                os.kill(number, 0)
        return number, host
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _taken(folder: Path, command: str) -> IO[str]:
    file = (folder / FILE).open("a+", encoding="utf-8")
    if not lock(file, folder, fcntl.LOCK_NB):
        file.seek(0)
        message = _refusal(folder, file.read())
        file.close()
        raise InUse(message)
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": command}
    file.truncate(0)
    file.write(json.dumps(who))
    file.flush()
    return file


def lock(file: IO[str], folder: Path, how: int = 0) -> bool:
    """Locks an open file; returns whether no other process holds it. Where nothing can be locked, it warns.

    Args:
        file: The file.
        folder: What it stands for.
        how: ``fcntl.LOCK_NB``; else it waits.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | how)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        # A file system without locks. To refuse would keep runs off it; to say nothing would hide what may happen.
        warnings.warn(
            f"{folder} lies on a file system that cannot lock files ({error.strerror}): see to it that only one process"
            " writes there.",
            stacklevel=5,
        )
    return True


def _refusal(folder: Path, text: str) -> str:
    """Says who holds the lock, and what to do."""
    try:
        who: dict[str, Any] = json.loads(text)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(who["since"])))
        by = f"process {int(who['pid'])} on {who['host']} since {since}"
        by += f" ({who['command']})" if who["command"] else ""
        end = f"kill {int(who['pid'])}" if who["host"] == socket.gethostname() else "kill it on that machine"
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # it has not said who it is yet
        by, end = "another process", "end it"
    return f"'{folder}' is being written by {by}. Two would mix up its records. Wait until it is done, or {end} first."


def _forget() -> None:
    """Forgets the locks in a forked child: they are the parent's, and end with it, not with its last child."""
    for file in _HELD.values():
        file.close()
    _HELD.clear()


os.register_at_fork(after_in_child=_forget)


class RunError(MarftError, OSError):
    """The run's folder cannot be written."""


def lines(path: Path, fields: Mapping[str, tuple[Any, str]], *, needed: bool = False) -> list[dict[str, Any]]:
    """Reads every complete line of a JSONL file; a last one that was cut is none.

    Args:
        path: The file; where there is none, there are no lines.
        fields: What is counted on in a line: key -> its type, and what that is.
        needed: Whether every line must have them.

    Raises:
        DataError: A line is something else.
    """
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [_line(line, f"{path}, line {i}", fields, needed=needed) for i, line in enumerate(lines[:-1], 1) if line]


def _line(line: bytes, where: str, fields: Mapping[str, tuple[Any, str]], *, needed: bool) -> dict[str, Any]:
    with reading(f"{where} is not JSON", "Take it out, or go back to a copy of the run.", DataError):
        record = json.loads(line)
    if not isinstance(record, dict):
        raise DataError(f"{where} holds {type(record).__name__}; expected an object with {', '.join(fields)}.")
    for key, (kind, what) in fields.items():
        if (needed or key in record) and (not isinstance(value := record.get(key), kind) or isinstance(value, bool)):
            raise DataError(f"{where}: '{key}' is {repr(value)[:80]}; expected {what}.")
    return record


def fix(path: Path) -> None:
    """Drops the last line of a JSONL file if it was cut, as another one is to be added, or all are to be read.

    Raises:
        RunError: The file cannot be written.
    """
    if path.is_file():
        with writing(path), path.open("rb+") as file:
            drop_cut_line(file)


_DENIED = (errno.EACCES, errno.EPERM)
_FORBIDDEN = (*_DENIED, errno.EROFS)
_MISPLACED = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
_UNSYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY)
"""What CIFS, FUSE and the like say where nothing can be synced."""
_UNSYNCED_FOLDER = (*_DENIED, errno.EBADF, errno.EISDIR)
_IN_USE = (*_DENIED, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ETXTBSY, errno.ESTALE, errno.EXDEV)
"""What network disks say of what another process has open; the last: of folders of a lower layer of OverlayFS."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a read-only folder into an error that says what to do.

    Raises:
        RunError: Whatever the system says when the path cannot be written.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, MarftError):
            raise
        raise RunError(f"Cannot write {path}: {error.strerror or error}. {_remedy(path, error.errno)}") from error


def write_whole(path: Path, text: str, errors: str = "strict") -> None:
    """Writes a file, whole or not at all.

    Args:
        path: The file.
        text: All of it.
        errors: ``replace`` for what agents say: lone surrogates may occur in it, and UTF-8 has no place for them.

    Raises:
        RunError: It cannot be written.
    """
    with writing(path):
        aside = path.with_suffix(".tmp")
        aside.write_text(text, encoding="utf-8", errors=errors)
        aside.replace(path)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of another one when it is written, and is cleared away if it is not.

    Of a link in that place the link goes, and nothing behind it.

    Raises:
        RunError: It cannot be written.
    """
    aside = folder.with_name(f".tmp-{folder.name}")
    with writing(folder):
        remove(aside)
        aside.mkdir(parents=True)
        try:
            yield aside
            for path in [*aside.rglob("*"), aside]:
                _fsync(path)
            before = _moved(folder)
            aside.rename(folder)
            _fsync(folder.parent)
        finally:
            clear(aside)  # a half-written one would take what little room is left
    _cleared(before)


def remove(folder: Path) -> None:
    """Deletes a folder, or a link to one, so that no half of it is ever taken for a whole.

    What is in use elsewhere may have to stay, with a warning: as it is, or as ``.tmp-old-…``, for ``clear``.

    Raises:
        OSError: It cannot be deleted for another reason.
    """
    try:
        _cleared(_moved(folder))
    except OSError as error:
        if error.errno not in _IN_USE:
            raise
        warnings.warn(f"{folder} is in use ({error.strerror}), so it stays. It may be deleted by hand.", stacklevel=2)


def clear(path: Path) -> bool:
    """Deletes a folder, or a link to one, as far as it can be; returns whether all of it is gone."""
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def copy(source: Path, target: Path) -> None:
    """Copies the files below a folder, and not their rights and times, which not every file system can keep."""
    for file in (path for path in source.rglob("*") if path.is_file()):
        (place := target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def _moved(folder: Path) -> Path | None:
    """Makes room for another folder, and returns where this one is now, if there is something to delete."""
    if folder.is_symlink():
        folder.unlink()
    if not os.path.lexists(folder):
        return None
    old = folder.with_name(f".tmp-old-{folder.name}")
    while not clear(old):  # it could not be deleted the last time, and cannot be now
        old = old.with_name(f"{old.name}-")
    return folder.rename(old)


def _cleared(old: Path | None) -> None:
    if old is not None and not clear(old):
        warnings.warn(f"{old} could not be deleted wholly: a file of it is in use. Delete it later.", stacklevel=3)


def _fsync(path: Path) -> None:
    """Has the disk write what it was given; where folders, or anything, cannot be synced, nothing was lost by that."""
    refusals = (*_UNSYNCED, *(_UNSYNCED_FOLDER if path.is_dir() else ()))
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in refusals:
            raise


def _remedy(path: Path, number: int | None) -> str:
    """Says what to do when a path cannot be written."""
    if number in _FORBIDDEN:
        return "Expected a folder that you may write to: choose one with --runs-dir, or change its permissions."
    if number in _IN_USE and number not in _MISPLACED:
        return "Another process may have it, or a file in it, open: end that one, and go on: marft train --resume RUN"
    if number in _MISPLACED:
        return "Expected a folder, or room for one, there: choose another --runs-dir or --name."
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free / 1e6
    return (
        f"What was saved before is intact ({free:,.1f} MB are free there). Make room, or raise your quota, and go on:"
        " marft train --resume RUN"
    )
