"""The forked child: gives up what is left to give up, says that it is ready, then runs the program.

It holds no expected value and no secret, and nothing that it says is believed further than "this is the value".
Whatever a program patches here, it can at most return a value, which it may do anyway.
"""

from __future__ import annotations

import _sitebuiltins
import ast
import atexit
import builtins
import contextlib
import fcntl
import functools
import gc
import io
import json
import os
import random
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import landlock, seccomp, syscalls, values, wire

FILE = "<program>"
REQUESTS, REPLIES, HELLO, NOTHING = 3, 4, 5, 6
"""Descriptors of the pipes from and to the host, of the socket that says "ready" and is closed then, of /dev/null."""
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2} | {
    f"{folder}/{number}": number for folder in ("/dev/fd", "/proc/self/fd") for number in range(3)
}
MESSAGE_CAP = 2000
_FRAMES_SHOWN = 8
_STACK = 64 << 20
_get_traceback = vars(BaseException)["__traceback__"].__get__


def confine(order: dict[str, Any]) -> None:
    """Takes the limits and the layers that concern this process alone.

    Raises:
        OSError: The kernel refused.
    """
    mechanisms = order["mechanisms"]
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if "seccomp" not in mechanisms:
        os.setsid()  # without the filter a program may fork; its group can still be killed
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    limits = {
        resource.RLIMIT_AS: order["memory"],
        resource.RLIMIT_CPU: order["cpu"],
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_STACK: _STACK,
    }
    if order["processes"]:
        limits[resource.RLIMIT_NPROC] = order["processes"]
    for name, value in limits.items():
        hard = resource.getrlimit(name)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
    if "landlock" in mechanisms:
        landlock.restrict_signals()
    if "seccomp" in mechanisms:
        seccomp.install(os.getpid())


