"""Does MARFT climb the toy ladder, and only with the right D?

::

    python -m benchmarks ladder --out runs/ladder

Seeds 0 to 4 of every rung at both levels, two runs side by side on one core each, and the same under
``Independent``. The share is (score - ceiling under Independent) / (optimum - that ceiling), of the final greedy
score over 500 episodes. Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.runs import Done, Job, run_all, table

CEILING = {"relay-v0": 1 / 4, "xor-v0": 1 / 2, "route-v0": 7 / 16, "signal-v0": 1 / 4}
"""Best scores under Independent; tests/envs/test_toys.py computes them."""
LEVELS = ("token", "action")


def job(env: str, level: str, seed: int, independent: bool) -> Job:
    """The run of one cell."""
    name = f"{env}-{level}-{seed}" + ("-independent" if independent else "")
    ablation = ("--env-kwargs", "dependency=independent") if independent else ()
    words = ("--preset", "toy", "--env", env, "--level", level, "--seed", str(seed))
    return Job(name, (*words, *ablation))


def share(env: str, score: float) -> float:
    """How far the score got from the ceiling under Independent to the optimum (1)."""
    return (score - CEILING[env]) / (1.0 - CEILING[env])


def main() -> None:
    """Runs the ladder and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of ladder.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--independent-seeds", type=int, default=2, help="seeds of each run under Independent")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--env", nargs="*", default=list(CEILING), choices=list(CEILING))
    args = parser.parse_args()
    cells = [(e, lv, s, False) for e in args.env for lv in LEVELS for s in range(args.seeds)]
    cells += [(e, lv, s, True) for e in args.env for lv in LEVELS for s in range(args.independent_seeds)]
    done = run_all([job(*cell) for cell in cells], args.out, args.parallel)
    rows = [result(*cell, done[job(*cell).name]) for cell in cells]
    (args.out / "ladder.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(report(rows, args.env))


def result(env: str, level: str, seed: int, independent: bool, done: Done) -> dict[str, object]:
    """One row of ladder.json."""
    first, last = done.metrics[0], done.metrics[-1]
    return {
        "env": env,
        "level": level,
        "seed": seed,
        "independent": independent,
        "start": first["eval/success"],
        "score": last["eval/success"],
        "n": int(last["eval/n"]),
        "share": share(env, last["eval/success"]),
        "seconds": round(done.seconds, 1),
        "command": done.job.command,
    }


def report(rows: list[dict[str, object]], envs: list[str]) -> str:
    """The Markdown table: shares seed by seed, and the scores under Independent."""
    out = []
    for env in envs:
        for level in LEVELS:
            matching = [r for r in rows if r["env"] == env and r["level"] == level]
            right = [r for r in matching if not r["independent"]]
            alone = [r for r in matching if r["independent"]]
            out.append(
                [
                    f"`{env}`",
                    level,
                    f"{right[0]['start']:.3f}",
                    " ".join(f"{r['share']:.2f}" for r in right),
                    f"{sum(float(str(r['share'])) >= 0.8 for r in right)} of {len(right)}",
                    " ".join(f"{r['score']:.3f}" for r in alone) + f" (ceiling {CEILING[env]:.3f})",
                    f"{max(float(str(r['seconds'])) for r in matching):.0f}",
                ]
            )
    header = ["", "level", "start score", "shares", "at least .8", "score under Independent", "seconds, slowest"]
    return table(header, out)


if __name__ == "__main__":
    main()
