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


_PROGRAM = Path(__file__).with_name("microattacks.py")

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
        program = {"source": _PROGRAM.read_text(encoding="utf-8"), "entry_point": "attack", "setup": "", "prelude": ""}
        results = run_calls(worker, Look(), program, calls, limits)
    finally:
        worker.kill()
    for name, result in zip(TESTED, results, strict=True):
        if text := _breach(name, result):
            yield Failure(name, text, 0, "the micro-attack was not stopped")


def _breach(name: str, result: CallResult) -> str:
    if name == "memory" and result.status == "memory_limit":
        return ""
    return str(result.value) if result.status == "ok" else f"{result.status}: {result.message[-300:]}"
