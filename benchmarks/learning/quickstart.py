"""What `make train` reaches: the preset `quickstart` with five seeds.

::

    python -m benchmarks quickstart                          # what there is, in benchmarks/results/quickstart.json
    python -m benchmarks quickstart --out runs/quickstart    # run it: two to eight minutes of a core a seed

The outcome of each held-out problem is kept, before and after training. An interval of one seed is over problems, that
of the mean over seeds and problems.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runs import Done, Job, points, run_all, share, table
from marft_algos.extras.bench import tables
from marft_algos.extras.bench.statistics import estimate
from marft_algos.runs import intervals
from marft_algos.runs.folder import UNTRAINED, EvalRecord
from marft_envs.errors import ConfigError

RESULTS = Path(__file__).parents[1] / "results" / "quickstart.json"


def main() -> None:
    """Trains on request, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the runs; not given: print what there is")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runs side by side, each a process")
    args = parser.parse_args()
    if args.out is not None:
        jobs = [Job(f"seed{seed}", ("--preset", "quickstart", "--seed", str(seed))) for seed in args.seeds]
        done = run_all(jobs, args.out, args.parallel)
        RESULTS.write_text(json.dumps(kept([done[job.name] for job in jobs]), indent=1) + "\n", encoding="utf-8")
    print(page(json.loads(RESULTS.read_text(encoding="utf-8"))))


def kept(done: Sequence[Done]) -> list[dict[str, Any]]:
    """Returns what is kept of each run; outcomes are a text of a 0 or 1 for each problem.

    Raises:
        ConfigError: They were not scored on the same problems.
    """
    out, problems = [], set()
    for one in done:
        last = max(m["iteration"] for m in one.metrics if "eval/success" in m)
        sides = {"before": one.run.evaluation(UNTRAINED), "after": one.run.evaluation(last)}
        problems |= {tuple(record.task_id for record in side) for side in sides.values()}
        cpu = sum(m["time_cpu"] for m in one.metrics)
        costs = {"tokens": one.tokens, "cpu_seconds": round(cpu, 1), "seconds": round(one.seconds, 1)}
        out.append({"command": one.job.command, **{when: _bits(side) for when, side in sides.items()}, **costs})
    if len(problems) != 1:
        raise ConfigError("The runs were scored on different problems; expected the preset's own evaluation set.")
    return out


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Makes the table: a line for each run, and their mean."""
    before, after = (np.array([[float(bit) for bit in run[when]] for run in results]) for when in ("before", "after"))
    lines = []
    for run, old, new in zip(results, before, after, strict=True):
        shares = [share(intervals.mean(list(y))) for y in (old, new)]
        cost = [f"{run['tokens'] / 1000:.0f}k", f"{run['cpu_seconds']:.0f}"]
        lines.append([run["command"].split()[-1], *shares, points(intervals.paired(list(old), list(new))), *cost])
    mean, gain = estimate([after]), estimate([after - before], difference=True)
    each = after.mean(1)
    said = f"{share(mean)}, {each.min():.3f} to {each.max():.3f}"
    lines.append([f"mean of {len(each)}", f"{before.mean():.3f}", said, tables.points(gain), "", ""])
    return table(["seed", "untrained", "trained", "gain in points, paired", "tokens", "CPU seconds"], lines)


def _bits(records: Sequence[EvalRecord]) -> str:
    if any(record.lost or record.outcome not in (0.0, 1.0) for record in records):
        raise ConfigError("An outcome is neither 0 nor 1, or there was an infrastructure error; expected both scores.")
    return "".join(str(int(record.outcome)) for record in records)


if __name__ == "__main__":
    main()
