"""What is viewed: runs, the runs of a benchmark, evaluations, and files of episodes. Everything here only reads."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.tables import label
from marft_algos.extras.view.index import EpisodeIndex
from marft_algos.runs import disk
from marft_algos.runs.folder import RunFolder
from marft_envs.errors import ConfigError

EVALUATION = "episodes.jsonl"
"""Of the folder that ``marft eval --engines`` writes."""


@dataclass(frozen=True, slots=True)
class ViewSource:
    """A run, or a file of episodes."""

    name: str
    """Of this source alone among those that are viewed together."""
    run: RunFolder | None
    """None: a file of episodes, which belongs to no run."""
    index: EpisodeIndex
    bench: BenchFolder | None = None
    """The benchmark that the run stands here for."""


def open_sources(paths: Sequence[str]) -> list[ViewSource]:
    """Returns what is at these paths; nothing is read yet.

    Args:
        paths: Runs (folder, or name below ``runs``), folders that hold runs, benchmarks, folders of ``marft eval
            --engines``, JSONL files of episodes. Empty: the newest run in ``runs``.

    Raises:
        ConfigError: One of them is none of these; the message names it.
    """
    places = [place for path in paths or (RunFolder.newest(),) for place in _places(path)]
    places = list({os.path.realpath(root): (name, root, of) for name, root, of in reversed(places)}.values())[::-1]
    taken = Counter[str]()
    sources = []
    for name, root, bench in places:
        taken[name] += 1
        shown = name if taken[name] == 1 else f"{name} ({taken[name]})"
        run = RunFolder(root) if (root / "config.toml").is_file() else None
        place = root / "episodes" if run else root / EVALUATION if root.is_dir() else root
        sources.append(ViewSource(shown, run, EpisodeIndex(place), bench))
    return sources


def _places(path: str) -> Iterator[tuple[str, Path, BenchFolder | None]]:
    root = Path(path)
    if root.is_file():
        if root.suffix != ".jsonl":
            raise ConfigError(f"'{path}' is a file, and no episodes: expected a run's folder, or a .jsonl file.")
        yield root.name, root, None
    elif (root / EVALUATION).is_file():
        yield root.resolve().name, root, None
    elif (root / "bench.json").is_file():
        yield from _grid_runs(root)
    elif root.is_dir() and not (root / "config.toml").is_file() and (inside := sorted(root.glob("*/config.toml"))):
        yield from ((config.parent.name, config.parent, None) for config in inside)
    else:
        run = RunFolder.open(path)
        yield run.root.resolve().name, run.root, None


def _grid_runs(root: Path) -> list[tuple[str, Path, BenchFolder]]:
    """Names the runs of a benchmark by their row, environment and seed."""
    folder = BenchFolder(root)
    made = [row for row in folder.rows() if (folder.runs / row["key"] / "config.toml").is_file()]
    if not made:
        raise ConfigError(
            f"'{root}' is a benchmark without runs: nothing has been run, or it was packed, which keeps results alone."
            " Its numbers: marft bench report DIR"
        )
    return [(f"{label(row)} · {row['env']} · {row['seed']}", folder.runs / row["key"], folder) for row in made]


def writer(run: RunFolder) -> str:
    """Says who writes into a run now: ``""`` if nobody does, ``"here"``, or the name of the other machine.

    The lock is only looked at: taking it, even for a moment, could stop the training.
    """
    who = disk.writer(run.root)
    return "" if who is None else "here" if who[1] == socket.gethostname() else who[1]
