"""The worker's program: a fresh interpreter that shuts itself in, loads the library, and forks a child per run.

It is run by path, so that nothing but the standard library and this folder is ever imported. Its memory, which
every child inherits, holds no program, no input and no expected value: the host hands each child its own channel,
over which the two talk past the worker.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import resource
import select
import signal
import socket
import sys
import types
import warnings
from contextlib import suppress
from typing import Any, NoReturn

PACKAGE = "_marft_sandbox"

LIBRARY = tuple(
    """
abc array ast bisect cmath collections contextlib copy dataclasses datetime decimal enum fractions functools hashlib
heapq inspect io itertools json linecache math numbers operator os pprint queue random re reprlib statistics string
struct textwrap threading time traceback types typing unicodedata weakref zlib
""".split()  # noqa: SIM905
)
"""Imported before the doors close, because programs commonly use them. Others can be imported later all the same; each
module more makes every fork and every exit a little slower."""

EXTENSIONS = ("_bz2", "_hashlib", "_lzma", "_sqlite3", "_ssl", "_uuid", "pyexpat")
"""Loaded too, since the system's libraries that they need cannot be seen from within."""


def _import_siblings() -> None:
    package = types.ModuleType(PACKAGE)
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules[PACKAGE] = package
    for name in ("syscalls", "namespaces", "landlock", "seccomp", "values", "wire", "child"):
        globals()[name] = importlib.import_module(f"{PACKAGE}.{name}")


if __name__ == "__main__":
    _import_siblings()
else:
    from . import child, landlock, namespaces, seccomp, syscalls, values, wire  # noqa: F401


def preload() -> None:
    """Imports what programs commonly import; a module that this Python was built without is left out."""
    import ctypes

    for name in (*LIBRARY, *EXTENSIONS):
        with suppress(ImportError):
            importlib.import_module(name)
    with suppress(OSError):
        ctypes.CDLL("libgcc_s.so.1")  # the C library opens it when a thread ends early, and could not any more
    warnings.simplefilter("ignore")


