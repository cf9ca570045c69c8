"""``Sandbox``: runs programs that nobody has vouched for, in workers that are shut in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from marft_envs.errors import ConfigError, check_known
from marft_envs.sandbox import layers, remote, supervise
from marft_envs.sandbox.look import Look
from marft_envs.sandbox.types import Call, CallResult, Limits, SandboxError, SandboxUnavailable, StdioResult
from marft_envs.sandbox.worker import Lost, SandboxWorker, StartFailure
from marft_envs.workers.pool import ProcessPool

UNSAFE_VARIABLE = "MARFT_UNSAFE_SANDBOX"
_Result = TypeVar("_Result")
_PARTS = frozenset({"namespaces", "landlock", "seccomp", "bubblewrap"})


class Sandbox(ProcessPool[SandboxWorker]):
    """Runs programs under limits, each in a process of its own that can reach nothing.

    Safe to share between threads: at most ``workers`` runs go on at once, further callers wait. Workers start
    at the first run that needs them. Pickling keeps the settings and drops the processes; a deep copy shares
    the sandbox; a forked copy of this process starts workers of its own.

    Args:
        layer: One of ``LAYERS``, ``auto`` for the best local one that passes its self-test here, or ``unsafe``.
        workers: Most programs that run at once on this machine: ranks or workers that play there share them.
        limits: Of every run that names none.
        url: Of the service, ``http://TOKEN@HOST:PORT``, for the layer ``remote``.
        unsafe: Consent to layer ``unsafe``, which has rlimits and timeouts and no isolation; it also takes the
            environment variable ``MARFT_UNSAFE_SANDBOX=1``.

    Attributes:
        layer: The layer in use; ``unsafe`` marks everything that came of it.
        guarantees: What this layer guarantees; empty for ``unsafe``.

    Raises:
        SandboxUnavailable: The layer, or any for ``auto``, does not hold here; it says what to do.
        ConfigError: A setting makes no sense.
    """

    spoilt_by = (Lost, StartFailure)
    failure = SandboxError

    def __init__(
        self,
        layer: str = "auto",
        workers: int = 1,
        limits: Limits = Limits(),  # noqa: B008
        url: str | None = None,
        unsafe: bool = False,
        *,
        _mechanisms: frozenset[str] | None = None,
    ) -> None:
        known = ("auto", "unsafe", *layers.LAYERS)
        check_known([layer], known, "no sandbox layer '{}'.")
        if workers < 1:
            raise ConfigError(f"a sandbox needs at least one worker; got {workers}")
        if (layer == "remote") != (url is not None):
            raise ConfigError("layer='remote' and url='http://TOKEN@HOST:PORT' go together; give both or neither")
        if (layer == "unsafe" or _mechanisms is not None) and not (unsafe and os.environ.get(UNSAFE_VARIABLE) == "1"):
            raise SandboxUnavailable(
                "the unsafe sandbox runs programs without isolation, with every right of this user; it takes both "
                f"unsafe=True and the environment variable {UNSAFE_VARIABLE}=1"
            )
        self._settings = (layer, workers, limits, url, unsafe, _mechanisms)
        self.limits, self.workers = limits, workers
        self._client = remote.Client(url) if url is not None else None
        parts = frozenset[str]()
        if self._client is not None:
            self.layer, self.guarantees = "remote", self._client.guarantees()
        elif layer == "unsafe" or _mechanisms is not None:
            self.layer, self.guarantees, parts = "unsafe", frozenset(), (_mechanisms or parts) & _PARTS
        else:
            self.layer = layers.choose(layer)
            parts = layers.mechanisms(self.layer)
            self.guarantees = layers.guarantees(parts)
        super().__init__("sandbox", partial(SandboxWorker, parts), workers, express=True)

    def run_calls(
        self,
        source: str,
        entry_point: str,
        calls: Sequence[Call],
        *,
        setup: str = "",
        prelude: str = "",
        limits: Limits | None = None,
    ) -> list[CallResult]:
        """Loads a program and makes calls into it, one after the other.

        State that one call leaves is there for the next, unless a call ended the process: then the program is
        loaded anew for the rest. If it cannot be loaded, every call has the status of the load.

        Args:
            source: The program. Its ``__name__`` is ``program``; its output goes nowhere.
            entry_point: Name of its function, or ``Class.method`` of a class that is made without arguments for
                each call. May be empty if all calls are expressions.
            calls: What to call; see ``Call``.
            setup: Code that runs after the program, among its names, before the calls.
            prelude: Code that runs before the program, among its names: imports.
            limits: Instead of the sandbox's.

        Returns:
            One result per call, in order.

        Raises:
            SandboxError: The sandbox failed, twice. No verdict follows from it.
        """
        limits = limits or self.limits
        if any(call.kind not in ("call", "expr") for call in calls):
            raise ConfigError("a call is of kind 'call' or 'expr'")
        if message := _too_large(prelude + source + setup, limits):
            return [CallResult("too_large", message=message) for _ in calls]
        if not calls:
            return []
        program = {"source": source, "entry_point": entry_point, "setup": setup, "prelude": prelude}
        if self._client is not None:
            return self._client.run_calls(program, calls, limits)
        return self._look(lambda to, look: supervise.run_calls(to, look, program, calls, limits))

    def run_stdio(
        self, source: str, stdin: str | bytes, *, prelude: str = "", limits: Limits | None = None
    ) -> StdioResult:
        """Runs a program once, as ``python program.py < stdin`` would.

        Args:
            source: The program. Its ``__name__`` is ``__main__``.
            stdin: Standard input; text is sent as UTF-8.
            prelude: As for :meth:`run_calls`.
            limits: Instead of the sandbox's.

        Raises:
            SandboxError: The sandbox failed, twice. No verdict follows from it.
        """
        limits = limits or self.limits
        if message := _too_large(prelude + source, limits):
            return StdioResult("too_large", stderr=message)
        data = stdin.encode("utf-8", "surrogatepass") if isinstance(stdin, str) else bytes(stdin)
        program = {"source": source, "prelude": prelude}
        if self._client is not None:
            return self._client.run_stdio(program, data, limits)
        return self._look(lambda to, look: supervise.run_stdio(to, look, program, data, limits))

    def warm_up(self) -> None:
        """Starts the idle workers now, instead of at the first runs, and waits until they are ready."""
        if self._client is not None:
            return
        try:
            super().warm_up()
        except self.spoilt_by as error:
            raise SandboxError(f"the sandbox ({self.layer}) failed to start: {error}") from error

    def _look(self, action: Callable[[SandboxWorker, Look], _Result]) -> _Result:
        for attempt in (1, 2):
            try:
                return self._run(lambda worker, ticket: action(worker, Look(ticket, self._turns)))
            except self.spoilt_by as error:
                if self.closed or attempt == 2:
                    raise SandboxError(f"the sandbox ({self.layer}) failed: {error}") from error
        raise AssertionError("unreachable")

    def __reduce__(self) -> tuple[Any, ...]:
        *settings, parts = self._settings
        # A shared one is the shared one of the process it arrives in.
        again = shared if _SHARED.get(tuple(settings)) is self else partial(Sandbox, _mechanisms=parts)
        return again, tuple(settings)


def _too_large(text: str, limits: Limits) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a program is text, not {type(text).__name__}")
    if len(text) > limits.source_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        return f"the program is longer than {limits.source_bytes} bytes"
    return ""


_SHARED: dict[tuple[Any, ...], Sandbox] = {}
_SHARED_LOCK = threading.Lock()


def shared(
    layer: str = "auto",
    workers: int = 1,
    limits: Limits = Limits(),  # noqa: B008
    url: str | None = None,
    unsafe: bool = False,
) -> Sandbox:
    """The sandbox with these settings that all of this process share; hundreds of environments use one."""
    key = (layer, workers, limits, url, unsafe)
    with _SHARED_LOCK:
        if key not in _SHARED or _SHARED[key].closed:
            _SHARED[key] = Sandbox(*key)
        return _SHARED[key]


def _forget_locks() -> None:
    """In a forked child: what the parent holds is never let go of."""
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    layers.forget_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
