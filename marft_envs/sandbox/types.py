"""What goes into the sandbox and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from marft_envs.errors import ConfigError, WorkerError

CallStatus = Literal[
    "ok", "runtime_error", "timeout", "memory_limit", "output_limit", "bad_value", "compile_error", "no_entry_point",
    "exited", "too_large",
]  # fmt: skip
"""How one call ended; a run on standard input uses all but ``bad_value``, ``no_entry_point`` and ``exited``."""

MESSAGE_CAP = 2000
"""Most characters of a message or of standard error that a result holds."""


class SandboxUnavailable(ConfigError):
    """No layer, or not the named one, passes its self-test here."""


class SandboxError(WorkerError):
    """The sandbox itself failed, twice in a row; no verdict on any program follows from it."""


CEILINGS = {
    "cpu_s": 86_400, "wall_s": 86_400, "total_s": 86_400, "memory_mb": 1 << 20, "output_bytes": 1 << 30,
    "source_bytes": 1 << 30,
}  # fmt: skip
"""Highest value of each limit: a day, a tebibyte, a gibibyte. More is a slip, and some of it no kernel takes."""


@dataclass(frozen=True)
class Limits:
    """What one run may use.

    Attributes:
        cpu_s: CPU seconds of one test: one call, loading the program, or one run on standard input.
        wall_s: Wall-clock seconds of one test, for a program that sleeps.
        total_s: Wall-clock seconds of a whole run, all its calls included.
        memory_mb: Address space of the program in MiB, beyond that of the empty interpreter.
        output_bytes: Bytes of standard output, of standard error, and of one returned value in its encoding.
        source_bytes: Bytes of the program; a longer one is not started.

    Raises:
        ConfigError: A limit is not a finite number above 0, or beyond its ceiling in ``CEILINGS``.
    """

    cpu_s: float = 2.0
    wall_s: float = 6.0
    total_s: float = 20.0
    memory_mb: int = 512
    output_bytes: int = 1 << 16
    source_bytes: int = 1 << 17

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            most = CEILINGS[name]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
                huge = isinstance(value, int) and value.bit_length() > 64  # Python refuses to write thousands of digits
                shown = f"an int of {value.bit_length()} bits" if huge else repr(value)
                raise ConfigError(f"limit {name} is {shown}; it has to be a finite number above 0, at most {most:,}")


@dataclass(frozen=True)
class Call:
    """One call of the program's entry point, or one expression over its names.

    Attributes:
        kind: ``call`` or ``expr``.
        text: For ``call`` the positional arguments as literal text, ``"[1, [2, 3]]"``; for ``expr`` a Python
            expression, evaluated in the sandbox among the program's names. Compare results outside the sandbox: inside
            it, the program can read the expression and change what its names mean.
        values: For ``expr`` the values of ``_0``, ``_1``, …, made of built-in types.
    """

    kind: Literal["call", "expr"]
    text: str
    values: tuple[Any, ...] = ()


MOST_SLEPT = 2
"""Tests of a run that may run out of time in their sleep; then the run is over."""
SLEPT = "two tests before it slept until their time was up"
KILLED = "the program closed its channel, or the system killed it"
_IDLE_SHARE = 0.1
"""A test that ran out of the clock and took less than this share of it as CPU time was asleep."""


class _Timed:
    """What both kinds of results have in common."""

    status: CallStatus
    cpu_s: float
    wall_s: float

    @property
    def said(self) -> str:
        """What is said of a failure."""
        raise NotImplementedError

    @property
    def slept(self) -> bool:
        """Whether it ran out of time in its sleep."""
        return self.status == "timeout" and self.cpu_s < _IDLE_SHARE * self.wall_s

    def cut_short(self, limits: Limits) -> bool:
        """Whether it ended before its own CPU time and memory were used up: by the clock, or killed by the system.

        Of code that no agent has a hand in this says that the machine is too busy, or that the code waits.
        """
        if self.status == "timeout":
            return self.cpu_s < limits.cpu_s
        return self.status == "runtime_error" and self.said == KILLED


@dataclass(frozen=True)
class CallResult(_Timed):
    """How one call ended.

    Attributes:
        status: ``ok`` means that a value came back; whether it is right is for the caller to say.
        value: The value, made of exact built-in types, when the status is ``ok``.
        message: Untrusted text about a failure, at most 2,000 characters.
        cpu_s: CPU seconds of the call, measured from outside.
        wall_s: Seconds of the call by the clock.
    """

    status: CallStatus
    value: Any = None
    message: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def said(self) -> str:
        return self.message


@dataclass(frozen=True)
class StdioResult(_Timed):
    """How one run on standard input ended.

    Attributes:
        status: ``ok`` means exit status 0; whether the output is right is for the caller to say.
        stdout: Standard output, at most ``Limits.output_bytes``.
        stderr: The end of standard error, or the message of an error before the start; at most 2,000 characters.
        cpu_s: CPU seconds of the run, measured from outside.
        wall_s: Seconds of the run by the clock.
    """

    status: CallStatus
    stdout: bytes = b""
    stderr: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def said(self) -> str:
        return self.stderr
