"""``marft view``."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from marft_algos.config import arguments
from marft_algos.ranges import Range
from marft_algos.terminal import say
from marft_algos.workbench.view.sources import Source, open_sources
from marft_envs.errors import ConfigError, MissingExtraError


@dataclass(frozen=True)
class ViewArguments:
    """Opens a page of this machine with curves and episodes of runs, of finished ones and of those that still train.

    It reads only, listens on this machine alone, and ends with Ctrl-C.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Runs, folders of runs, benchmarks, evaluations, or JSONL files of episodes; none: the newest run."""
    port: Annotated[int, Range(0, 65535)] = 0
    """Where to listen; 0: any port that is free."""
    tui: bool = False
    """Show the episodes in this terminal instead (extra ``tui``)."""
    open: bool = False
    """Open the address in a browser, too."""


def run_view(argv: list[str]) -> int:
    """``marft view RUN…``."""
    options: ViewArguments = arguments.parse(ViewArguments, argv, prog="marft view")
    sources = open_sources(options.runs)
    if options.tui:
        return _in_terminal(sources)
    from marft_algos.workbench.view.server import Server

    with Server(sources, options.port) as server:
        port = server.server_address[1]
        say(f"viewing: {', '.join(source.name for source in sources)}")
        say(f"open:    {server.address}")
        say(f"from another machine: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE, then the same address; Ctrl-C ends")
        if options.open:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("closed")
    return 0


def _in_terminal(sources: Sequence[Source]) -> int:
    try:
        from marft_algos.workbench.view.tui import Viewer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise MissingExtraError("The viewer in the terminal", "tui") from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("--tui wants a terminal, and this is none. Without it there is a page: marft view RUN")
    Viewer(sources).run()
    return 0
