"""``marft view``."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from typing import Annotated

import tyro

from marft_algos.config import arguments
from marft_algos.extras.view.sources import open_sources
from marft_algos.ranges import Range
from marft_algos.terminal import say


@dataclass(frozen=True)
class ViewArguments:
    """Opens a page of this machine with curves and episodes of runs, of finished ones and of those that still train.

    It reads only, listens on this machine alone, and ends with Ctrl-C.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")] = ()
    """Runs, folders of runs, benchmarks, evaluations, or JSONL files of episodes; none: the newest run."""
    port: Annotated[int, Range(0, 65535)] = 0
    """Where to listen; 0: any port that is free."""
    open: bool = False
    """Open the address in a browser, too."""


def run_view(argv: list[str]) -> int:
    """``marft view RUN…``."""
    options: ViewArguments = arguments.parse(ViewArguments, argv, prog="marft view")
    sources = open_sources(options.runs)
    from marft_algos.extras.view.server import ViewServer

    with ViewServer(sources, options.port) as server:
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
