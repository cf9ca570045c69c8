"""Readers against one agent, by length of the documents: scores, what an answer costs, and paired differences.

::

    marft bench run examples/configs/bench_docs.toml --out runs/docs --jobs 2
    python -m benchmarks docs runs/docs

Rows are named as in the grid: ``chain-2`` is the team of ``chain`` on documents of two windows. Intervals are over
documents, for the seeds that were run; below three seeds they say nothing of others.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import table
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.statistics import enough, estimate
from marft_algos.extras.bench.tables import complete
from marft_algos.runs import intervals, plots

Row = Mapping[str, Any]
TEAM = "chain"
MIXED = ("solo-all", "solo-all-processed")
"""Teams trained on several lengths: their evaluation set is no length of its own."""
CHECK = 2
"""Documents of an evaluation that only shows that a run can be played."""
NAMES = {
    "tree": "readers in a tree",
    "chain": "readers in a chain",
    "chain-capped": "chain, stopped at the limit",
    "memory-terse": "one agent, page by page",
    "solo-terse": "one agent, all at once",
    "solo-working": "one agent, every second balance",
    "solo-every": "one agent, every balance",
}
"""Who -> what a figure calls it."""
MODELS = {
    "embedded-docs": "embedded-docs (333 thousand parameters, taught on 52,000 merges of notes)",
    "smollm2-135m": "SmolLM2-135M, the tree shown single merges beside ledgers",
}
"""Base model -> what a figure says of it."""
TITLE = "#1f2937"
"""The ink of the title."""


def place(env: str) -> tuple[str, int]:
    """Returns who plays and how long the documents are, in windows."""
    match = re.fullmatch(r"(.+)-(\d+)", env)
    return (match[1], int(match[2])) if match else (env, 1)


def finished(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Returns (who, length) -> the finished runs, by seed."""
    settings: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        shown = row["status"] == "done" and not row["hidden"] and row["env"] not in MIXED
        shown = shown and len(row["problems"]) > CHECK
        if shown and row["algorithm"] != "untrained":
            settings.setdefault(place(row["env"]), []).append(row)
    return {setting: sorted(runs, key=lambda run: int(run["seed"])) for setting, runs in settings.items()}


def scores(settings: Mapping[tuple[str, int], Sequence[Row]]) -> list[list[str]]:
    """Returns a line for each who and length: score by seed, and what an episode sampled, processed and waited for."""
    lines = []
    for (who, length), runs in sorted(settings.items(), key=lambda setting: (setting[0][1], setting[0][0])):
        episodes = len(runs[0]["problems"])
        costs = [sum(run[name] for run in runs) / len(runs) for name in ("eval_tokens", "eval_processed")]
        waited = sum(run["critical_path"] for run in runs) / len(runs)
        each = " · ".join(str(intervals.mean(known(run))).partition(", n")[0] for run in runs)
        numbers = [f"{cost / episodes:.0f}" for cost in costs]
        lines.append([str(length), who, each, str(episodes), *numbers, f"{waited:.0f}", f"{runs[0]['processed']:,}"])
    return lines


def means(settings: Mapping[tuple[str, int], Sequence[Row]]) -> tuple[list[str], list[list[str]]]:
    """Returns a heading and a line for each who: by length, the mean score over seeds, the least and the greatest."""
    lengths = sorted({length for _, length in settings})
    lines = []
    for who in sorted({who for who, _ in settings}):
        line = [who]
        for length in lengths:
            each = [statistics.fmean(known(run)) for run in settings.get((who, length), ())]
            line.append(f"{statistics.fmean(each):.3f} ({min(each):.2f} to {max(each):.2f})" if each else "")
        lines.append(line)
    return ["who", *(f"{length} window{'s' * (length > 1)}" for length in lengths)], lines


def gains(settings: Mapping[tuple[str, int], Sequence[Row]]) -> list[list[str]]:
    """Returns what training has added to each who, by seed: the last evaluation less the first, paired."""
    lines = []
    for (who, length), runs in sorted(settings.items(), key=lambda setting: (setting[0][1], setting[0][0])):
        ends = [(run["curve"][0], run["curve"][-1]) for run in runs if run.get("curve")]
        if ends:
            each = [intervals.paired(*both(first, last)).points("") for first, last in ends]
            lines.append([str(length), who, f"{statistics.fmean(known(ends[0][0])):.3f}", " · ".join(each)])
    return lines


def known(run: Row) -> list[float]:
    """Returns the outcomes without infrastructure errors."""
    return [outcome for outcome in run["outcomes"] if outcome is not None]


def differences(settings: Mapping[tuple[str, int], Sequence[Row]], team: str = TEAM) -> list[list[str]]:
    """Returns the team's outcomes less everybody else's, on the same documents, seed by seed."""
    lines = []
    for (who, length), runs in sorted(settings.items(), key=lambda setting: (setting[0][1], setting[0][0])):
        ours = {run["seed"]: run for run in settings.get((team, length), ())}
        pairs = [(run, ours[run["seed"]]) for run in runs if who != team and run["seed"] in ours]
        pairs = [(other, mine) for other, mine in pairs if other["problems"] == mine["problems"]]
        if pairs:
            each = [intervals.paired(*both(other, mine)).points("") for other, mine in pairs]
            lines.append([str(length), f"{team} less {who}", " · ".join(each), over_seeds(pairs)])
    return lines


