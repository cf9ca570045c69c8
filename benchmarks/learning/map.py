"""Where do reinforcement and imitation cross? Curves over budgets of 1, 2, 4 and 8, for each setting of a map.

::

    marft bench run examples/configs/bench_map.toml --out runs/map --jobs 2
    python -m benchmarks map runs/map                                # tables
    python -m benchmarks map runs/map --figure docs/images/map.png   # and the figure
    python -m benchmarks map runs/map_team --team                    # what team-X has above own-X

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
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.statistics import Outcomes, enough, estimate
from marft_algos.extras.bench.tables import alike, complete
from marft_algos.runs import plots
from marft_envs.errors import ConfigError

Row = Mapping[str, Any]
BUDGETS = (1, 2, 4, 8)
IMITATION = "rft"
"""What the others are compared with: it learns from its successes only."""
Settings = Mapping[str, Mapping[str, Sequence[Row]]]
"""Environment -> algorithm -> its finished runs, by seed."""


def finished(rows: Iterable[Row]) -> Settings:
    """Groups the runs that are done."""
    settings: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["status"] == "done" and not row["hidden"] and row["algorithm"] != "untrained":
            settings.setdefault(row["env"], {}).setdefault(row["algorithm"], []).append(row)
    return settings


def outcomes(runs: Sequence[Row], tokens: float) -> Outcomes:
    """Returns what runs scored when they had sampled so many tokens, [seeds, episodes]: the last evaluation before.

    An episode with an infrastructure error has no outcome: nan.
    """
    points = [max((p for p in run["curve"] if p["tokens"] <= tokens), key=lambda p: p["tokens"]) for run in runs]
    return np.array([point["outcomes"] for point in points], np.float64)


def at(budget: int, runs: Sequence[Row], whole: int) -> Outcomes:
    """Returns the outcomes at a budget of 1 to 8; 8 is the end, even where the last iteration went beyond it."""
    return outcomes(runs, np.inf if budget == BUDGETS[-1] else whole * budget / BUDGETS[-1])


def scores(settings: Settings, budgets: Mapping[str, int]) -> list[list[str]]:
    """Returns a line for each environment and algorithm: where it began, and its score at each budget."""
    lines = []
    for env, algorithms in settings.items():
        for name, runs in algorithms.items():
            start = np.nanmean(outcomes(runs, 0))
            each = [said(at(budget, runs, budgets[env])) for budget in BUDGETS]
            lines.append([env, name, f"{start:.3f}", *each, str(len(runs))])
    return lines


def said(values: Outcomes) -> str:
    """Writes a mean, with its interval if there are seeds enough; an episode that one seed lost counts for none."""
    known = complete(values)
    return str(estimate(known)).partition(", n")[0] if enough(known) else f"{known[0].mean():.3f}"


def crossings(settings: Settings, budgets: Mapping[str, int], rival: str) -> list[list[str]]:
    """Returns, for each environment and algorithm, its score less the rival's at each budget, in points."""
    lines = []
    for env, algorithms in settings.items():
        theirs = {run["seed"]: run for run in algorithms.get(rival, ())}
        for name, runs in algorithms.items():
            pairs = [(run, theirs[run["seed"]]) for run in runs if run["seed"] in theirs]
            if name == rival or not pairs:
                continue
            lines.append([env, f"{name} less {rival}", *_gaps(pairs, (budgets[env], budgets[env]))])
    if not lines:
        raise ConfigError(
            f"No run of another algorithm than '{rival}' has a seed in common with one of it, so nothing is compared."
            f" Expected a --rival among {', '.join(sorted({name for own in settings.values() for name in own}))}, with"
            " others beside it; teams and single agents are compared by --team."
        )
    return lines


def teams(settings: Settings, budgets: Mapping[str, int]) -> list[list[str]]:
    """Returns, for each ``team-X`` and algorithm, its score less that of the single agent ``own-X``, in points.

    Raises:
        ConfigError: There is no such pair, or one was not scored on the same problems.
    """
    lines = []
    for env in (env for env in settings if env.startswith("team-")):
        alone = f"own-{env.removeprefix('team-')}"
        for name, runs in settings[env].items():
            theirs = {run["seed"]: run for run in settings.get(alone, {}).get(name, ())}
            if pairs := [(run, theirs[run["seed"]]) for run in runs if run["seed"] in theirs]:
                if not alike([run for pair in pairs for run in pair]):
                    raise ConfigError(f"{env} and {alone} were not scored on the same problems: no pairs.")
                lines.append([env, f"{name}, less {alone}", *_gaps(pairs, (budgets[env], budgets[alone]))])
    if not lines:
        raise ConfigError("No environments 'team-X' and 'own-X' have runs of the same seed here; expected some.")
    return lines


def _gaps(pairs: Sequence[tuple[Row, Row]], whole: tuple[int, int]) -> list[str]:
    """Writes the difference of pairs of runs at each budget."""
    ours, others = zip(*pairs, strict=True)
    each = [complete(at(b, ours, whole[0]) - at(b, others, whole[1])) for b in BUDGETS]
    return [gained(gap) for gap in each]


def gained(gap: Sequence[Outcomes]) -> str:
    """Writes a difference in points, with its interval if there are seeds enough."""
    return points(estimate(gap, difference=True)) if enough(gap) else f"{100 * gap[0].mean():+.1f}"


def draw(settings: Settings, budgets: Mapping[str, int], file: Path, columns: int) -> None:
    """Draws a diagram for each environment: mean score over budgets, and the range of the seeds."""
    names = list(dict.fromkeys(name for algorithms in settings.values() for name in algorithms))
    height = -(-len(settings) // columns)
    figure = plots.figure(2.9 * columns, 2.5 * height)
    for i, (env, algorithms) in enumerate(settings.items()):
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
    parser.add_argument("--rival", default=IMITATION, help="algorithm that the others are compared with")
    parser.add_argument("--team", action="store_true", help="compare each team-X with own-X instead")
    parser.add_argument("--figure", type=Path, help="draw it here")
    parser.add_argument("--columns", type=int, default=4, help="diagrams side by side")
    args = parser.parse_args()
    folder = BenchFolder(args.folder)
    rows = folder.rows()
    settings = finished(rows)
    grid = folder.described()["grid"]
    own = {env: grid.get("env", {}).get(env, {}).get("token_budget") for env in settings}
    budgets = {env: int(budget or grid["token_budget"]) for env, budget in own.items()}
    marks = [f"×{budget}" for budget in BUDGETS]
    print(table(["environment", "algorithm", "start", *marks, "seeds"], scores(settings, budgets)))
    compared = teams(settings, budgets) if args.team else crossings(settings, budgets, args.rival)
    print(table(["environment", "points", *marks], compared))
    if args.figure:
        draw(settings, budgets, args.figure, args.columns)


if __name__ == "__main__":
    main()
