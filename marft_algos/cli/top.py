"""``marft top RUN``: how fast a run is, who waits for whom, and who was lost. It only reads; no torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from marft_algos.config import arguments, values
from marft_algos.ranges import COUNT, POSITIVE
from marft_algos.runs import disk
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.loggers import minutes
from marft_algos.runs.pace import Pace, number
from marft_algos.terminal import clean

PATIENCE_S = 20.0
"""Seconds without a process that writes, after which a run is not followed any longer: ranks may be starting again."""
PLAYERS = 32
"""Rows of ranks and workers at most: the slowest are shown."""


@dataclass(frozen=True)
class TopArguments:
    """Shows how fast a run is, who waits for whom, and what was lost, as long as it runs. It only reads its folder."""

    run: Annotated[str, tyro.conf.Positional] = ""
    """Folder or name of the run; empty: the newest one in runs/."""
    once: bool = False
    """Print one table, and end."""
    last: Annotated[int, COUNT] = 10
    """Iterations that the second column and the table of players add up."""
    every: Annotated[float, POSITIVE] = 2.0
    """Seconds between two looks at the folder."""


def run_top(argv: list[str]) -> int:
    """``marft top RUN``."""
    options: TopArguments = arguments.parse(TopArguments, argv, prog="marft top")
    run = RunFolder.open(options.run or RunFolder.newest())
    console = Console(highlight=False)
    view = _View(run, options.last)
    if options.once or not console.is_terminal:
        console.print(view.shown())
        return 0
    seen = time.monotonic()
    with Live(view.shown(), console=console, auto_refresh=False) as live:
        while True:
            alive = disk.writer(run.root) is not None
            seen = time.monotonic() if alive else seen
            live.update(view.shown(), refresh=True)
            if view.done or time.monotonic() - seen > PATIENCE_S:
                return 0
            time.sleep(options.every)


class _View:
    """What is shown of a run; the file is read again when it has grown.

    Args:
        run: Its folder.
        last: Iterations that are added up.
    """

    def __init__(self, run: RunFolder, last: int) -> None:
        self._run, self._last, self._size = run, last, -1
        self._lines: list[dict[str, Any]] = []
        settings = values.read(run.config_file)
        self._title = clean(f"{run.root}: {settings.get('env')} · {settings.get('algo')}", line=True)
        total = settings.get("iterations")
        self._total = total if isinstance(total, int) else 0

    @property
    def done(self) -> bool:
        """Returns whether all iterations are there, and nobody writes any more."""
        return self._iteration >= self._total > 0 and disk.writer(self._run.root) is None

    @property
    def _iteration(self) -> int:
        return int(number(self._lines[-1], "iteration")) if self._lines else 0

    def shown(self) -> Group:
        """Reads what is new, and returns the tables."""
        file = self._run.metrics_file
        size = file.stat().st_size if file.exists() else 0
        if size != self._size:
            self._size, self._lines = size, self._run.metrics()
        rows: list[Any] = [Text(self._title, "bold"), Text(self._state(), "cyan")]
        iterations = [line for line in self._lines if "time_update" in line]
        recent = Pace.of(iterations[-self._last :])
        newest = Pace.of(iterations[-1:])
        if recent is None or newest is None:
            return Group(*rows, Text("no iteration is done yet"))
        rows += [Text(), totals(newest, recent), Text(), players(recent)]
        return Group(*rows)

    def _state(self) -> str:
        writer = disk.writer(self._run.root)
        who = f"process {writer[0]} on {clean(writer[1], line=True)} writes" if writer else "nobody writes"
        age = self._run.silent()
        return f"iteration {self._iteration}/{self._total or '?'} · {who} · last line {minutes(age)} ago"


def totals(newest: Pace, recent: Pace) -> Table:
    """Makes the table of the run: the newest iteration, and several."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    table.add_column("")
    table.add_column("last iteration", justify="right")
    table.add_column(f"last {recent.iterations}", justify="right")
    both = (newest, recent)

    def add(what: str, cells: Sequence[str]) -> None:
        table.add_row(what, *cells)

    def seconds(what: str, name: str) -> None:
        add(f"{what}, s", [f"{getattr(pace, name) / pace.iterations:.2f}" for pace in both])

    def count(what: str, name: str) -> None:
        add(what, [f"{getattr(pace, name):,.0f}" for pace in both])

    seconds("an iteration, evaluations apart", "seconds")
    seconds("  until its episodes were there", "playing")
    seconds("  update", "learning")
    add("tokens/s", [f"{pace.rate:,.0f}" for pace in both])
    add("  of a player", [f"{pace.rate / max(pace.workers or pace.ranks, 1):,.0f}" for pace in both])
    add("  of a rank, while it learns", [f"{_a_rank(pace):,.0f}" for pace in both])
    add("ranks, workers", [f"{pace.ranks}, {pace.workers}" for pace in both])
    if recent.workers:
        add("who learns waits for episodes", [f"{pace.learners_wait:.1%}" for pace in both])
        add("workers play nothing", [f"{pace.players_wait:.1%}" for pace in both])
    if recent.ranks > 1:
        add("ranks wait for each other, and send", [f"{pace.ranks_wait:.1%}" for pace in both])
        add("  the most patient one", [f"{max(pace.among, default=0.0) / pace.seconds:.1%}" for pace in both])
    for age, share in recent.behind.items():
        add(f"turns {age} update{'s' * (age != 1)} old", [f"{newest.behind.get(age, 0.0):.1%}", f"{share:.1%}"])
    seconds("publishing", "publish_seconds")
    if recent.publish_bytes:
        add("  MB", [f"{pace.publish_bytes / pace.iterations / 1e6:,.2f}" for pace in both])
    if recent.workers:
        count("workers replaced", "restarts")
        count("chunks played again", "redone")
        count("chunks lost", "lost")
    if recent.rank_restarts:
        count("all ranks started again", "rank_restarts")
        add("  and what that took, s", [f"{pace.rank_restart_seconds:.1f}" for pace in both])
    return table


def _a_rank(pace: Pace) -> float:
    return pace.tokens / max(pace.learning, 1e-9) / pace.ranks


def players(pace: Pace) -> Table:
    """Makes the table of who played how much, the slowest first where there are many."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    table.add_column("who plays")
    for column in ("chunks", "episodes", "tokens", "tokens/s while playing", "of the time"):
        table.add_column(column, justify="right")
    shown = list(pace.players)
    if len(shown) > PLAYERS:
        shown = sorted(shown, key=lambda p: p.tokens / max(p.seconds, 1e-9))[:PLAYERS]
    for player in shown:
        table.add_row(
            clean(player.name, line=True),
            f"{player.chunks:,.0f}",
            f"{player.episodes:,.0f}",
            f"{player.tokens:,.0f}",
            f"{player.tokens / max(player.seconds, 1e-9):,.0f}",
            f"{player.seconds / pace.seconds:.1%}",
        )
    return table