def over_seeds(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Returns the difference of (other, team), with the two-level interval of benchmarks; empty below three seeds."""
    outcomes = np.array([[mine["outcomes"], other["outcomes"]] for other, mine in pairs], np.float64)
    (gains,) = complete(outcomes[:, 0] - outcomes[:, 1])  # a document with an infrastructure error counts for no seed
    return estimate([gains], difference=True).points("") if enough([gains]) else ""


def both(one: Row, other: Row) -> tuple[list[float], list[float]]:
    """Returns the outcomes of the documents that neither run has lost."""
    pairs = [(a, b) for a, b in zip(one["outcomes"], other["outcomes"], strict=True) if a is not None and b is not None]
    return [a for a, _ in pairs], [b for _, b in pairs]


def draw(settings: Mapping[tuple[str, int], Sequence[Row]], file: Path, title: str) -> None:
    """Draws score over latency, a curve for each who, named where it ends: a mark a length, the range of seeds."""
    figure = plots.figure(7, 4.2)
    axes, heights = figure.add_subplot(), list[float]()
    for i, who in enumerate(dict.fromkeys(who for who, _ in settings)):
        lengths, runs = zip(*((n, of) for (name, n), of in sorted(settings.items()) if name == who), strict=True)
        path = [statistics.fmean(run["critical_path"] for run in of) for of in runs]
        each = [[statistics.fmean(known(run)) for run in of] for of in runs]
        mean, color = [statistics.fmean(of) for of in each], plots.COLORS[i % len(plots.COLORS)]
        axes.plot(path, mean, "o-", color=color, markersize=5, linewidth=1.6)
        axes.vlines(path, [min(of) for of in each], [max(of) for of in each], color=color, alpha=0.5)
        for x, y, length in zip(path, mean, lengths, strict=True) if len(path) > 1 else ():
            words = f"{length} windows" if length == max(lengths) else f"{length}"
            axes.annotate(words, (x, y), (7, 2), textcoords="offset points", fontsize=8, color=plots.INK)
        raised = 9 + 14 * any(abs(height - mean[0]) < 0.05 for height in heights)  # another name is beside it
        heights.append(mean[0])
        look = {"xytext": (-6, raised), "textcoords": "offset points", "fontsize": 10, "weight": "bold"}
        axes.annotate(NAMES.get(who, who), (path[0], mean[0]), color=color, **look)
    axes.set_xscale("log")
    axes.set_xticks((5, 10, 25, 50, 100, 200, 400), ("5", "10", "25", "50", "100", "200", "400"))
    axes.set_xlim(4, 900)
    axes.set_ylim(-0.05, 1.1)
    axes.minorticks_off()
    axes.set_xlabel("latency of an answer (critical path): tokens generated one after another", fontsize=9)
    plots.finish(axes, "score (share of documents solved)")
    axes.tick_params(labelsize=9)
    figure.suptitle(title, fontsize=10, weight="bold", color=TITLE, x=0.03, ha="left")
    figure.savefig(file, dpi=120, facecolor="white", pil_kwargs={"optimize": True})


def claim(settings: Mapping[tuple[str, int], Sequence[Row]], team: str, model: str, limit: float) -> str:
    """Says of a model what its team has on the longest documents within its limit, and others there."""
    within = [key for key, of in settings.items() if statistics.fmean(run["critical_path"] for run in of) <= limit]
    longest = max(length for who, length in within if who == team)
    each = {who: settings[who, length] for who, length in within if length == longest}
    score = {who: statistics.fmean(statistics.fmean(known(run)) for run in of) for who, of in each.items()}
    runs = each[team]
    ours, who = score.pop(team), NAMES.get(team, team)
    words = f"{MODELS.get(model, model)}:\n"
    words += f"within a latency of {limit:g} tokens {who} solve {ours:.3f} of {longest}-window ledgers,\n"
    best = max(score, key=score.__getitem__, default="")
    words += f"other methods at most {score[best]:.3f} " if best else ""
    seeds = f"{len(runs)} and {len(settings[best, longest])}" if best else f"{len(runs)}"
    return words + f"({seeds} seeds, {len(runs[0]['problems'])} ledgers each)"


def condition(folder: BenchFolder, team: str) -> tuple[str, float]:
    """Returns the model that policies began as, and the latency that an answer of the team may have."""
    done = [folder.job_file(row["key"]) for row in folder.rows() if row["status"] == "done"]
    jobs = [json.loads(file.read_text(encoding="utf-8")) for file in done]
    models = sorted({str(job["config"]["models"]) for job in jobs})
    limits = [job["config"]["env_kwargs"].get("max_path", math.inf) for job in jobs if place(job["env"])[0] == team]
    return ", ".join(models), min(limits)


def main() -> int:
    """Prints the tables of one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="of benchmarks; whom an earlier one has is left out")
    parser.add_argument("--team", default=TEAM, help="whom the others are compared with")
    parser.add_argument("--figure", type=Path, help="draw score over latency here")
    args = parser.parse_args()
    settings: dict[tuple[str, int], list[Row]] = {}
    for folder in map(BenchFolder, args.folders):
        found, there = finished(folder.rows()), {who for who, _ in settings}
        settings |= {key: runs for key, runs in found.items() if key[0] not in there}
    if args.figure:
        draw(settings, args.figure, claim(settings, args.team, *condition(BenchFolder(args.folders[0]), args.team)))
    costs = ("sampled", "processed", "critical path", "trained: processed")
    print(table(*means(settings)))
    print(table(["length", "who", "score by seed", "documents", *costs], scores(settings)))
    print(table(["length", "who", "at first", "gained in training, points, by seed"], gains(settings)))
    print(table(["length", "difference, points", "by seed", "over seeds"], differences(settings, args.team)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
