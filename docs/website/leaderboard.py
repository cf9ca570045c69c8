"""Makes the page of the leaderboard: the packed results of the repository, a table an environment.

Tables are sorted and filtered by ``assets/tables.js``; without scripts they are there, the best first.
"""

from __future__ import annotations

import hashlib
import json
import math
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from marft_algos.extras.bench import tables
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.statistics import estimate

FILES = sorted((Path(__file__).resolve().parents[2] / "benchmarks/results").glob("*.tar.xz"))
MODELS = Path(__file__).resolve().parents[2] / "marft_algos/models"
ABOUT = """\
This page lists every packed result of this repository, one table for each setting. They are the project's own runs, and
so far nobody else's; [benchmarking](../benchmarking.md#leaderboard) says how to make a file of yours. Rows of one table
have the same model, problems, and budget of sampled tokens, and can be compared. **Rows of different tables cannot be
compared.**

* **score**: mean over seeds of the share of solved problems (of the mean return where a task has no success), with a 95
  % [interval over seeds and problems](../experiments.md#what-the-intervals-are-about). Below three seeds there is none.
* **≈**: no significant difference from the highest score of the same table; the interval of the paired difference
  contains 0.
* **difference**: paired difference to the table's baseline, in percentage points.
"""
SINGLE = "single ("
"""What the label of a single agent with the team's budget begins with."""
HEAD = ("algorithm", "score", "", "difference", "seeds", "tokens sampled")
BASE_MODELS = {"smollm2-135m": "135 million"}
"""Models without weights in the package -> how many parameters they have."""
WIDE = 130
"""Pixels of an interval's picture, which are 0 to 100 %."""


@dataclass(frozen=True, slots=True)
class Board:
    """The rows of one setting of a packed benchmark: the same model, environment, problems and budget."""

    file: str
    env: str
    """Id of the environment that was trained in."""
    setting: str
    """The grid's name of it."""
    facts: str
    """Model, settings of the environment, budget, evaluation and baseline: what every row has in common."""
    rows: tuple[tuple[tables.Line, bool, str], ...]
    """Scores, the highest first; whether there is no significant difference from the first; what a label stands for."""


@dataclass(frozen=True, slots=True)
class Pack:
    """The results of one packed benchmark."""

    name: str
    sha256: str
    grid: str
    results: int
    boards: tuple[Board, ...]


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and content of the page."""
    packs = [read(path) for path in FILES]
    boards = [board for pack in packs for board in pack.boards]
    parts = ["---\nhide: [toc]\n---\n# Leaderboard\n", ABOUT]
    parts += ['<p class="finder"><label>Filter rows <input type="search" data-filter="board"></label></p>']
    for env in sorted({board.env for board in boards}):
        parts.append(section(env, [board for board in boards if board.env == env]))
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
        configs = {(row["env"], tables.label(row)): folder.job(row["key"])["config"] for row in shown}
        baseline = folder.baseline
        grid = folder.grid_file.read_text(encoding="utf-8")
        lines = [line for line in tables.lines(rows, baseline) if line.seeds and line.env != tables.EVERYTHING]
    runs = tables.grouped(shown, lambda row: (row["env"], tables.label(row)))
    labels, boards = tomllib.loads(grid).get("algorithm", {}), list[Board]()
    for setting in dict.fromkeys(line.env for line in lines):
        beside = sorted((x for x in lines if x.env == setting), key=lambda x: -round(x.mean.mean, 9) if x.mean else 1)
        whole = [configs[setting, line.algorithm] for line in beside]
        team = next((c for c, x in zip(whole, beside, strict=True) if not x.algorithm.startswith(SINGLE)), whole[0])
        best, entries = runs[setting, beside[0].algorithm], []
        for line, config in zip(beside, whole, strict=True):
            level = line is beside[0] or _level(best, runs[setting, line.algorithm])
            entries.append((line, level, _label(labels.get(line.algorithm), config, team)))
        boards.append(Board(path.name, team["env"], setting, _facts(team, baseline), tuple(entries)))
    return Pack(path.name, hashlib.sha256(path.read_bytes()).hexdigest(), grid, len(done), tuple(boards))


def _facts(config: Mapping[str, Any], baseline: str) -> str:
    """What a reader must know of every score that a run of this configuration has."""
    kwargs = {key: _short(value) for key, value in (config["env_kwargs"] | config["eval_kwargs"]).items()}
    names = config["models"] if isinstance(config["models"], str) else ", ".join(sorted(set(config["models"].values())))
    greedy = "greedy replies" if config["eval_greedy"] else "sampled replies"
    settings = ", ".join(f"{key}={value}" for key, value in kwargs.items()) or "default settings"
    budget = f"{config['token_budget']:,} sampled tokens" if config["token_budget"] > 1 else "budget by iterations"
    return (
        f"Model {names} ({parameters(names)} parameters); {settings}; {budget}; "
        f"evaluated on {config['eval_episodes']:,} episodes with {greedy}; baseline {baseline}."
    )


def _short(value: Any) -> str:
    """A setting on one line; prompts of a team, which the grid at the foot of the page has, are left out."""
    text = json.dumps(value)
    return text if len(text) <= 60 else "(see the grid)"


def parameters(model: str) -> str:
    """The size of a base model, in words: 333 thousand."""
    if model in BASE_MODELS:
        return BASE_MODELS[model]
    with (MODELS / model / "model.safetensors").open("rb") as weights:
        header = json.loads(weights.read(int.from_bytes(weights.read(8), "little")))
    count = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return f"{count / 1000:.0f} thousand"


def _label(entry: Mapping[str, Any] | None, config: Mapping[str, Any], team: Mapping[str, Any]) -> str:
    """What a label of a grid stands for: its algorithm, what it changes, and the environment, where that is another."""
    parts = [f"one agent, {config['env']}"] if config["env"] != team["env"] else []
    if entry:
        changes = {**entry.get("settings", {}), **entry.get("run", {})}
        changes = {key: value for key, value in changes.items() if not key.startswith(("eval_", "save_", "record_"))}
        parts += [*([entry["algo"]] if "algo" in entry else []), *(f"{k}={_short(v)}" for k, v in changes.items())]
    return ", ".join(parts)


def _level(best: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether there is no significant paired difference; without an interval there is none."""
    paired = tables.gaps(other, best)
    return paired is None or not estimate([paired], difference=True).high < 0


