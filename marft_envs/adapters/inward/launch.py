"""Starts a program: a command as a process group that can be killed, a function in a thread, which cannot."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import IO, Any

from marft_envs.core.faults import fault_of, show
from marft_envs.core.types import Fault
from marft_envs.errors import ConfigError
from marft_envs.registration import named_function
from marft_envs.workers.untrusted import WorkerPool

OUTAGE = os.EX_TEMPFAIL
"""Exit status by which a command reports an infrastructure error, which is not an agent's fault."""
_TAIL = 1 << 20
"""Bytes of what a command has written that are looked at."""
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``module:name``."""
_running: set[int] = set()


@dataclass(frozen=True)
class Ended:
    """What a program came to."""

    answer: str = ""
    """Its last line, or what it returned."""
    why: str = ""
    """What broke it."""
    fault: Fault = ""


Tell = Callable[[Ended], None]
Launch = Callable[[Mapping[str, Any], str, str, Tell], Callable[[], None]]
"""Starts a program with what it is given, the endpoint's address, its key, and whom to tell of its end; returns what
stops it."""


def launcher(target: str | Callable[..., Any]) -> tuple[str, Launch]:
    """Returns what a program is called, and what starts it.

    Raises:
        ConfigError: There is no such command or function.
    """
    if not isinstance(target, str):
        return getattr(target, "__qualname__", "a function"), partial(_call, target)
    if FUNCTION.fullmatch(target):
        return target, partial(_call, function_of(target, "function"))
    words: list[str] = []
    with suppress(ValueError):  # a quotation without an end
        words = shlex.split(target)
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"There is no command '{' '.join(words[:1])}'. Expected one, as in program:python team.py")
    return target, partial(_spawn, words)


def function_of(name: str, what: str) -> Callable[..., Any]:
    """Returns the function of a name; raises ``ConfigError`` if there is none."""
    if (function := named_function(name)) is None:
        raise ConfigError(f"There is no {what} '{name}'. Expected module:function.")
    return function


def _call(function: Callable[..., Any], given: Mapping[str, Any], url: str, key: str, tell: Tell) -> Callable[[], None]:
    """Runs a function in a thread; who stops it leaves it alone, and its next request is refused."""

    def run() -> None:
        try:
            result = function(dict(given), {"base_url": url, "api_key": key})
            if inspect.iscoroutine(result):
                result = asyncio.run(result)
            tell(Ended("" if result is None else str(result)))
        except BaseException as error:  # whatever a function of others raises, SystemExit among it
            if not stopped:
                show(error, "a program")
            tell(_broken(f"{type(error).__name__}: {error}", fault_of(error), key))

    stopped: list[bool] = []
    threading.Thread(target=run, name="marft-program", daemon=True).start()
    return lambda: stopped.append(True)


def _spawn(words: list[str], given: Mapping[str, Any], url: str, key: str, tell: Tell) -> Callable[[], None]:
    """Runs a command with the problem on its standard input; who stops it kills its process group."""
    away = {name: f"{os.environ.get(name, '')},127.0.0.1".lstrip(",") for name in ("no_proxy", "NO_PROXY")}
    told = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, **away}
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 (closed when the command has ended)
    files[0].write(json.dumps(given).encode() + b"\n")
    files[0].seek(0)
    streams: Any = dict(zip(("stdin", "stdout", "stderr"), files, strict=True))
    process = subprocess.Popen(words, **streams, env={**os.environ, **told}, start_new_session=True)
    _running.add(process.pid)

    def wait() -> None:
        status = process.wait()
        _kill(process.pid)  # what it left running
        tell(_ended(status, files[1], files[2], key))
        for file in files:
            file.close()

    threading.Thread(target=wait, name="marft-program", daemon=True).start()
    return lambda: _kill(process.pid)


def _ended(status: int, out: IO[bytes], err: IO[bytes], key: str) -> Ended:
    if status == 0:
        return Ended(_last_line(out))
    what = f"exit status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    # Killed from outside (by the kernel when memory runs out, by a person): no word of an agent did that.
    fault: Fault = "machine" if status == -signal.SIGKILL else "world" if status == OUTAGE else "text"
    return _broken(f"{what}: {_last_line(err)}".rstrip(": "), fault, key)


def _broken(why: str, fault: Fault, key: str) -> Ended:
    return Ended(why="program_crashed: " + why.replace(key, "***")[:500], fault=fault)


def _last_line(file: IO[bytes]) -> str:
    file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
    lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


def _kill(group: int) -> None:
    if group in _running:
        _running.discard(group)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    for group in list(_running):
        _kill(group)


@cache
def graders() -> WorkerPool:
    """Returns the worker processes in which users' named graders run."""
    return WorkerPool("marft_envs.adapters.inward.launch:graded", size=2, deadline=10.0)


def graded(payload: Mapping[str, Any]) -> Any:
    """Returns what a user's grader says, in a worker process."""
    return function_of(payload["grader"], "grader")(payload["problem"], payload["answer"])
