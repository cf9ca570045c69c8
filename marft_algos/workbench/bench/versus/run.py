"""Runs a trial, or goes on with one: the team, the team without D, then the single agent on what the team has cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import marft_algos
from marft_algos.runs.disk import write_whole, writing
from marft_algos.terminal import say as to_terminal
from marft_algos.workbench.bench.folder import BenchFolder
from marft_algos.workbench.bench.versus import grids
from marft_algos.workbench.bench.versus.grids import SPENT, Budgets, Choice, Row, Side
from marft_algos.workbench.bench.versus.trial import Trial
from marft_algos.workbench.bench.versus.verdict import UNITS, Unit
from marft_envs.errors import ConfigError

FILE = "versus.json"
"""The trial, what the team has cost, and what the sweeps chose."""
Say = Callable[[str], None]


def run(trial: Trial, root: Path, jobs: int = 1, say: Say = to_terminal) -> dict[str, Any]:
    """Runs what is missing; returns what stands in ``versus.json``.

    Raises:
        ConfigError: The folder holds another trial, or no run of a side ended well.
    """
    _prepare(trial, root)
    budgets: Budgets = {"sampled": trial.token_budget}
    chosen: dict[str, Any] = {}
    for side in sides(trial):
        if side == "single":
            budgets = spent(finished(root, "team", "team"))
            say(f"the team has cost, in tokens: {described(budgets)}; the single agent gets as much")
        picks = _picked(trial, side, root, budgets, jobs, say)
        for unit, choice in picks.items():
            say(f"{side}{f' at equal {unit}' if side == 'single' else ''}: {choice}")
        runs = grids.main(trial, side, budgets, list(picks.values()))
        runs.run(_folder(root, side, "runs"), jobs=jobs, stage="main", report=_told(say, side))
        chosen[side] = {unit: str(choice) for unit, choice in picks.items()}
    record = {"version": marft_algos.__version__, "trial": trial.table(), "budgets": dict(budgets), "chosen": chosen}
    write_whole(root / FILE, json.dumps(record, indent=1) + "\n")
    return record


def _picked(trial: Trial, side: Side, root: Path, budgets: Budgets, jobs: int, say: Say) -> dict[Unit, Choice]:
    """Sweeps, unless there is nothing to choose among."""
    only = grids.candidates(trial, side)
    if len(only) == 1:
        return dict.fromkeys(UNITS if side == "single" else UNITS[:1], only[0])
    swept = _folder(root, side, "sweep")
    grids.sweep(trial, side, budgets).run(swept, jobs=jobs, stage="sweep", report=_told(say, f"{side}, sweep"))
    return choices(side, BenchFolder(swept).rows("sweep"), budgets)


def sides(trial: Trial) -> list[Side]:
    """Lists who is trained, in order."""
    return ["team", "deaf", "single"] if grids.has_dependency(trial) else ["team", "single"]


def choices(side: Side, rows: Sequence[Row], budgets: Budgets) -> dict[Unit, Choice]:
    """Chooses algorithm and rate, for the single agent under each budget by itself."""
    if side != "single":
        return {"sampled": grids.choose(rows)}
    return {unit: grids.choose(rows, unit, budgets[unit]) for unit in UNITS}


def spent(rows: Sequence[Row]) -> Budgets:
    """Averages what runs have cost.

    Raises:
        ConfigError: There are no finished runs.
    """
    if not rows:
        raise ConfigError("No run of the team ended well, so that there is no budget for the single agent; see above.")
    return {unit: round(fmean(row[SPENT[unit]] for row in rows)) for unit in UNITS}


def finished(root: Path, side: Side, env: str) -> list[Row]:
    """Reads the runs that count of a side, in one of its environments, as far as they ended well."""
    return [r for r in BenchFolder(_folder(root, side, "runs")).rows() if r["env"] == env and r["status"] == "done"]


def described(budgets: Mapping[Unit, int]) -> str:
    """Writes budgets for people."""
    return ", ".join(f"{budgets[unit]:,} {unit}".replace(",", " ") for unit in UNITS if unit in budgets)


def failures(root: Path, trial: Trial) -> list[str]:
    """Lists the cells that failed, with their errors."""
    out = []
    for side in sides(trial):
        for part, stage in (("sweep", "sweep"), ("runs", "main")):
            folder = BenchFolder(_folder(root, side, part))
            for row in folder.rows(stage) if folder.bench_file.is_file() else []:
                if row["status"] in ("failed", "skipped"):
                    out.append(f"{side}: {row['algorithm']} · {row['env']} · seed {row['seed']}: {row['error']}")
    return out


def _prepare(trial: Trial, root: Path) -> None:
    """Makes the folder, or checks that it is of this trial: results of another one would be taken for this one's."""
    file = root / "trial.json"
    table = json.loads(json.dumps(trial.table()))
    if file.is_file():
        there = json.loads(file.read_text(encoding="utf-8"))
        if different := [key for key in table if there.get(key) != table[key]]:
            raise ConfigError(
                f"'{root}' is another trial: {', '.join(f'{key} was {there.get(key)!r}' for key in different)}. "
                "Choose another folder: --out DIR"
            )
        return
    if root.is_dir() and any(root.iterdir()):
        raise ConfigError(f"'{root}' is not empty and no trial. Choose another folder: --out DIR")
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(table, indent=1) + "\n")


def _folder(root: Path, side: Side, part: str) -> Path:
    """Names a plain benchmark's folder, which ``marft bench report`` reads, too."""
    return root / f"{side}-{part}"


def _told(say: Say, what: str) -> Say:
    return lambda line: say(f"{what} {line}")