def main(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Runs one program.

    Args:
        order: Limits and mechanisms.
        descriptors: The socket, the pipes of requests and replies, /dev/null; in stdio mode standard input, output and
            error.
    """
    hello, requests, replies, nothing, *standard = (fcntl.fcntl(d, fcntl.F_DUPFD, 64) for d in descriptors)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    for number, descriptor in ((REQUESTS, requests), (REPLIES, replies), (HELLO, hello), (NOTHING, nothing)):
        os.dup2(descriptor, number, inheritable=False)
    os.closerange(NOTHING + 1, 4096)
    try:
        confine(order)
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", None)
        failure = {"step": "the child", "call": name, "errno": getattr(error, "errno", None), "text": str(error)}
        wire.send(HELLO, json.dumps({"failed": failure}).encode())
        os._exit(1)
    _name_standard()
    gc.enable()
    random.seed(0)  # the same program on the same input gets the same verdict
    sys.set_int_max_str_digits(0)  # contest programs print long integers, and their time has a limit anyway
    wire.send(HELLO, b'{"ready": true}')
    os.close(HELLO)
    request = json.loads(wire.receive(REQUESTS))
    source = request["source"]
    if "stdio" in request:
        os.close(REQUESTS)
        _stdio(source, request["prelude"])
    _functions(source, request)


def _name_standard() -> None:
    """Opens ``/dev/stdin`` and its like, and ``/dev/null`` to write to, alike in every layer.

    Some show no ``/dev/fd``, and in none is a file opened for writing: what is open already is given once more.
    """
    by_kernel, again, text = os.open, os.dup, os.fsdecode

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = text(path)
        number = NOTHING if name == os.devnull and flags & (os.O_WRONLY | os.O_RDWR) else STANDARD.get(name)
        return by_kernel(path, flags, mode, dir_fd=dir_fd) if number is None else again(number)

    os.open = opened
    builtins.open = io.open = functools.partial(open, opener=opened)  # type: ignore[assignment]


def _module(name: str, source: str) -> types.ModuleType:
    import linecache

    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv, sys.orig_argv, sys.executable = [FILE], [FILE], ""
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D")
    builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D")
    return module


def describe(error: BaseException, source: str) -> str:
    """The traceback's frames within the program, then type and message; no path of the host, capped."""
    lines = source.splitlines()
    places = []
    trace = _get_traceback(error)
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == FILE:
            number = trace.tb_lineno or 0
            text = lines[number - 1].strip()[:200] if 0 < number <= len(lines) else ""
            places.append(f"  line {number}, in {code.co_name[:100]}\n    {text}")
        trace = trace.tb_next
    name = type.__dict__["__name__"].__get__(type(error))
    try:
        text = str(error)  # may be the program's own method, under the same limits as the rest of it
    except BaseException:
        text = "(its message cannot be read)"
    places = places[-_FRAMES_SHOWN:]
    head = "Traceback (most recent call last):\n" + "\n".join(places) + "\n" if places else ""
    tail = f"{name[:200]}: {text[:1000]}" if text else name[:200]
    return head[-(MESSAGE_CAP - len(tail)) :] + tail


def _status(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory_limit"
    return "exited" if isinstance(error, SystemExit) else "runtime_error"


def _compile(source: str) -> types.CodeType | tuple[str, str]:
    try:
        return compile(source.removeprefix("\ufeff"), FILE, "exec", dont_inherit=True)  # as a file's mark, no text
    except MemoryError:
        return "memory_limit", "MemoryError while compiling"
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        return "compile_error", describe(error, source)


def _reply(status: str, message: str = "", value: str = "") -> None:
    text = json.dumps({"status": status, "message": message[:MESSAGE_CAP], "value": value})
    try:
        wire.send(REPLIES, text.encode())
    except OSError:
        os._exit(1)  # the program closed the channel


# ---- function mode -------------------------------------------------------------------------------------------


def _functions(source: str, request: dict[str, Any]) -> NoReturn:
    literal, encode, loads, receive, reply = ast.literal_eval, values.encode, json.loads, wire.receive, _reply
    decode = values.decode
    if (names := _load(source, request)) is None:
        os._exit(0)
    reply("ok")
    while True:
        try:
            call = loads(receive(REQUESTS))
        except (wire.FrameError, OSError):
            os._exit(0)
        try:
            if call["kind"] == "expr":
                bindings = {f"_{i}": decode(text) for i, text in enumerate(call["values"])}
                code = compile(call["text"].strip(), "<test>", "eval", dont_inherit=True)
                value = eval(code, {**names, **bindings} if bindings else names)
            else:
                value = _function(names, request["entry_point"])(*_arguments(call["text"], literal, loads))
            text = encode(value, request["limit"])
        except values.BadValue as error:
            reply("bad_value", str(error))
        except values.TooLarge:
            reply("output_limit", "the returned value is too large")
        except BaseException as error:
            reply(_status(error), describe(error, source))
        else:
            reply("ok", value=text)
        value = None


def _arguments(text: str, literal: Callable[[str], Any], loads: Callable[..., Any]) -> Any:
    """Literal text as a list. The JSON parser, which is many times faster, goes first where both read the same."""
    if "\\" not in text:
        try:
            return loads(text)
        except ValueError:
            pass  # a literal that JSON does not know: a tuple, None, single quotes
    return literal(text.strip())


def _load(source: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """Runs prelude, program and setup. Returns their names, or None after it has reported a failure."""
    code = _compile(source)
    if isinstance(code, tuple):
        _reply(*code)
        return None
    names = _module("program", source).__dict__
    try:
        exec(compile(request["prelude"], "<prelude>", "exec", dont_inherit=True), names)
        exec(code, names)
        if request["setup"]:  # else nothing runs that the program could trace
            exec(compile(request["setup"], "<setup>", "exec", dont_inherit=True), names)
        if request["entry_point"]:
            _find(names, request["entry_point"])
    except _NoEntryPoint as error:
        _reply("no_entry_point", str(error))
    except BaseException as error:
        _reply(_status(error), describe(error, source))
    else:
        return names
    return None


class _NoEntryPoint(Exception):
    pass


def _find(names: dict[str, Any], entry_point: str) -> tuple[Any, str]:
    """The function, or the class and the name of its method."""
    head, _, method = entry_point.partition(".")
    target = names.get(head)
    if target is None or not callable(getattr(target, method, None) if method else target):
        raise _NoEntryPoint(f"the program defines no '{entry_point}'")
    return target, method


def _function(names: dict[str, Any], entry_point: str) -> Callable[..., Any]:
    target, method = _find(names, entry_point)
    return getattr(target(), method) if method else target


# ---- stdio mode ----------------------------------------------------------------------------------------------


def _stdio(source: str, prelude: str) -> NoReturn:
    code = _compile(source)
    if isinstance(code, tuple):
        _reply(*code)
        os._exit(1)
    names = _module("__main__", source).__dict__
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # type: ignore[misc] # noqa: SIM115
        2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1
    )
    status = _finish(code, names, source, prelude)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        status = status or 120
        _complain(error, source)
    os._exit(status)


def _complain(error: BaseException, source: str) -> None:
    if isinstance(error, MemoryError):
        _reply("memory_limit", "MemoryError")
    with contextlib.suppress(OSError):  # the program closed it
        os.write(2, describe(error, source).encode("utf-8", "backslashreplace") + b"\n")


def _finish(code: types.CodeType, names: dict[str, Any], source: str, prelude: str) -> int:
    """Runs the program to its end; returns the exit status, as the interpreter would."""
    try:
        exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), names)
        exec(code, names)
    except SystemExit as error:
        wanted = error.code
        if wanted is None or type(wanted) is int:
            return (wanted or 0) & 0xFF
        os.write(2, f"{wanted}"[:MESSAGE_CAP].encode("utf-8", "backslashreplace") + b"\n")
        return 1
    except BaseException as error:
        _complain(error, source)
        return 1
    return 0
