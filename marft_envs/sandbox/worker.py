"""The host's handle on one worker process, and on the child that runs in it."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from marft_envs.errors import WorkerError
from marft_envs.sandbox import namespaces
from marft_envs.workers.pool import START_DEADLINE, Process

READY_DEADLINE = 20.0
"""Seconds a forked child may take to become ready, and a killed one to be gone."""
RUNS_PER_WORKER = 1000
"""Runs after which a worker is replaced, so that nothing can add up."""
_RUNS = itertools.count(1)
_CREDENTIALS = struct.Struct("3i")


class StartFailure(WorkerError):
    """The worker said which step the kernel refused.

    Attributes:
        failure: ``step``, ``call``, ``errno`` and ``text``.
    """

    def __init__(self, failure: dict[str, Any]) -> None:
        self.failure = failure
        super().__init__(f"the sandbox's worker failed to {failure['step']}: {failure['text']}")


class Lost(WorkerError):
    """The worker died or does not answer: the sandbox's fault, not the program's."""


Item = socket.socket | IO[bytes] | io.FileIO
"""Never a bare number, which may already be somebody else's when it is closed a second time."""

_OPEN: set[Item] = set()
"""Descriptors that a forked copy of the host has to close, or a program would wait for its end of input."""


def track(*items: Item) -> None:
    """Notes descriptors, so that ``close`` closes them once and a forked copy of the host closes them too."""
    _OPEN.update(items)


def close(*items: Item) -> None:
    """Closes what ``track`` noted. Legal twice."""
    for item in items:
        _OPEN.discard(item)
        item.close()


def _close_in_fork() -> None:
    for item in list(_OPEN):
        with contextlib.suppress(OSError):
            close(item)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)


def channel(kind: int) -> tuple[socket.socket, socket.socket]:
    """A pair of connected sockets; the first is the host's, gets each sender's credentials, and never blocks."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    track(ours, theirs)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setblocking(False)
    return ours, theirs


def pipe(*, to_child: bool) -> tuple[io.FileIO, io.FileIO]:
    """A pipe in one direction: the host's end, which never blocks, and the child's."""
    read, write = os.pipe()
    ends = io.FileIO(read), io.FileIO(write, "w")
    track(*ends)
    ours, theirs = reversed(ends) if to_child else ends
    os.set_blocking(ours.fileno(), False)
    return ours, theirs


def receive(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """What arrived, and the process id of its sender as the kernel knows it (0: unknown)."""
    data, extra, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(_CREDENTIALS.size))
    for level, kind, content in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(content) == _CREDENTIALS.size:
            return data, _CREDENTIALS.unpack(content)[0]
    return data, 0


def wait(sock: socket.socket, until: float) -> bool:
    """Whether something arrived before the monotonic time ``until``."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(max(0.0, until - time.monotonic()) * 1000))


@functools.cache
def _bubblewrap() -> list[str]:
    """The command that starts a worker's interpreter under bubblewrap."""
    if (program := shutil.which("bwrap")) is None:
        raise StartFailure({"step": "find bubblewrap", "call": "bwrap", "errno": 2, "text": "no program 'bwrap'"})
    shown = [*_shared_libraries(), *_library_of(sys.executable)]
    uid = str(namespaces.UID)
    command = [program, "--unshare-all", "--unshare-user", "--uid", uid, "--gid", uid, "--hostname", "sandbox"]
    command += ["--as-pid-1", "--new-session", "--cap-drop", "ALL", "--dev", "/dev", "--chdir", "/"]
    for path in dict.fromkeys(shown):
        command += ["--ro-bind-try", path, path]
        for hidden in (os.path.join(path, name) for name in namespaces.FOREIGN):
            command += ["--tmpfs", hidden] if os.path.isdir(hidden) else []
    here = str(Path(__file__).parent)
    command += ["--ro-bind", here, here]
    return [*command, "--remount-ro", "/"]


def _library_of(executable: str) -> list[str]:
    code = "import sys; print(*[sys.executable, sys.base_exec_prefix + '/bin', *sys.path], sep='\\n')"
    done = subprocess.run([executable, "-S", "-s", "-P", "-E", "-c", code], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if os.path.isabs(line)]
    return [*lines, *[os.path.realpath(line) for line in lines], os.path.join(sys.prefix, "pyvenv.cfg")]


def _shared_libraries() -> list[str]:
    fixed = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    lib = os.path.join(sys.base_prefix, "lib")
    return fixed + [str(path) for path in Path(lib).glob("libpython*")] if os.path.isdir(lib) else fixed


