"""Makes the page of the leaderboard: the packed results of the repository, a table an environment.

Tables are sorted and filtered by ``assets/tables.js``; without scripts they are there, the best first.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from marft_algos.extras.bench import tables
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.statistics import estimate

FILES = sorted((Path(__file__).resolve().parents[2] / "benchmarks/results").glob("*.tar.xz"))
ABOUT = """\
Scores are means of seeds in percent, with 95 % intervals over seeds and problems, of the packed results of this
repository. They are the project's own runs, and so far nobody else's; [benchmarking](../benchmarking.md#leaderboard)
says how a file of yours is made. Rows of one file and one setting have the same budget, base model and problems; the
order of other rows is no result. **≈** marks rows that are not told apart from the best of their file and
setting: the interval of the paired difference holds 0.
"""
HEAD = ("algorithm", "setting", "score, %", "", "to its baseline", "seeds", "tokens sampled", "file")
WIDE = 130
"""Pixels of an interval's picture, which are 0 to 100 %."""


@dataclass(frozen=True, slots=True)
class BoardEntry:
    """An algorithm's runs in one setting of a packed benchmark."""

    file: str
    env: str
    """Id of the environment that it was trained in; ``line.env`` is the grid's name of the setting."""
    line: tables.Line
    level: bool
    """Whether it is not told apart from the best of file and setting."""


@dataclass(frozen=True, slots=True)
class Pack:
    """The results of one packed benchmark."""

    name: str
    sha256: str
    grid: str
    results: int
    entries: tuple[BoardEntry, ...]


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and content of the page."""
    packs = [read(path) for path in FILES]
    entries = [entry for pack in packs for entry in pack.entries]
    parts = ["---\nhide: [toc]\n---\n# Leaderboard\n", ABOUT]
    parts += ['<p class="finder"><label>Filter rows <input type="search" data-filter="board"></label></p>']
    for env in sorted({entry.env for entry in entries}):
        here = sorted((e for e in entries if e.env == env), key=lambda e: -e.line.mean.mean if e.line.mean else 1)
        parts.append(section(env, here))
    parts += ["## The files", "Each holds its grid and every outcome. To read one, or to run it again:"]
    parts += [file(pack) for pack in packs]
    yield "leaderboard/index.md", "Leaderboard", "\n\n".join(parts) + "\n"


def read(path: Path) -> Pack:
    """Reads one of the repository's packed benchmarks."""
    with tempfile.TemporaryDirectory(prefix="marft-packed-") as aside, tarfile.open(path) as archive:
        archive.extractall(aside, filter="data")
        (root,) = Path(aside).iterdir()
        folder = BenchFolder(root)
        rows = folder.rows()
        done = [row for row in rows if row["status"] == "done"]
        shown = [row for row in done if not row["hidden"]]
        envs = {(row["env"], tables.label(row)): folder.job(row["key"])["config"]["env"] for row in shown}
        grid = folder.grid_file.read_text(encoding="utf-8")
        lines = [line for line in tables.lines(rows, folder.baseline) if line.seeds and line.env != tables.EVERYTHING]
    cells, entries = tables.grouped(shown, lambda row: (row["env"], tables.label(row))), list[BoardEntry]()
    for line in lines:
        beside = (other for other in lines if other.env == line.env)
        best = max(beside, key=lambda other: other.mean.mean if other.mean else 0)
        level = line is best or _level(cells[line.env, best.algorithm], cells[line.env, line.algorithm])
        entries.append(BoardEntry(path.name, envs[line.env, line.algorithm], line, level))
    return Pack(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), grid, len(done), tuple(entries))


def _level(best: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether a paired difference is not shown to differ from 0; without an interval it is not."""
    paired = tables.gaps(other, best)
    return paired is None or not estimate([paired], difference=True).high < 0


def section(env: str, entries: Sequence[BoardEntry]) -> str:
    """The table of an environment, which opens at a click."""
    top = entries[0].line
    best = f"{top.algorithm}, {100 * top.mean.mean:.1f}" if top.mean else "no score"
    count = f"{len(entries)} rows" if len(entries) > 1 else "1 row"
    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    rows = "\n".join(_row(entry) for entry in entries)
    return (
        f'<details name="board" class="board"><summary><b>{escape(env)}</b> '
        f"<span>{count}; highest: {escape(best)}</span></summary>"
        f'\n<div class="scroll"><table class="sortable" data-filtered="board" data-search-exclude>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></details>"
    )


def _row(entry: BoardEntry) -> str:
    line = entry.line
    mean = line.mean.mean if line.mean else -1
    mark = '<abbr title="not told apart from the best of its file and setting">≈</abbr>'
    stem = entry.file.partition(".")[0]
    cells = [
        (escape(line.algorithm), ""),
        (escape(line.env), ""),
        (f"{tables.points(line.mean)}{mark if entry.level else ''}", f"{mean:.4f}"),
        (interval(line), f"{mean:.4f}"),
        (tables.points(line.difference, signed=True), f"{line.difference.mean if line.difference else -9:.4f}"),
        (str(line.seeds), str(line.seeds)),
        (tables.count(line.tokens), f"{line.tokens:.0f}"),
        (f'<a href="#file-{stem}">{escape(stem)}</a>', ""),
    ]
    return "<tr>" + "".join(f"<td{f' data-v={v}' if v else ''}>{text}</td>" for text, v in cells) + "</tr>"


def interval(line: tables.Line) -> str:
    """A picture of a score and its interval, from 0 to 100 %."""
    if line.mean is None:
        return ""
    x, low, high = (WIDE * share for share in (line.mean.mean, line.mean.low, line.mean.high))
    bar = f'<line x1="{low:.1f}" x2="{high:.1f}" y1="7" y2="7" stroke-width="4" opacity=".4"/>' if low == low else ""
    return (
        f'<svg width="{WIDE}" height="14" aria-hidden="true" stroke="currentColor"><line x2="{WIDE}" y1="7" y2="7" '
        f'opacity=".15"/>{bar}<circle cx="{x:.1f}" cy="7" r="3" fill="currentColor" stroke="none"/></svg>'
    )


def file(pack: Pack) -> str:
    """What a file is, what to type, and its settings behind a click."""
    stem = pack.name.partition(".")[0]
    commands = (
        f"mkdir -p runs && tar -xf benchmarks/results/{pack.name} -C runs\nmarft bench report runs/{stem}\n"
        f"marft bench run runs/{stem}/grid.toml --out runs/{stem}-again    # all of it, from the beginning"
    )
    return (
        f'<details id="file-{stem}" class="board"><summary><b>{escape(pack.name)}</b> '
        f"<span>{pack.results} results</span></summary>\n<pre><code>{escape(commands)}</code></pre>\n"
        f"<p>SHA-256 <code>{pack.sha256}</code>. Its grid:</p>\n"
        f"<pre><code>{escape(pack.grid.rstrip()).replace(chr(10) * 2, chr(10))}</code></pre></details>"
    )
