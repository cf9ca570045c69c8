"""The host's side of one run: sends inputs, reads answers, watches the clock, and ends the child."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from marft_envs.sandbox import types, values, wire
from marft_envs.sandbox import worker as host
from marft_envs.sandbox.look import GLANCE, Look
from marft_envs.sandbox.types import MESSAGE_CAP, Call, CallResult, CallStatus, Limits, StdioResult
from marft_envs.workers.pool import GaveWay

_LOOK = 0.05
"""Seconds until the CPU clock of a silent child is read, and between readings."""
_CHUNK = 1 << 16
_ENVELOPE = 8 * MESSAGE_CAP
"""Bytes of a frame beyond the value in it: the status and a message."""
MOST = 1 << 28
"""Characters of one value that goes in."""
NONSENSE = "the program wrote on the sandbox's channel"
_SAID: tuple[CallStatus, ...] = (
    "ok", "runtime_error", "memory_limit", "output_limit", "bad_value", "compile_error", "no_entry_point", "exited",
)  # fmt: skip
"""What a child may say about its program. It cannot say "timeout": the clock is on this side."""


class Child:
    """A forked child that is ready for a program.

    It says so over a socket, by which the kernel names its process. It closes that before any user code runs, and is
    left with a pipe for requests and one for replies.

    Raises:
        Lost: It did not become ready; no user code has run.
    """

    def __init__(
        self, worker: host.SandboxWorker, look: Look, limits: Limits, deadline: float, stdio: tuple[int, ...] = ()
    ) -> None:
        self.worker, self.look, self.limits, self.deadline = worker, look, limits, deadline
        self.hello, theirs = host.channel(socket.SOCK_STREAM)
        (self.requests, read), (self.replies, write) = host.pipe(to_child=True), host.pipe(to_child=False)
        nothing = io.FileIO(os.devnull, "r+")  # its own: the flags of a shared one would reveal other runs
        host.track(nothing)
        self.frames = wire.Frames()
        self.end: dict[str, Any] | None = None
        # Threads can burn several seconds of CPU in one of the wall clock.
        cpu = math.ceil(limits.total_s * (os.cpu_count() or 1)) + 5
        try:
            order = {"memory": int(limits.memory_mb) << 20, "cpu": cpu}
            self.run = worker.start(order, (*(end.fileno() for end in (theirs, read, write, nothing)), *stdio))
        except BaseException:
            self.close()
            raise
        finally:
            host.close(theirs, read, write, nothing)
        try:
            self.pid = self._ready()
        except BaseException:
            self.close()
            raise
        host.close(self.hello)

    def _ready(self) -> int:
        until = time.monotonic() + host.READY_DEADLINE
        poll = select.poll()
        poll.register(self.hello, select.POLLIN)
        poll.register(self.worker.control, select.POLLIN)
        frames = wire.Frames()
        while True:
            events = poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not events:
                raise host.Lost("the sandbox's child did not become ready")
            if self.hello.fileno() not in [descriptor for descriptor, _ in events]:
                message = self.worker.receive(until)
                if message.get("run") == self.run:
                    raise host.Lost(f"the sandbox's child died before it was ready: {message}")
                continue
            data, pid = host.receive(self.hello, _CHUNK)
            frames.feed(data)
            if (frame := frames.next(_CHUNK)) is not None:
                if b'"ready"' not in frame:
                    raise host.StartFailure(json.loads(frame)["failed"])
                return pid
            if not data:
                raise host.Lost("the sandbox's child died before it was ready")

    def cpu(self) -> float:
        """CPU seconds used so far, from the kernel's clock of the process."""
        if self.end is not None:
            return float(self.end["cpu"])
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0  # it has just ended; its last reading comes with the end

    def finish(self) -> dict[str, Any]:
        """Kills the child if it lives, and returns its end.

        Raises:
            Lost: The worker did not obey.
        """
        if self.end is None:
            self.worker.kill_child(self.run)
            self.end = self.worker.ended(self.run, time.monotonic() + host.READY_DEADLINE)
            self.look.spent += float(self.end["cpu"])
        return self.end

    def nap(self) -> float:
        """Milliseconds until the clocks are read again."""
        return 1000 * (_LOOK if self.look.again == math.inf else GLANCE)

    def close(self) -> None:
        host.close(self.hello, self.requests, self.replies)

    # ---- function mode ---------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> CallResult:
        """Sends one request and judges what comes back; afterwards ``end`` tells whether the child still lives."""
        began = time.monotonic()
        result = self._answer(request, began)
        self.look.answered = True
        return dataclasses.replace(result, wall_s=time.monotonic() - began)

    def _answer(self, request: dict[str, Any], began: float) -> CallResult:
        start = self.cpu()
        if len(self.frames):
            return self._stop("runtime_error", NONSENSE, start)
        out = memoryview(wire.pack(json.dumps(request).encode()))
        poll = select.poll()
        poll.register(self.requests, select.POLLOUT)
        poll.register(self.replies, select.POLLIN)
        events: list[tuple[int, int]] | None = None
        while True:
            if late := self.late(start, began, silent=events == []):
                return self._stop("timeout", late, start)
            for descriptor, _ in (events := poll.poll(self.nap())):
                try:
                    if descriptor == self.requests.fileno():
                        out = out[os.write(descriptor, out[:_CHUNK]) :]
                        if not out:
                            poll.unregister(descriptor)
                        continue
                    data = os.read(descriptor, _CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if not data:
                    return self._died(start)
                try:
                    self.frames.feed(data)
                    frame = self.frames.next(int(self.limits.output_bytes) + _ENVELOPE)
                except wire.FrameError as error:
                    return self._stop("output_limit", str(error), start)
                if frame is not None:
                    return self._read(frame, start)

    def late(self, start: float, began: float, *, silent: bool) -> str:
        """Why the time is up, or nothing; ``silent`` if the last wait for the child was in vain.

        Raises:
            GaveWay: The run's look is over, and others wait; the child is dead.
        """
        now, limits = time.monotonic(), self.limits
        if now >= self.look.again:
            cpu = self.cpu() if self.end is None else 0.0
            if not self.look.goes_on(self.pid, cpu, now, silent=silent):
                self.finish()
                raise GaveWay
        if now > self.deadline:
            return f"the run took more than {limits.total_s:g} s"
        if now - began > limits.wall_s:
            return f"more than {limits.wall_s:g} s by the clock"
        if now - began > _LOOK / 2 and self.cpu() - start > limits.cpu_s:
            return f"more than {limits.cpu_s:g} s of CPU time"
        return ""

    def _stop(self, status: CallStatus, message: str, start: float) -> CallResult:
        self.finish()
        return CallResult(status, message=message, cpu_s=max(0.0, self.cpu() - start))

    def _died(self, start: float) -> CallResult:
        end = self.finish()
        status, message = self.cause(end)
        return CallResult(status, message=message, cpu_s=max(0.0, end["cpu"] - start))

    def cause(self, end: dict[str, Any]) -> tuple[CallStatus, str]:
        """Verdict and words for a child that ended by itself."""
        if os.WIFEXITED(end["status"]):
            return "exited", f"the program ended the process with exit status {os.WEXITSTATUS(end['status'])}"
        number = os.WTERMSIG(end["status"])
        if number == signal.SIGXCPU:
            return "timeout", "the CPU time of the whole run is used up"
        name = signal.Signals(number).name if number in signal.valid_signals() else str(number)
        if number == signal.SIGKILL:
            return "runtime_error", types.KILLED
        return "runtime_error", f"the process died from {name}"

    def _read(self, frame: bytes, start: float) -> CallResult:
        cpu = max(0.0, self.cpu() - start)
        if cpu > self.limits.cpu_s:
            return self._stop("timeout", f"more than {self.limits.cpu_s:g} s of CPU time", start)
        try:
            reply = json.loads(frame)
            status = _SAID[_SAID.index(reply["status"])]
            message = clean(reply["message"])
            value = values.decode(reply["value"]) if status == "ok" and reply["value"] else None
        except values.BadValue as error:
            return CallResult("bad_value", message=str(error), cpu_s=cpu)
        except (ValueError, KeyError, TypeError, RecursionError):
            return self._stop("runtime_error", NONSENSE, start)
        return CallResult(status, value, message, cpu)


def clean(text: str) -> str:
    """Untrusted text, capped, without lone surrogates."""
    if not isinstance(text, str):
        raise TypeError("not text")
    return text[-MESSAGE_CAP:].encode("utf-8", "replace").decode()


def _request(call: Call) -> dict[str, Any]:
    request: dict[str, Any] = {"kind": call.kind, "text": call.text}
    if call.kind == "expr":
        request["values"] = [values.encode(value, MOST) for value in call.values]
    return request


def run_calls(
    worker: host.SandboxWorker, look: Look, program: Mapping[str, str], calls: Sequence[Call], limits: Limits
) -> list[CallResult]:
    """Runs a program's calls, each under its own limits; a child that dies is replaced by a fresh one.

    A run in which two tests ran out of time in their sleep is over: the rest are ``timeout``.
    """
    deadline = time.monotonic() + limits.total_s
    load = {**program, "limit": int(limits.output_bytes)}
    results: list[CallResult] = []
    while len(results) < len(calls):
        if time.monotonic() > deadline:
            rest = CallResult("timeout", message=f"the run took more than {limits.total_s:g} s")
            return results + [rest] * (len(calls) - len(results))
        if sum(result.slept for result in results) >= types.MOST_SLEPT:
            rest = CallResult("timeout", message=types.SLEPT)
            return results + [rest] * (len(calls) - len(results))
        child = Child(worker, look, limits, deadline)
        try:
            loaded = child.answer(load)
            if loaded.status != "ok":
                if child.end is None:
                    child.finish()
                return results + [loaded] * (len(calls) - len(results))
            while child.end is None and len(results) < len(calls):
                call = calls[len(results)]
                results.append(child.answer(_request(call)))
            child.finish()
        finally:
            child.close()
    return results


def run_stdio(
    worker: host.SandboxWorker, look: Look, program: Mapping[str, str], stdin: bytes, limits: Limits
) -> StdioResult:
    """Runs a program once on standard input."""
    inner: list[io.FileIO] = []
    outer: list[io.FileIO] = []
    try:
        for to_child in (True, False, False):
            ours, theirs = host.pipe(to_child=to_child)
            outer.append(ours)
            inner.append(theirs)
        numbers = tuple(end.fileno() for end in inner)
        child = Child(worker, look, limits, time.monotonic() + limits.total_s, numbers)
        host.close(*inner)
        try:
            return _Stdio(child, outer, program, stdin).result()
        finally:
            child.close()
    finally:
        host.close(*inner, *outer)


class _Stdio:
    """Feeds and drains one run."""

    def __init__(self, child: Child, pipes: list[io.FileIO], program: Mapping[str, str], stdin: bytes) -> None:
        self.child, self.input = child, pipes[0]
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in pipes)
        request = wire.pack(json.dumps({**program, "stdio": True}).encode())
        self.pending = {child.requests.fileno(): memoryview(request), self.stdin: memoryview(stdin)}
        self.read: dict[int, bytearray] = {self.stdout: bytearray(), self.stderr: bytearray()}
        self.said: dict[str, Any] = {}
        self.poll = select.poll()
        self.poll.register(child.worker.control, select.POLLIN)
        for descriptor in self.pending:
            self.poll.register(descriptor, select.POLLOUT)
        for descriptor in (child.replies.fileno(), *self.read):
            self.poll.register(descriptor, select.POLLIN)
        self.open = {self.stdout, self.stderr}

    def result(self) -> StdioResult:
        child, began = self.child, time.monotonic()
        start = child.cpu()
        verdict: tuple[CallStatus, str] | None = None
        ended, events = math.inf, [(0, 0)]
        while verdict is None and (child.end is None or self.open) and time.monotonic() < ended + 1.0:
            if child.end is None and (late := child.late(start, began, silent=not events)):
                verdict = ("timeout", late)
                break
            if child.end is not None:
                ended = min(ended, time.monotonic())
            for descriptor, _ in (events := self.poll.poll(child.nap())):
                self._serve(descriptor)
            if any(len(text) > child.limits.output_bytes for text in self.read.values()):
                verdict = ("output_limit", "more output than allowed")
        end = child.finish()
        status, message = verdict or self._verdict(end, start)
        stderr = clean(bytes(self.read[self.stderr]).decode("utf-8", "replace"))
        cap = int(child.limits.output_bytes)
        wall = time.monotonic() - began
        return StdioResult(status, bytes(self.read[self.stdout][:cap]), stderr or message, float(end["cpu"]), wall)

    def _verdict(self, end: dict[str, Any], start: float) -> tuple[CallStatus, str]:
        if end["cpu"] - start > self.child.limits.cpu_s:
            return "timeout", f"more than {self.child.limits.cpu_s:g} s of CPU time"
        if end["status"] == 0:
            return "ok", ""
        status, message = self.said.get("status"), self.said.get("message")
        if status in ("compile_error", "memory_limit") and isinstance(message, str):
            return status, clean(message)
        if os.WIFEXITED(end["status"]):
            return "runtime_error", f"exit status {os.WEXITSTATUS(end['status'])}"
        return self.child.cause(end)

    def _serve(self, descriptor: int) -> None:
        child = self.child
        if descriptor == child.worker.control.fileno():
            message = child.worker.receive(time.monotonic())
            if message.get("run") == child.run:
                child.end = message
        elif descriptor in self.pending:
            self._write(descriptor)
        else:
            self._take(descriptor)

    def _write(self, descriptor: int) -> None:
        try:
            rest = self.pending[descriptor]
            self.pending[descriptor] = rest[os.write(descriptor, rest[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending[descriptor] = memoryview(b"")  # the program does not read on
        if not self.pending[descriptor]:
            self.poll.unregister(descriptor)
            if descriptor == self.stdin:
                host.close(self.input)

    def _take(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.poll.unregister(descriptor)
            self.open.discard(descriptor)
        elif descriptor in self.read:
            self.read[descriptor] += data
        else:
            self._note(data)

    def _note(self, data: bytes) -> None:
        """The child may say once why its program failed; anything longer is the program's own noise."""
        with contextlib.suppress(wire.FrameError, ValueError):
            self.child.frames.feed(data[: max(0, _CHUNK - len(self.child.frames))])
            if frame := self.child.frames.next(_ENVELOPE):
                notes = json.loads(frame)
                self.said = notes if isinstance(notes, dict) else {}