class SandboxWorker(Process):
    """One worker process. Used by one thread at a time.

    Args:
        mechanisms: Of ``namespaces``, ``landlock``, ``seccomp``, ``bubblewrap``.
    """

    def __init__(self, mechanisms: frozenset[str]) -> None:
        self.mechanisms = mechanisms
        self.ready = self.worn = self.own_uid = False
        self.runs = 0
        self._pidfd: io.FileIO | None = None
        prefix = _bubblewrap() if "bubblewrap" in mechanisms else []
        self.control, theirs = channel(socket.SOCK_SEQPACKET)
        script = str(Path(__file__).with_name("zygote.py"))
        command = [*prefix, sys.executable, "-S", "-s", "-P", "-B", script, str(theirs.fileno())]
        # Malloc reserves address space per arena, and by default takes an arena per thread.
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "TZ": "UTC", "MALLOC_ARENA_MAX": "2"},
                cwd="/",
            )
        except OSError as error:
            close(self.control)
            raise Lost(f"the sandbox's worker cannot be started: {error}") from None
        finally:
            close(theirs)
        assert self._popen.stderr is not None
        track(self._popen.stderr)
        self.say(mechanisms=sorted(mechanisms))

    def say(self, descriptors: tuple[int, ...] = (), **message: Any) -> None:
        data = json.dumps(message).encode()
        try:
            socket.send_fds(self.control, [data], descriptors)
        except OSError as error:
            raise Lost(f"the sandbox's worker cannot be reached: {error}; {self._epitaph()}") from None

    def receive(self, until: float) -> dict[str, Any]:
        """The worker's next message.

        Raises:
            Lost: There was none by the monotonic time ``until``, or the worker is gone.
        """
        if not wait(self.control, until):
            raise Lost("the sandbox's worker does not answer")
        try:
            data, pid = receive(self.control, 1 << 16)
        except OSError as error:
            raise Lost(f"the sandbox's worker is gone: {error}") from None
        if not data:
            raise Lost(f"the sandbox's worker is gone; {self._epitaph()}")
        if self._pidfd is None and pid:
            with contextlib.suppress(OSError):
                self._pidfd = io.FileIO(os.pidfd_open(pid))
                track(self._pidfd)
        return json.loads(data)

    def wait_ready(self) -> None:
        """Waits until the worker has shut itself in.

        Raises:
            StartFailure: A step of it was refused.
            Lost: It died or took too long.
        """
        if self.ready:
            return
        message = self.receive(time.monotonic() + START_DEADLINE)
        if "failed" in message:
            raise StartFailure(message["failed"])
        self.ready, self.own_uid = True, bool(message["own_uid"])

    def start(self, order: dict[str, Any], descriptors: tuple[int, ...]) -> int:
        """Forks a child that holds ``descriptors``. Returns the number of the run."""
        self.wait_ready()
        self.runs += 1
        self.worn = self.runs >= RUNS_PER_WORKER
        number = next(_RUNS)
        self.say(descriptors, op="run", run=number, **order)
        return number

    def forget(self) -> None:
        super().forget()
        self._pidfd = None

    def kill_child(self, run: int) -> None:
        self.say(op="kill", run=run)

    def ended(self, run: int, until: float) -> dict[str, Any]:
        """The end of run ``run`` as the worker reports it: ``status`` (of wait), ``cpu``, ``rss_kb``."""
        while True:
            message = self.receive(until)
            if message.get("run") == run:
                return message

    def __del__(self) -> None:
        if hasattr(self, "_popen"):
            self.kill()

    def _epitaph(self) -> str:
        """What the worker's process left behind."""
        try:
            code = self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "it closed its channel"
        assert self._popen.stderr is not None
        text = ""
        if not self._popen.stderr.closed:
            os.set_blocking(self._popen.stderr.fileno(), False)
            text = (self._popen.stderr.read() or b"").decode("utf-8", "replace").strip()[-500:]
        return f"exit status {code}{': ' + text if text else ''}"

    def signal(self) -> None:
        """SIGKILL to the worker, whose end takes all in it along."""
        with contextlib.suppress(OSError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd.fileno(), signal.SIGKILL)
        self._popen.kill()

    def kill(self) -> None:
        """Ends the worker and everything in it, and reaps it. Legal twice; for the thread that uses it."""
        self.signal()
        if self._pidfd is not None:
            close(self._pidfd)
            self._pidfd = None
        close(self.control)
        self._popen.wait()
        assert self._popen.stderr is not None
        close(self._popen.stderr)
