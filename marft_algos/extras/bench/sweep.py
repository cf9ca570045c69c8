"""The sweep over learning rates: what each rate scored, and which was chosen. No torch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marft_algos.extras.bench.tables import Row, grouped
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.extras.bench.folder import BenchFolder
    from marft_algos.extras.bench.grid import Grid

Pair = tuple[str, str]
"""Algorithm's label, environment's label."""
Rates = Mapping[Pair, float | None]
"""Learning rate that the sweep chose; None: no run of the sweep ended well."""
Tried = Mapping[float, tuple[float, float] | None]
"""Of each rate: final score and score while training, means over the sweep's seeds; None where a run is not done."""


def tried(rows: Sequence[Mapping[str, Any]]) -> dict[Pair, Tried]:
    """Collects what each learning rate came to, from the rows of the stage ``sweep``."""
    by_pair = grouped((row for row in rows if not row["hidden"]), lambda row: (row["algorithm"], row["env"]))
    return {
        pair: {
            lr: means([row if row["status"] == "done" else None for row in seeds])
            for lr, seeds in grouped(tried_of, lambda row: float(row["lr"])).items()
        }
        for pair, tried_of in by_pair.items()
    }


def means(points: Sequence[Row | None]) -> tuple[float, float] | None:
    """Averages final score and score while training over seeds; None where one of them has none."""
    whole = [point for point in points if point is not None]
    if len(whole) < len(points):
        return None
    return fmean(point["score"] for point in whole), fmean(point["train_score"] for point in whole)


def best(by_rate: Tried) -> float | None:
    """Picks the rate with the best final score; of equals the one that scored more while training, then the smaller.

    Where several rates reach the optimum, the one that got there with fewer tokens has more to spare on other seeds.
    Rates of which a run failed do not stand.
    """
    whole = {lr: means for lr, means in by_rate.items() if means is not None}
    return max(whole, key=lambda lr: (*whole[lr], -lr)) if whole else None


def chosen(grid: Grid, folder: BenchFolder) -> Rates | None:
    """Picks each algorithm's rate in each environment, of single agents only the best one's; None without a sweep.

    Raises:
        ConfigError: The sweep is not over.
    """
    if grid.sweep is None:
        return None
    rows = folder.rows("sweep")
    if any(row["status"] == "pending" and not row["hidden"] for row in rows):
        raise ConfigError(
            f"The sweep is not over. Type: marft bench run {shlex.quote(str(folder.grid_file))} --out"
            f" {shlex.quote(str(folder.root))} --stage sweep"
        )
    by_pair = tried(rows)
    out = {pair: best(by_rate) for pair, by_rate in by_pair.items()}
    for env in grid.envs:
        # Of several algorithms that may train the single agent, the best stands, each at its best rate.
        rated = [(pair, out[pair]) for label in grid.singles if (pair := (grid.single_row(label), env)) in out]
        scored = {pair: both for pair, lr in rated if lr is not None and (both := by_pair[pair][lr])}
        for pair in scored.keys() - {max(scored, key=lambda p: scored[p], default=None)}:
            del out[pair]
    for label in grid.envs:
        source = grid.env_entry(label).trained_on
        out |= {(a, label): lr for (a, e), lr in out.items() if source and e == source}
    return out


def sheet(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Makes the sweep's table, its head first: each rate's final score and score while training, in points.

    A choice at the edge of what was tried says so: a better one may lie beyond.
    """
    by_pair = tried(rows)
    rates = sorted({lr for by_rate in by_pair.values() for lr in by_rate})
    pending = {(row["algorithm"], row["env"]) for row in rows if row["status"] == "pending"}
    out = [["environment", "algorithm", *(f"{lr:g}" for lr in rates), "chosen"]]
    envs = list(dict.fromkeys(env for _, env in by_pair))
    for algorithm, env in sorted(by_pair, key=lambda pair: envs.index(pair[1])):
        by_rate = by_pair[algorithm, env]
        pairs = [by_rate.get(lr) for lr in rates]
        scores = ["–" if pair is None else f"{pair[0]:.3f} ({pair[1]:.3f})" for pair in pairs]
        choice = "pending" if (algorithm, env) in pending else _choice(by_rate)
        out.append([env, algorithm, *scores, choice])
    return out


def _choice(by_rate: Tried) -> str:
    if (rate := best(by_rate)) is None:
        return "none ended well"
    edge = " (the smallest)" if rate == min(by_rate) else " (the largest)" if rate == max(by_rate) else ""
    return f"{rate:g}{edge if len(by_rate) > 1 else ''}"
