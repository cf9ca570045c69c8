"""Micro-attacks that a layer has to stop before any program is trusted to it. They run the way programs do."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from marft_envs.sandbox import syscalls
from marft_envs.sandbox.look import Look
from marft_envs.sandbox.supervise import run_calls
from marft_envs.sandbox.types import Call, CallResult, Limits
from marft_envs.sandbox.worker import Lost, SandboxWorker, StartFailure

_MEMORY_MB = 256


@dataclass(frozen=True)
class Failure:
    """One guarantee that a layer does not give here.

    Attributes:
        guarantee: A key of ``TESTED``, or ``start`` if the worker could not shut itself in.
        call: The failing system call, or what the micro-attack did.
        errno: The kernel's answer, 0 if there was none.
        text: What happened.
    """

    guarantee: str
    call: str
    errno: int
    text: str


PROGRAM = '''
import ctypes, os, signal, socket, threading

libc = ctypes.CDLL(None, use_errno=True)

def system_call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def won(what, act):
    """Does it; the name of what worked, or nothing."""
    try:
        result = act()
    except (OSError, MemoryError):
        return ""
    return f"{what} worked ({str(result)[:60]})"

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def execute():
    os.execv("/bin/true", ["true"])

def spawn():
    os.posix_spawn("/bin/true", ["true"], {})

def connect(family, address):
    with socket.socket(family) as other:
        other.connect(address)

def connect_in(folder):
    os.chdir(folder)  # the whole path may be longer than that of a socket can be
    connect(socket.AF_UNIX, "socket")

def write(folder):
    path = os.path.join(folder, "planted")
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)

def read(path):
    with open(path, "rb") as file:
        return file.read(20)

def seize(pid, trace):
    system_call(trace, 0x4206, pid, 0, 0)

def thread():
    answers = []
    one = threading.Thread(target=answers.append, args=(1,))
    one.start()
    one.join()
    return answers

def attack(guarantee, facts):
    n, host, parent = facts["numbers"], facts["host"], os.getppid()
    if host == os.getpid():
        host = parent  # in a namespace of processes the host's number may be this process's own
    loopback = (socket.AF_INET, ("127.0.0.1", facts["port"]))
    abstract = (socket.AF_UNIX, "\\0" + facts["abstract"])
    tried = {
        "no_processes": [("fork", fork), ("spawn", spawn), ("execve", execute)],
        "no_network": [
            ("socket(AF_INET)", lambda: socket.socket(socket.AF_INET).close()),
            ("socket(AF_UNIX)", lambda: socket.socket(socket.AF_UNIX).close()),
            ("socket(AF_NETLINK)", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
            ("connect to loopback", lambda: connect(*loopback)),
            ("connect to an abstract socket", lambda: connect(*abstract)),
            ("connect to a named socket", lambda: connect_in(facts["folder"])),
        ],
        "no_foreign_files": [("open " + path, lambda path=path: read(path)) for path in facts["files"]],
        "no_writes": [("create in " + folder, lambda folder=folder: write(folder)) for folder in facts["folders"]]
        + [
            ("chmod", lambda: os.chmod(facts["files"][0], 0o600)),
            ("mkdir", lambda: os.mkdir(facts["folder"] + "/new")),
        ],
        "no_signals": [
            ("kill(parent)", lambda: os.kill(parent, 0)),
            ("kill(host)", lambda: os.kill(host, 0)),
            ("kill(-1)", lambda: os.kill(-1, 0)),
            ("kill(0)", lambda: os.kill(0, 0)),
            ("ptrace(parent)", lambda: seize(parent, n["ptrace"])),
            ("ptrace(host)", lambda: seize(host, n["ptrace"])),
        ],
        "no_host_state": [
            (f"open /proc/{pid}/{name}", lambda pid=pid, name=name: read(f"/proc/{pid}/{name}"))
            for pid in (host, parent) for name in ("environ", "cmdline", "mem", "maps")
        ] + [
            (f"process_vm_readv({pid})", lambda pid=pid: system_call(n["process_vm_readv"], pid, 0, 0, 0, 0, 0))
            for pid in (host, parent)
        ],
        "no_rights": [
            ("setuid", lambda: system_call(n["setuid"], 0)),
            ("unshare", lambda: system_call(n["unshare"], 0x10000000)),
            ("mount", lambda: system_call(n["mount"], 0, 0, 0, 0, 0)),
            ("memfd_create", lambda: system_call(n["memfd_create"], id(0) + 32, 0)),
        ],
        "memory": [(f"{facts['too_much'] >> 20} MiB", lambda: len(bytearray(facts["too_much"])))],
    }
    if guarantee == "threads":
        return "" if thread() == [1] else "a thread did not run"
    if guarantee == "no_host_state":
        foreign = sorted(set(os.environ) - {"PYTHONHASHSEED", "LANG", "LC_CTYPE", "TZ", "PWD", "MALLOC_ARENA_MAX"})
        if foreign:
            return f"environment variables {foreign}"
    return next(filter(None, (won(*one) for one in tried[guarantee])), "")
'''

TESTED = {
    "threads": "threads work",
    "memory": "the program's memory is bounded",
    "no_foreign_files": "the program reads the standard library and nothing else",
    "no_writes": "the program creates and changes no file",
    "no_network": "the program has no sockets but pairs with itself",
    "no_signals": "the program signals and traces no process but itself",
    "no_host_state": "the program sees no environment, arguments or memory of another process",
    "no_rights": "the program gains no user, namespace, mount, or kernel object",
    "no_processes": "the program starts no process and executes nothing",
}
"""What is checked in every layer, in this order."""


def failures(parts: frozenset[str]) -> Iterator[Failure]:
    """Starts a worker of these mechanisms, attacks from within, and yields what was not stopped."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marft-selftest-")))
        folder.chmod(0o777)
        canary = folder / "canary"
        canary.write_text(secrets.token_hex(8))
        canary.chmod(0o666)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"marft-{secrets.token_hex(8)}"
        descriptor = os.open(folder, os.O_PATH)
        stack.callback(os.close, descriptor)
        # A socket's path has at most 107 bytes, and a batch system's TMPDIR may take most of them.
        for address in (f"\0{abstract}", f"/proc/self/fd/{descriptor}/socket"):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
        (folder / "socket").chmod(0o777)
        facts = {
            "numbers": syscalls.NUMBERS,
            "host": os.getpid(),
            "port": tcp.getsockname()[1],
            "abstract": abstract,
            "folder": str(folder),
            "files": [str(canary), "/etc/passwd", "/etc/hostname", "/proc/version"],
            "folders": [str(folder), "/tmp", "/dev/shm", "/", "/var/tmp", os.getcwd()],
            "too_much": _MEMORY_MB << 21,
        }
        try:
            yield from _attack(parts, [Call("call", repr([name, facts])) for name in TESTED])
        except StartFailure as error:
            failure = error.failure
            yield Failure("start", failure["call"] or failure["step"], failure["errno"] or 0, str(error))
        except Lost as error:
            yield Failure("start", "start", 0, str(error))


def _attack(parts: frozenset[str], calls: list[Call]) -> Iterator[Failure]:
    limits = Limits(cpu_s=5.0, wall_s=20.0, total_s=60.0, memory_mb=_MEMORY_MB)
    worker = SandboxWorker(parts)
    try:
        program = {"source": PROGRAM, "entry_point": "attack", "setup": "", "prelude": ""}
        results = run_calls(worker, Look(), program, calls, limits)
    finally:
        worker.kill()
    for name, result in zip(TESTED, results, strict=True):
        if text := _breach(name, result):
            yield Failure(name, text, 0, "the micro-attack was not stopped")


def _breach(name: str, result: CallResult) -> str:
    if name == "memory" and result.status == "memory_limit":
        return ""
    if result.status == "ok":
        return str(result.value)
    return f"{result.status}: {result.message[-300:]}"
