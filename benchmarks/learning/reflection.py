"""Does a coding team learn, and does reflection help it?

::

    python -m benchmarks reflection --out runs/reflection

Per seed: token-level MARFT on ``code-reflect-v0``, then the trained team and the untrained one on the same held-out
problems, with up to three rounds and with one (the same coder, nobody reflects). Scores are the share of problems
whose hidden tests all pass; 95 % intervals: Wilson for scores, paired bootstrap over problems for differences.
Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.runs import Done, Job, run_all, table
from benchmarks.runs import points as in_points
from marft_algos.runs import intervals

ROUNDS = (3, 1)


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of reflection.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=2)
    args = parser.parse_args()
    jobs = [Job(f"reflect-{s}", ("--env", "code-reflect-v0", "--seed", str(s))) for s in range(args.seeds)]
    done = run_all(jobs, args.out, args.parallel)
    played = {
        (name, trained, rounds): play(run, args.out / f"{name}-{trained}-{rounds}.jsonl", trained, rounds)
        for name, run in done.items()
        for trained in (False, True)
        for rounds in ROUNDS
    }
    names = list(done)
    lines = []
    for trained in (False, True):
        for rounds in ROUNDS:
            who = f"{'trained' if trained else 'untrained'}, {'up to 3 rounds' if rounds > 1 else '1 round'}"
            lines.append([who, *(score(played[name, trained, rounds]) for name in names), ""])
    slowest = f"{max(run.seconds for run in done.values()):.0f} s"
    gains = [points(played[n, False, 3], played[n, True, 3]) for n in names]
    helps = [points(played[n, True, 1], played[n, True, 3]) for n in names]
    lines.append(["training, points (3 rounds)", *gains, slowest])
    lines.append(["reflection, points (trained)", *helps, ""])
    (args.out / "reflection.json").write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    size = len(next(iter(played.values())))
    print(table([f"n = {size}", *(f"seed {s}" for s in range(args.seeds)), "slowest run"], lines))


def play(run: Done, file: Path, trained: bool, rounds: int) -> dict[str, float]:
    """Evaluates one team; returns problem -> whether its hidden tests all pass."""
    if not file.exists():
        command = [sys.executable, "-m", "marft_algos", "eval", str(run.run.root), "--out", str(file)]
        command += ["--env-kwargs", f"rounds={rounds}", *([] if trained else ["--untrained"])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {row["task_id"]: float(row["success"]) for row in rows}


def score(played: dict[str, float]) -> str:
    """``0.842 [0.807, 0.872]``."""
    interval = intervals.mean(list(played.values()))
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def points(before: dict[str, float], after: dict[str, float]) -> str:
    """The paired difference in points."""
    problems: Sequence[str] = list(before)
    return in_points(intervals.paired([before[p] for p in problems], [after[p] for p in problems]))


if __name__ == "__main__":
    main()
