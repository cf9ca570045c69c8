"""The micro-attacks of ``selftest``: a program that a worker is given, and that has to fail in all it tries."""

import ctypes
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)


def _system_call(number: int, *arguments: int) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _won(what: str, act: Callable[[], object]) -> str:
    """Does it; the name of what worked, or nothing."""
    try:
        result = act()
    except (OSError, MemoryError):
        return ""
    return f"{what} worked ({str(result)[:60]})"


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _execute() -> None:
    os.execv("/bin/true", ["true"])


def _spawn() -> None:
    os.posix_spawn("/bin/true", ["true"], {})


def _connect(family: int, address: Any) -> None:
    with socket.socket(family) as other:
        other.connect(address)


def _connect_in(folder: str) -> None:
    os.chdir(folder)  # the whole path may be longer than that of a socket can be
    _connect(socket.AF_UNIX, "socket")


def _write(folder: str) -> None:
    path = os.path.join(folder, "planted")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(20)


def _seize(pid: int, trace: int) -> None:
    _system_call(trace, 0x4206, pid, 0, 0)


def _thread() -> list[int]:
    answers: list[int] = []
    one = threading.Thread(target=answers.append, args=(1,))
    one.start()
    one.join()
    return answers


def attack(guarantee: str, facts: dict[str, Any]) -> str:
    """Returns what of a guarantee's attacks worked, or nothing."""
    n, host, parent = facts["numbers"], facts["host"], os.getppid()
    if host == os.getpid():
        host = parent  # in a namespace of processes the host's number may be this process's own
    loopback = (socket.AF_INET, ("127.0.0.1", facts["port"]))
    abstract = (socket.AF_UNIX, "\0" + facts["abstract"])
    tried: dict[str, list[tuple[str, Any]]] = {
        "no_processes": [("fork", _fork), ("spawn", _spawn), ("execve", _execute)],
        "no_network": [
            ("socket(AF_INET)", lambda: socket.socket(socket.AF_INET).close()),
            ("socket(AF_UNIX)", lambda: socket.socket(socket.AF_UNIX).close()),
            ("socket(AF_NETLINK)", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
            ("connect to loopback", lambda: _connect(*loopback)),
            ("connect to an abstract socket", lambda: _connect(*abstract)),
            ("connect to a named socket", lambda: _connect_in(facts["folder"])),
        ],
        "no_foreign_files": [("open " + path, lambda path=path: _read(path)) for path in facts["files"]],
        "no_writes": [("create in " + folder, lambda folder=folder: _write(folder)) for folder in facts["folders"]]
        + [
            ("chmod", lambda: os.chmod(facts["files"][0], 0o600)),
            ("mkdir", lambda: os.mkdir(facts["folder"] + "/new")),
        ],
        "no_signals": [
            ("kill(parent)", lambda: os.kill(parent, 0)),
            ("kill(host)", lambda: os.kill(host, 0)),
            ("kill(-1)", lambda: os.kill(-1, 0)),
            ("kill(0)", lambda: os.kill(0, 0)),
            ("ptrace(parent)", lambda: _seize(parent, n["ptrace"])),
            ("ptrace(host)", lambda: _seize(host, n["ptrace"])),
        ],
        "no_host_state": [
            (f"open /proc/{pid}/{name}", lambda pid=pid, name=name: _read(f"/proc/{pid}/{name}"))
            for pid in (host, parent)
            for name in ("environ", "cmdline", "mem", "maps")
        ]
        + [
            (f"process_vm_readv({pid})", lambda pid=pid: _system_call(n["process_vm_readv"], pid, 0, 0, 0, 0, 0))
            for pid in (host, parent)
        ],
        "no_rights": [
            ("setuid", lambda: _system_call(n["setuid"], 0)),
            ("unshare", lambda: _system_call(n["unshare"], 0x10000000)),
            ("mount", lambda: _system_call(n["mount"], 0, 0, 0, 0, 0)),
            ("memfd_create", lambda: _system_call(n["memfd_create"], id(0) + 32, 0)),
        ],
        "memory": [(f"{facts['too_much'] >> 20} MiB", lambda: len(bytearray(facts["too_much"])))],
    }
    if guarantee == "threads":
        return "" if _thread() == [1] else "a thread did not run"
    if guarantee == "no_host_state":
        foreign = sorted(set(os.environ) - {"PYTHONHASHSEED", "LANG", "LC_CTYPE", "TZ", "PWD", "MALLOC_ARENA_MAX"})
        if foreign:
            return f"environment variables {foreign}"
    return next(filter(None, (_won(*one) for one in tried[guarantee])), "")
