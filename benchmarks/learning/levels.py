"""Both levels on ``math-dual-v0``, three seeds; the single agent; and whether it is teamwork.

::

    python -m benchmarks levels --out runs/levels

Per seed: the dual team at token and at action level, the single agent trained on as many tokens as the token-level
team sampled, and a token-level team whose rewards are permuted among episodes. Then the reasoner's messages are
exchanged between problems. 95 % intervals: Wilson for accuracies, paired bootstrap over problems for differences.
Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from benchmarks.runs import Done, Job, interval, points, run_all, swapped_messages, table
from marft_algos.runs import intervals

KINDS = {
    "token": ("--level", "token"),
    "action": ("--level", "action"),
    "permuted": ("--level", "token", "--permute-rewards"),
}


def main() -> None:
    """Runs everything and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of levels.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    args = parser.parse_args()
    seeds = [str(s) for s in range(args.seeds)]
    jobs = [Job(f"{kind}-{s}", (*words, "--seed", s)) for kind, words in KINDS.items() for s in seeds]
    done = run_all(jobs, args.out, args.parallel)
    done |= run_all([_solo(s, done[f"token-{s}"], args.out) for s in seeds], args.out, args.parallel)
    swaps = {s: swapped_messages(done[f"token-{s}"]) for s in seeds}
    rows = [_row(name, d) for name, d in done.items()]
    (args.out / "levels.json").write_text(json.dumps({"runs": rows, "swap": swaps}, indent=1) + "\n", encoding="utf-8")
    print(_report(done, seeds), "\n")
    print(table(["reasoner's messages exchanged", *[f"seed {s}" for s in seeds]], [["loss", *swaps.values()]]))


def _solo(seed: str, team: Done, folder: Path) -> Job:
    """The single agent, for as many iterations as spend the team's tokens (measured on its first one)."""
    words = ("--env", "math-solo-v0", "--level", "token", "--seed", seed)
    probe = Job(f"probe-{seed}", (*words, "--iterations", "1", "--eval-episodes", "1"))
    each = run_all([probe], folder, 1)[probe.name].tokens
    return Job(f"solo-{seed}", (*words, "--iterations", str(math.ceil(team.tokens / each))))


def _row(name: str, done: Done) -> dict[str, object]:
    first, last = done.metrics[0], done.metrics[-1]
    gain = _gain(done)
    return {
        "name": name,
        "untrained": first["eval/success"],
        "trained": last["eval/success"],
        "n": int(last["eval/n"]),
        "gain": gain.mean,
        "gain_low": gain.low,
        "gain_high": gain.high,
        "tokens": done.tokens,
        "iterations": last["iteration"],
        "seconds": round(done.seconds, 1),
        "command": done.job.command,
    }


def _report(done: dict[str, Done], seeds: list[str]) -> str:
    rows = []
    for kind in ("token", "action", "solo", "permuted"):
        runs = [done[f"{kind}-{s}"] for s in seeds]
        gains = [_gain(run) for run in runs]
        rows.append([f"{kind}: untrained", *[interval(run.metrics[0]) for run in runs], ""])
        rows.append([f"{kind}: trained", *[interval(run.metrics[-1]) for run in runs], ""])
        rows.append([f"{kind}: gain, points", *map(points, gains), f"{max(run.seconds for run in runs):.0f} s"])
    return table(["", *[f"seed {s}" for s in seeds], "slowest"], rows)


def _gain(done: Done) -> intervals.Interval:
    gain = done.run.gain()
    assert gain is not None
    return gain[2]


if __name__ == "__main__":
    main()