def section(env: str, boards: Sequence[Board]) -> str:
    """The tables of an environment, which open at a click."""
    count = f"{len(boards)} settings" if len(boards) > 1 else "1 setting"
    rows = sum(len(board.rows) for board in boards)
    tables_ = "\n".join(_table(board) for board in boards)
    return (
        f'<details name="board" class="board"><summary><b>{escape(env)}</b> '
        f"<span>{count}, {rows} {'rows' if rows > 1 else 'row'}</span></summary>\n{tables_}</details>"
    )


def _table(board: Board) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in HEAD)
    rows = "\n".join(_row(*entry, marked=len(board.rows) > 1) for entry in board.rows)
    stem = board.file.partition(".")[0]
    return (
        f'<p><b>{escape(board.setting)}</b> (<a href="#file-{stem}">{escape(stem)}</a>). {escape(board.facts)}</p>'
        f'\n<div class="scroll"><table class="sortable" data-filtered="board" data-search-exclude>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(line: tables.Line, level: bool, label: str, *, marked: bool) -> str:
    mean = line.mean.mean if line.mean else -1
    mark = '<abbr title="no significant difference from the highest score of this table">≈</abbr>'
    name = escape(line.algorithm) + (f"<br><small>{escape(label)}</small>" if label else "")
    cells = [
        (name, ""),
        (f"{tables.score(line.mean)}{mark if level and marked else ''}", f"{mean:.4f}"),
        (interval(line), f"{mean:.4f}"),
        (tables.points(line.difference), f"{line.difference.mean if line.difference else -9:.4f}"),
        (str(line.seeds), str(line.seeds)),
        (tables.count(line.tokens), f"{line.tokens:.0f}"),
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
        f"# all of it, from the beginning:\nmarft bench run runs/{stem}/grid.toml --out runs/{stem}-again"
    )
    return (
        f'<details id="file-{stem}" class="board"><summary><b>{escape(pack.name)}</b> '
        f"<span>{pack.results} results</span></summary>\n<pre><code>{escape(commands)}</code></pre>\n"
        f"<p>SHA-256 <code>{pack.sha256}</code>. Its grid:</p>\n"
        f"<pre><code>{escape(pack.grid.rstrip()).replace(chr(10) * 2, chr(10))}</code></pre></details>"
    )