def _address_space() -> int:
    """Bytes of address space in use; a generous guess where bubblewrap shows no /proc."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 64 << 20


def _wait_for_either(zygote: int, host: int) -> NoReturn:
    """The outer half of a worker: ends with the zygote, and ends the zygote with the host."""
    poll = select.poll()
    for process in (zygote, host):
        with suppress(OSError):  # without pidfds the zygote notices by itself that the host's channel closed
            poll.register(os.pidfd_open(process), select.POLLIN)
    while not os.waitpid(zygote, os.WNOHANG)[0]:
        if os.getppid() != host:
            with suppress(ProcessLookupError):
                os.kill(zygote, signal.SIGKILL)
            os.waitpid(zygote, 0)
            break
        poll.poll(10_000)
    os._exit(0)


class Zygote:
    """Shuts itself in and serves the host."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.step = "start"
        self.child: int | None = None
        self.run = 0
        self.base = 0
        self.own_uid = False
        self.mechanisms: list[str] = []

    @property
    def enclosed(self) -> bool:
        """Whether this process is number 1 of a process namespace of its own."""
        return "namespaces" in self.mechanisms or "bubblewrap" in self.mechanisms

    def prepare(self) -> None:
        """Everything from the fresh interpreter to the closed room.

        Raises:
            OSError: The kernel refused; ``step`` says at which step.
        """
        setup = json.loads(self.control.recv(1 << 16))
        self.mechanisms = setup["mechanisms"]
        self.step = "load the standard library"
        preload()
        self.base = _address_space()
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # rather a program than the trainer, when the machine runs out of memory
        if "bubblewrap" not in self.mechanisms:
            self._fork_inside()
        elif os.getpid() != 1:
            raise OSError(1, "the worker is not process 1 of its namespace", "bwrap --as-pid-1")
        self._give_up_rights()

    def _fork_inside(self) -> None:
        host = os.getppid()
        if "namespaces" in self.mechanisms:
            self.step = "enter new namespaces"
            self.own_uid = namespaces.enter()
        pid = os.fork()
        if pid:
            self.control.close()
            for standard in (1, 2):
                os.dup2(0, standard)
            _wait_for_either(pid, host)
        if "namespaces" in self.mechanisms:
            self.step = "change the root of the file system"
            namespaces.change_root()

    def _give_up_rights(self) -> None:
        self.step = "drop capabilities"
        readable = namespaces.readable() if "landlock" in self.mechanisms else []
        syscalls.drop_bounding()
        if self.own_uid or (not self.enclosed and os.getuid() == 0 and _library_is_public()):
            namespaces.become_nobody()
            self.own_uid = True
        syscalls.drop_capabilities()
        self.step = "no_new_privs"
        syscalls.no_new_privs()
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        if "bubblewrap" not in self.mechanisms:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if "landlock" in self.mechanisms:
            self.step = "landlock"
            landlock.restrict_files(readable)
        self.step = "serve"
        for standard in (1, 2):
            os.dup2(0, standard)

    def say(self, **message: Any) -> None:
        self.control.send(json.dumps(message).encode())

    def serve(self) -> None:
        """Answers orders until the host closes the channel."""
        wakeup, signalled = socket.socketpair()
        for end in (wakeup, signalled):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
        seccomp.program(0)  # made once, here, for all children
        gc.collect()
        gc.disable()
        gc.freeze()
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wakeup, select.POLLIN)
        self.say(ready=True, own_uid=self.own_uid)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self.control.fileno():
                    if not self._obey():
                        return
                else:
                    with suppress(BlockingIOError):
                        wakeup.recv(4096)
            self._reap()

    def _obey(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 7)
        if not data:
            return False
        order = json.loads(data)
        if order["op"] == "run":
            self._start(order, descriptors)
        elif order["op"] == "kill" and self.child is not None and order["run"] == self.run:
            self._kill()
        return True

    def _start(self, order: dict[str, Any], descriptors: list[int]) -> None:
        order["mechanisms"] = self.mechanisms
        order["memory"] += self.base
        order["processes"] = self._processes()
        self.run = order["run"]
        try:
            pid = os.fork()
        except OSError as error:
            self.say(run=self.run, failed={"step": "fork", "call": "fork", "errno": error.errno, "text": str(error)})
            pid = None
        if pid == 0:
            try:
                child.main(order, descriptors)
            finally:
                os._exit(1)
        self.child = pid
        for descriptor in descriptors:
            os.close(descriptor)

    def _processes(self) -> int:
        """The limit on threads. 0, none but the memory, where it would count other processes of the host's user."""
        release = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
        if self.enclosed and release >= (5, 14):
            return 256  # since 5.14 the kernel counts within the namespace
        return 1024 if self.own_uid else 0

    def _kill(self) -> None:
        assert self.child is not None
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
        if "seccomp" not in self.mechanisms:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child, signal.SIGKILL)

    def _reap(self) -> None:
        while self.child is not None:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self._sweep()
                self.child = None
                cpu = usage.ru_utime + usage.ru_stime
                self.say(run=self.run, status=status, cpu=cpu, rss_kb=usage.ru_maxrss)

    def _sweep(self) -> None:
        """Ends whatever else lives in the namespace; with seccomp in force there is nothing."""
        assert self.child is not None
        if os.getpid() == 1 and self.enclosed:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
        elif "seccomp" not in self.mechanisms:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child, signal.SIGKILL)


def _library_is_public() -> bool:
    """Whether nobody could read the standard library; where not, a root host's worker stays root without rights."""
    folders = namespaces.library()
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    try:
        namespaces.become_nobody()
        for folder in folders:
            os.listdir(folder) if os.path.isdir(folder) else os.stat(folder)
        os._exit(0)
    finally:
        os._exit(1)


def main(control: socket.socket) -> None:
    """The worker's life."""
    zygote = Zygote(control)
    try:
        zygote.prepare()
    except OSError as error:
        failure = {"step": zygote.step, "call": error.filename, "errno": error.errno, "text": str(error)}
        zygote.say(failed=failure)
        return
    zygote.serve()


if __name__ == "__main__":
    os.dup2(int(sys.argv[1]), child.REQUESTS)  # a low number, which the child's own pipe takes over
    main(socket.socket(fileno=child.REQUESTS))
    os._exit(0)
