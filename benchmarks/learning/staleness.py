"""What does it cost to learn from episodes of older weights, and does V-trace bring it back?

::

    python -m benchmarks staleness --out runs/staleness [--seeds 0 1 2] [--envs math tools]

Per environment and seed: ``marft train`` without staleness, with 1 and with 2, and the latter two with ``vtrace``
(without staleness it changes nothing, to the bit). ``math`` is ``math-dual-v0`` as ``make train`` has it; ``tools`` is
``tools-dual_control-v0`` on level 0 of the depot, the longest episodes that an embedded model learns. What counts is
the mean training score over all iterations of a run, which is what staleness takes from: how much of it is lost, and
how much of its gain over the untrained team (the first iteration's score, which all runs of a seed share). 95 %
intervals over seeds are Student's t, of paired differences. A run that is in the folder's ``staleness.json`` is not run
again: copy ``benchmarks/results/staleness.json`` there to go on from what is known.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.runs import Done, Job, run_all, table
from marft_algos.extras.bench.statistics import student_quantile

ENVS: Mapping[str, tuple[str, ...]] = {
    "math": ("--env", "math-dual-v0", "--iterations", "30"),
    "tools": (
        *("--env", "tools-dual_control-v0", "--preset", "tools", "--iterations", "15"),
        *("--episodes-per-iteration", "32"),
    ),
}
SPARE = ("--eval-every", "0", "--eval-episodes", "300", "--save-every", "0", "--record-episodes", "0")
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "0": (),
    "1": ("--staleness", "1"),
    "2": ("--staleness", "2"),
    "1, V-trace": ("--staleness", "1", "--vtrace"),
    "2, V-trace": ("--staleness", "2", "--vtrace"),
}
Row = dict[str, Any]


def main() -> None:
    """Runs what is not known, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs, of staleness.json and .png")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--envs", nargs="+", choices=list(ENVS), default=list(ENVS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known = args.out / "staleness.json"
    rows: list[Row] = json.loads(known.read_text(encoding="utf-8")) if known.exists() else []
    for env in args.envs:
        for seed in args.seeds:
            for variant in VARIANTS:
                job = job_of(env, variant, seed)
                if not any(row["command"] == job.command for row in rows):
                    rows.append(row_of(env, variant, seed, run_all([job], args.out, 1)[job.name]))
                    shutil.rmtree(args.out / job.name)
                    known.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    shown = [row for row in rows if row["env"] in args.envs and row["seed"] in args.seeds]
    for env in args.envs:
        print(page(env, [row for row in shown if row["env"] == env]), flush=True)
    draw(shown, args.envs, args.out / "staleness.png")


def job_of(env: str, variant: str, seed: int) -> Job:
    """Names a run, and what makes it."""
    name = f"{env}-{variant.replace(', V-trace', 'v')}-{seed}"
    return Job(name, (*ENVS[env], *SPARE, *VARIANTS[variant], "--seed", str(seed)))


def row_of(env: str, variant: str, seed: int, done: Done) -> Row:
    """Keeps what is reported of a run."""
    lines = [line for line in done.metrics if "return" in line]
    ages = [int(key.split("/")[1]) for line in lines for key in line if key.startswith("staleness/")]
    evaluated = [line["eval/success"] for line in done.metrics if "eval/success" in line]
    return {
        "env": env,
        "variant": variant,
        "seed": seed,
        "command": done.job.command,
        "scores": [round(line["return"], 5) for line in lines],
        "evaluated": [round(x, 5) for x in (evaluated[0], evaluated[-1])],
        "turns": [round(line["turns"], 2) for line in lines],
        "tokens": lines[-1]["tokens_total"],
        "oldest": max(ages, default=0),
        "largest_gap": max((v for line in lines for k, v in line.items() if k.endswith("/gap")), default=0.0),
        "stopped": mean(v for line in lines for k, v in line.items() if k.endswith("/kl_stopped")),
        "trace": round(mean(line.get("vtrace/turn", 1.0) for line in lines), 4),
        "cpu_seconds": round(sum(line.get("time_cpu", 0.0) for line in done.metrics), 1),
    }


def page(env: str, rows: Sequence[Row]) -> str:
    """Makes an environment's table."""
    by = {(row["variant"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    words = ["staleness", "mean training score", "lost, %", "lost of the gain, %", "last five iterations", "held out"]
    lines = []
    for variant in VARIANTS:
        part = [by[variant, seed] for seed in seeds]
        pairs = [(by["0", seed], by[variant, seed]) for seed in seeds]
        lost = [100 * (1 - mean(b["scores"]) / mean(a["scores"])) for a, b in pairs]
        of_gain = [100 * (1 - gain(b) / gain(a)) for a, b in pairs]
        lines.append(
            [
                variant,
                interval([mean(row["scores"]) for row in part], 3),
                "" if variant == "0" else interval(lost, 1),
                "" if variant == "0" else interval(of_gain, 1),
                interval([mean(row["scores"][-5:]) for row in part], 3),
                interval([row["evaluated"][1] for row in part], 3),
            ]
        )
    turns = mean(row["turns"][0] for row in rows)
    facts = (
        f"\n{env}: {len(seeds)} seeds, {turns:.1f} turns an episode at first; oldest sample"
        f" {max(row['oldest'] for row in rows)}, largest gap under the weights that sampled"
        f" {max(row['largest_gap'] for row in rows):.1g}; {mean(row['cpu_seconds'] for row in rows):.0f} s CPU a run"
    )
    return f"{facts}\n\n{table(words, lines)}"


def gain(row: Row) -> float:
    """Returns how much better a run was on average than it began."""
    return float(mean(row["scores"]) - row["scores"][0])


def interval(x: Sequence[float], digits: int) -> str:
    """``0.648 ± 0.012``: mean and half of the 95 % interval over seeds."""
    half = student_quantile(0.975, len(x) - 1) * stdev(x) / math.sqrt(len(x)) if len(x) > 1 else math.nan
    return f"{mean(x):.{digits}f} ± {half:.{digits}f}"


def draw(rows: Sequence[Row], envs: Sequence[str], path: Path) -> None:
    """Draws the training score, mean over seeds, by iteration."""
    from marft_algos.runs import plots

    sheet = plots.figure(5.4 * len(envs), 3.4)
    for i, env in enumerate(envs):
        axes = sheet.add_subplot(1, len(envs), i + 1)
        for variant, color in zip(VARIANTS, plots.COLORS, strict=False):
            curves = [row["scores"] for row in rows if (row["env"], row["variant"]) == (env, variant)]
            points = [mean(values) for values in zip(*curves, strict=True)]
            smooth = [mean(points[max(0, k - 2) : k + 3]) for k in range(len(points))]
            look = {"linestyle": "--" if "V-trace" in variant else "-", "color": color, "linewidth": 1.4}
            axes.plot(range(1, len(points) + 1), smooth, label=f"staleness {variant}", **look)
        axes.set_xlabel("iteration")
        plots.finish(axes, f"{env}: training score, mean of 5 iterations and of all seeds")
        axes.legend(fontsize=7, frameon=False)
    sheet.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
