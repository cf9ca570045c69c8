"""Text for people at a terminal: the one way out for everything that commands say.

Task ids, keys of metrics, agents' words and errors that quote data come from files and models of others. A terminal
obeys control characters in them (move the cursor, clear the screen, set the title, type an answer), and bidirectional
overrides show another text than there is. So nothing of that kind is ever printed.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shutil
import signal
import stat
import sys
import textwrap
import threading
import time
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

REGRESSION = 3
"""Exit code: everything ran, and something has become worse."""
UNDECIDED = 4
"""Exit code: everything ran, and a gate could show neither that nor the contrary."""
_SHOWN = "�"


def clean(text: object, *, line: bool = False) -> str:
    """Takes out everything that a terminal obeys: each such character is shown as U+FFFD.

    Args:
        text: Anything; its ``str``.
        line: It stands inside one line, so line breaks and tabs go, too.
    """
    kept = "" if line else "\n\t"
    return "".join(c if c in kept or c.isprintable() or unicodedata.category(c) == "Zs" else _SHOWN for c in str(text))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Writes the rows of a table, each a line, with columns as wide as what they hold."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


_FOLDS = ContextVar("folds", default=False)
_COMMAND = re.compile(r"(?<!usage: )(?:(?<=: )|(?<=  )|^)marft .*?(?=  |\. |$)")
_INDENT = re.compile(r"^(?: *\S.* {2,}(?=\S)| *)")


def folded(text: str, piped: int = 10_000) -> str:
    """Folds lines that are wider than the terminal under their last column; commands to be copied stay whole.

    Args:
        text: Lines; two spaces or more begin a column.
        piped: The width where there is no terminal: by default lines stay whole for ``grep``.
    """
    width, lines = shutil.get_terminal_size((piped, 24)).columns, list[str]()
    for line in text.split("\n"):
        column, start = len(line) - len(_INDENT.sub("", line)), len(line) - len(line.lstrip()) + 2
        line, edge = _COMMAND.sub(lambda at: at[0].replace(" ", "\0"), line), column if column <= width // 2 else start
        wrap = textwrap.TextWrapper(width, "", " " * edge, break_long_words=False, break_on_hyphens=False).wrap
        lines += wrap(line) or [""]
    return "\n".join(lines).replace("\0", " ")


def plain(text: str) -> str:
    """Returns a docstring as text for people: without markup, a paragraph a line, a row of a table with colons."""
    lines, depth = [""], 0
    for line in re.sub(r":\w+:(?=`)|`+|^\|[-: |]+\|\n", "", text, flags=re.MULTILINE).splitlines():
        indent, begins = len(line) - len(line.lstrip()), re.match(r" *(\||[*-] |>>>|\**\w+(, \**\w+)*: |$)", line)
        goes_on = indent > depth or not (begins or indent)
        if goes_on and lines[-1].strip() and not lines[-1].endswith(":") and line.strip():
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
            depth = indent
    row = re.compile(r"^\|( \|)?(.*)\|$")
    return "\n".join(row.sub(lambda cells: cells[2].strip().replace(" | ", ": "), line) for line in lines[1:])


@contextmanager
def prepared(*, folds: bool = False) -> Iterator[None]:
    """Prepares what a command shows; ``folds``: what it says on standard output is folded to the terminal's width.

    * Warnings are a line that begins with ``note:``, without the line of the source. Those of libraries name the
      module, and those that are for programmers the place.
    * Standard output shows what its encoding lacks as ``?``, as standard error does: libraries draw on it, and so
      does an environment's ``render``.
    * Logging does what Python does by itself. Else the first library that sets it up has every other's notices printed
      (an MCP server in this process: a line for each request).
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    logging.basicConfig(format="%(message)s", handlers=[logging.lastResort or logging.NullHandler()])
    before = warnings.formatwarning

    def written(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        module = Path(filename).stem
        if category is not UserWarning:
            return clean(f"note: {category.__name__}: {message} ({module}, line {lineno})\n")
        own = {"marft_algos", "marft_envs"} & set(Path(filename).parts)
        return clean(f"note: {message}\n" if own else f"note: {message} ({module})\n")

    warnings.formatwarning, token = written, _FOLDS.set(folds)
    try:
        yield
    finally:
        warnings.formatwarning = before
        _FOLDS.reset(token)


@contextmanager
def signals(handlers: Mapping[signal.Signals, Any]) -> Iterator[list[signal.Signals]]:
    """Has signals handled while inside, in the main thread, where alone they can be; yields which.

    A SIGHUP that is ignored stays so: ``nohup``.
    """
    main = threading.current_thread() is threading.main_thread()
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in handlers if main and not (ignored and number == signal.SIGHUP)]
    before = {number: signal.signal(number, handlers[number]) for number in heard}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set by Python, and nothing that it could put back
                signal.signal(number, handler)


def leave() -> None:
    """Writes nowhere from now on, if the terminal has hung up: what is to be saved must not fail at a message."""
    for stream in (1, 2):
        with suppress(OSError):  # it is closed already
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def fail(message: object) -> None:
    """Prints an error: its first word in red, on a terminal that shows colours and where NO_COLOR is not set."""
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if coloured:
        sys.stderr.write("\x1b[1;31merror:\x1b[0m ")
    say(message if coloured else f"error: {message}", error=True)


class _Taken(io.StringIO):
    """Stands in for a stream; no terminal, so nobody colours what goes there."""

    encoding = ""
    """The stream's: libraries draw boxes of what it can show."""


@contextmanager
def taken() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Takes what a library prints within, for ``say``: yields what stands for standard output and standard error."""
    out, error = _Taken(), _Taken()
    out.encoding, error.encoding = sys.stdout.encoding, sys.stderr.encoding
    with redirect_stdout(out), redirect_stderr(error):
        yield out, error


def say(*parts: object, error: bool = False, sep: str = " ", end: str = "\n") -> None:
    """Prints, cleaned, and in what the terminal's encoding can show.

    Args:
        *parts: As ``print`` takes them.
        error: To standard error.
        sep: Between the parts.
        end: Behind the last.
    """
    stream = sys.stderr if error else sys.stdout
    encoding = stream.encoding or "utf-8"
    text = sep.join(map(str, parts))
    text = clean((folded(text) if _FOLDS.get() and not error else text) + end)
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


class Progress:
    """Says how many episodes of a long evaluation have ended: a tenth of them and five seconds apart, or more."""

    def __init__(self) -> None:
        self._tenth, self._said = 0, time.monotonic()

    def __call__(self, ended: int, total: int, lost: int) -> None:
        tenth, now = ended * 10 // total, time.monotonic()
        if tenth != self._tenth and now - self._said > 5:
            self._said = now
            say(f"  {ended}/{total} episodes, infrastructure errors {lost}", error=True)
        self._tenth = tenth
