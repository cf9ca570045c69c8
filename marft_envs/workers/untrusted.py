"""Runs work on text that a model wrote, which nobody has vouched for, in killable worker processes.

A process pool of the standard library is wedged for good by a sample that never returns, and
``signal.alarm`` works on the main thread only. A ``WorkerPool`` talks JSON lines to processes of its own,
kills one that misses its deadline, and starts another. A deadline is CPU time of the worker, so that an answer does
not depend on what else the machine does. POSIX only (process groups, resource limits).
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from marft_envs.errors import ConfigError, WorkerError
from marft_envs.workers.pool import LAST, START_DEADLINE, GaveWay, Process, ProcessPool

WALL = 5.0
"""Seconds of the wall clock for each of a deadline: the cap on a worker that waits or is kept from the processor."""

_CHUNK = 1 << 16


class WorkerTimeout(WorkerError):
    """The worker spent its CPU time; it was killed."""

    fault = "text"


class WorkerLate(WorkerTimeout):
    """The wall clock's cap ran out before the worker's CPU time did: the machine kept it from working."""

    fault = "machine"


class WorkerCrashed(WorkerError):
    """The worker died, ran out of memory, or answered nonsense."""

    fault = "text"


class WorkerOutOfMemory(WorkerCrashed):
    """The worker asked for more than its limit of memory."""


class WorkerRaised(WorkerError):
    """The target raised an exception on this payload; the worker lives on."""

    fault = "text"


class WorkerStartError(WorkerError):
    """No worker can start, because its target cannot be imported: a broken installation, not a bad sample."""


class WorkerProcess(Process):
    """One worker process and the pipe to it; its arguments are the pool's."""

    ready = worn = False

    def __init__(self, target: str, deadline: float, memory_mb: int) -> None:
        paths = [path or os.getcwd() for path in sys.path]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.target = target
        self._ids = itertools.count()
        self._buffer = bytearray()
        self._popen = subprocess.Popen(
            # -P: nothing that lies in the working directory may shadow a module.
            [sys.executable, "-P", "-m", "marft_envs.workers.untrusted", target, str(deadline), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._pipes = self._popen.stdin, self._popen.stdout
        self._in, self._out = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def wait_ready(self) -> None:
        if not self.ready:
            reply = self._exchange(b"", START_DEADLINE)
            if "error" in reply:
                raise WorkerStartError(f"the worker for {self.target} could not start: {reply['error']}")
            self.ready = True

    def call(self, line: str, deadline: float) -> Any:
        self.wait_ready()
        number = next(self._ids)
        reply = self._exchange(f'{{"id": {number}, "payload": {line}}}\n'.encode(), WALL * deadline)
        if reply.get("id") != number:
            raise WorkerCrashed(f"the worker for {self.target} broke the protocol; it was replaced")
        if "error" in reply:
            kind = WorkerOutOfMemory if reply.get("fatal") else WorkerRaised
            raise kind(f"{self.target} raised {reply['error']}")
        return reply["result"]

    def _exchange(self, data: bytes, deadline: float) -> dict[str, Any]:
        """Writes ``data``, reads one JSON line; both ends are non-blocking, so that the deadline holds."""
        until = time.monotonic() + deadline
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        if data:
            poll.register(self._in, select.POLLOUT)
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0:
                raise WorkerLate(
                    f"{self.target} gave no answer in {deadline:g} s by the clock, with CPU time left; its worker was"
                    " replaced. Give the machine less to do if that happens often."
                )
            for descriptor, _ in poll.poll(left * 1000):
                try:
                    if descriptor == self._in:
                        data = data[os.write(self._in, data[:_CHUNK]) :]
                        if not data:
                            poll.unregister(self._in)
                        continue
                    chunk = os.read(self._out, _CHUNK)
                except (BrokenPipeError, ValueError, OSError):
                    chunk = b""
                if not chunk:
                    raise self._epitaph()
                self._buffer += chunk
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            raise WorkerCrashed(f"the worker for {self.target} answered no JSON; it was replaced") from None

    def _epitaph(self) -> WorkerError:
        """Says why the worker is gone: the kernel's clock of its CPU time, or anything else."""
        try:
            code = self._popen.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            cause = "it closed its output"
        else:
            if code == -signal.SIGPROF:
                return WorkerTimeout(f"{self.target} spent its CPU time without an answer; its worker was replaced")
            cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return WorkerCrashed(f"the worker for {self.target} died ({cause}); it was replaced")

    def signal(self) -> None:
        """Sends SIGKILL to the worker and everything it started in its process group."""
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self._popen.kill()

    def kill(self) -> None:
        self.signal()
        self._popen.wait()
        for pipe in self._pipes:
            pipe.close()


class WorkerPool(ProcessPool[WorkerProcess]):
    """Calls ``module:function`` in worker processes, with a deadline and a memory limit.

    The function takes one JSON value and returns one. Safe to share between threads: at most ``size``
    calls run at once, further callers wait. Processes start at the first call that needs them. Pickling
    keeps the settings and drops the processes; a deep copy shares the pool.

    Args:
        target: ``module:function``, importable in a fresh interpreter.
        size: Most processes alive at once.
        deadline: CPU seconds that one call may take, and ``WALL`` times as many of the wall clock; a call that
            starts a worker waits for it too.
        memory_mb: Address space of each worker in MiB (Linux enforces it; macOS does not).

    Raises:
        ConfigError: The target is not ``module:function``, a number makes no sense, or the system is Windows.
    """

    spoilt_by = (WorkerTimeout, WorkerCrashed)
    kept_after = (GaveWay, WorkerRaised)

    def __init__(self, target: str, size: int = 1, deadline: float = 2.0, memory_mb: int = 1024) -> None:
        if os.name != "posix":
            raise ConfigError("worker processes need a POSIX system; on Windows, run MARFT inside WSL")
        module, _, function = target.partition(":")
        if not module or not function:
            raise ConfigError(f"worker target '{target}' is not 'module:function', e.g. 'json:dumps'")
        if size < 1 or deadline <= 0 or memory_mb < 1:
            got = f"{size}, {deadline}, {memory_mb}"
            raise ConfigError(f"a pool needs size, deadline and memory_mb above 0; got {got}")
        self.target, self.size, self.deadline, self.memory_mb = target, size, deadline, memory_mb
        super().__init__(f"worker pool for {target}", partial(WorkerProcess, target, deadline, memory_mb), size)

    def call(self, payload: Any) -> Any:
        """Runs the target on ``payload`` in a worker.

        Raises:
            WorkerTimeout: No answer within the CPU time; the worker was killed and the pool stays usable.
            WorkerLate: The same, by the wall clock.
            WorkerCrashed: The worker died or ran out of memory, or the pool was closed; it stays usable otherwise.
            WorkerStartError: The target cannot be imported.
            WorkerRaised: The target raised; the message holds its exception.
            WorkerError: The pool is closed.
        """
        line = json.dumps(payload)
        return self._run(lambda process, _: process.call(line, self.deadline), LAST)

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerPool, (self.target, self.size, self.deadline, self.memory_mb)


def _limit_memory(memory_mb: int) -> None:
    import resource

    limit = memory_mb << 20
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ValueError, OSError):
        if sys.platform == "linux":
            raise  # macOS refuses RLIMIT_AS; on Linux a refusal is news


def _answer(function: Callable[[Any], Any], line: bytes, cpu_seconds: float) -> dict[str, Any]:
    request = json.loads(line)
    # The kernel kills the worker when its CPU time is up, even if its parent is gone or the machine is busy.
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        return {"id": request["id"], "result": function(request["payload"])}
    except MemoryError:
        return {"id": request["id"], "error": "MemoryError", "fatal": True}
    except Exception as error:  # reported to the caller, who raises
        return {"id": request["id"], "error": f"{type(error).__name__}: {error}"[:2000]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _main(target: str, deadline: float, memory_mb: int) -> None:
    """Runs the worker's side: one JSON line in, one out, on descriptors that nothing else writes to."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    module, _, name = target.partition(":")
    try:
        _limit_memory(memory_mb)
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # reported to the caller, who raises
        return reply({"error": f"{type(error).__name__}: {error}"})
    reply({"ready": True})
    for line in requests:
        message = _answer(function, line, deadline)
        try:
            reply(message)
        except (TypeError, ValueError) as error:
            reply({"id": message["id"], "error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    _main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
