"""Where do reinforcement and imitation cross? Curves over budgets of 1, 2, 4 and 8, cell by cell of a map.

::

    marft bench run examples/configs/bench_map.toml --out runs/map --jobs 2
    python -m benchmarks map runs/map                                # tables
    python -m benchmarks map runs/map --figure docs/images/map.png   # and the figure

The budget 8 is a run's whole one; the smaller ones are points of the same run's curve, so that a schedule of a shorter
run would differ. Scores are of sampled replies. Intervals are the two-level ones of benchmarks, paired by seed and
episode where two algorithms are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import points, table
from marft_algos.bench.folder import BenchFolder
from marft_algos.bench.statistics import Outcomes, enough, estimate
from marft_algos.bench.tables import complete
from marft_algos.runs import plots

Row = Mapping[str, Any]
BUDGETS = (1, 2, 4, 8)
IMITATION = "rft"
"""What the others are compared with: it learns from its successes only."""
Cells = Mapping[str, Mapping[str, Sequence[Row]]]
"""Environment -> algorithm -> its finished runs, by seed."""


def finished(rows: Iterable[Row]) -> Cells:
    """Groups the runs that are done."""
    cells: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["status"] == "done" and not row["hidden"] and row["algorithm"] != "untrained":
            cells.setdefault(row["env"], {}).setdefault(row["algorithm"], []).append(row)
    return cells


def outcomes(runs: Sequence[Row], tokens: float) -> Outcomes:
    """Returns what runs scored when they had sampled so many tokens, [seeds, episodes]: the last evaluation before.

    An episode that an outage took has no outcome: nan.
    """
    points = [max((p for p in run["curve"] if p["tokens"] <= tokens), key=lambda p: p["tokens"]) for run in runs]
    return np.array([point["outcomes"] for point in points], np.float64)


def at(budget: int, runs: Sequence[Row], whole: int) -> Outcomes:
    """Returns the outcomes at a budget of 1 to 8; 8 is the end, even where the last iteration went beyond it."""
    return outcomes(runs, np.inf if budget == BUDGETS[-1] else whole * budget / BUDGETS[-1])


def scores(cells: Cells, budgets: Mapping[str, int]) -> list[list[str]]:
    """Returns a line for each environment and algorithm: where it began, and its score at each budget."""
    lines = []
    for env, algorithms in cells.items():
        for name, runs in algorithms.items():
            start = np.nanmean(outcomes(runs, 0))
            each = [said(at(budget, runs, budgets[env])) for budget in BUDGETS]
            lines.append([env, name, f"{start:.3f}", *each, str(len(runs))])
    return lines


def said(values: Outcomes) -> str:
    """Writes a mean, with its interval if there are seeds enough; an episode that one seed lost counts for none."""
    known = complete(values)
    return str(estimate(known)).partition(", n")[0] if enough(known) else f"{known[0].mean():.3f}"


def crossings(cells: Cells, budgets: Mapping[str, int], rival: str) -> list[list[str]]:
    """Returns, for each environment and algorithm, its score less the rival's at each budget, in points."""
    lines = []
    for env, algorithms in cells.items():
        theirs = {run["seed"]: run for run in algorithms.get(rival, ())}
        for name, runs in algorithms.items():
            pairs = [(run, theirs[run["seed"]]) for run in runs if run["seed"] in theirs]
            if name == rival or not pairs:
                continue
            ours, others = zip(*pairs, strict=True)
            gaps = [complete(at(b, ours, budgets[env]) - at(b, others, budgets[env])) for b in BUDGETS]
            lines.append([env, f"{name} less {rival}", *map(gained, gaps)])
    return lines


def gained(gap: Sequence[Outcomes]) -> str:
    """Writes a difference in points, with its interval if there are seeds enough."""
    return points(estimate(gap)) if enough(gap) else f"{100 * gap[0].mean():+.1f}"


def draw(cells: Cells, budgets: Mapping[str, int], file: Path, columns: int) -> None:
    """Draws a panel for each environment: mean score over budgets, and the range of the seeds."""
    names = list(dict.fromkeys(name for algorithms in cells.values() for name in algorithms))
    height = -(-len(cells) // columns)
    figure = plots.figure(2.9 * columns, 2.5 * height)
    for i, (env, algorithms) in enumerate(cells.items()):
        axes = figure.add_subplot(height, columns, i + 1)
        starts = []
        for name, runs in algorithms.items():
            marks = [outcomes(runs, 0), *(at(budget, runs, budgets[env]) for budget in BUDGETS)]
            starts.append(np.nanmean(marks[0]))
            each = np.array([np.nanmean(mark, axis=1) for mark in marks])
            color = plots.COLORS[names.index(name) % len(plots.COLORS)]
            axes.plot(range(len(marks)), each.mean(1), "o-", color=color, label=name, markersize=3, linewidth=1.3)
            axes.fill_between(range(len(marks)), each.min(1), each.max(1), color=color, alpha=0.12, linewidth=0)
        axes.set_xticks(range(len(BUDGETS) + 1), ["0", *(f"×{budget}" for budget in BUDGETS)])
        axes.set_ylim(-0.02, 1.02)
        plots.finish(axes, f"{env} (start {np.mean(starts):.2f})")
    plots.legend(figure)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    """Prints the tables of one folder, and draws the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the benchmark")
    parser.add_argument("--rival", default=IMITATION, help="whom the others are compared with")
    parser.add_argument("--figure", type=Path, help="draw it here")
    parser.add_argument("--columns", type=int, default=4, help="panels side by side")
    args = parser.parse_args()
    folder = BenchFolder(args.folder)
    rows = folder.rows()
    cells = finished(rows)
    grid = folder.described()["grid"]
    own = {env: grid.get("env", {}).get(env, {}).get("token_budget") for env in cells}
    budgets = {env: int(budget or grid["token_budget"]) for env, budget in own.items()}
    marks = [f"×{budget}" for budget in BUDGETS]
    print(table(["environment", "algorithm", "start", *marks, "seeds"], scores(cells, budgets)))
    print(table(["environment", "points", *marks], crossings(cells, budgets, args.rival)))
    if args.figure:
        draw(cells, budgets, args.figure, args.columns)


if __name__ == "__main__":
    main()
