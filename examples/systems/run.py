"""Trains the systems of this folder, one after the other, and prints what came of each.

python examples/systems/run.py --all --iterations 2        # does every one run?
python examples/systems/run.py rema hammer --seeds 0 1 --rivals

Results are kept in ``OUT/results.jsonl``; what stands there is not run again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from examples.systems.system import System, evaluations, processed, voted  # noqa: E402
from marft_algos.config import values  # noqa: E402

NAMES = sorted(
    file.stem for file in HERE.glob("*.py") if file.stem not in ("claims", "run", "system", "table", "__init__")
)


def system(name: str) -> System:
    """Returns a system by its file's name."""
    found: System = importlib.import_module(f"examples.systems.{name}").SYSTEM
    return found


def main(argv: list[str] | None = None) -> None:
    """Trains the systems that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(NAMES)}")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--iterations", type=int, default=0, help="so many, with few episodes; default: a full run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--rivals",
        action="store_true",
        help="where there are such: one agent with as many processed tokens, and the team without what the paper adds",
    )
    parser.add_argument("--out", default="runs/systems")
    args = parser.parse_args(argv)
    names = NAMES if args.all else args.names
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        parser.error(
            f"There is no system {', '.join(unknown) or '(none was named)'}. Expected --all, or of: {', '.join(NAMES)}."
        )
    kept = Path(args.out) / "results.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.is_file() else []
    print(f"{'system':<22} {'who':<7} {'seed':>4} {'before':>7} {'after':>7} {'CPU s':>6}")
    for name in names:
        one = system(name)
        rivals = [who for who in ("single", "control") if args.rivals and getattr(one, who)]
        for seed in args.seeds:
            budget = None
            for who in ("team", *rivals):
                key = {"system": name, "who": who, "seed": seed, "iterations": args.iterations}
                key["settings"] = one.digest(who)
                row = next((row for row in done if row.items() >= key.items()), None)
                if row is None:
                    row = key | _row(one, args.iterations, seed, who, args.out, budget if who == "single" else None)
                    with kept.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                budget = row["processed"] if who == "team" else budget
                scores = (row["untrained"]["success"], row["after"]["success"])
                said = f"{scores[0]:>7.2f} {scores[1]:>7.2f} {row['cpu_seconds']:>6.0f}"
                print(f"{name:<22} {who:<7} {seed:>4} {said}", flush=True)


def _row(one: System, iterations: int, seed: int, who: str, out: str, budget: int | None) -> dict[str, object]:
    """Trains one team or rival; returns its result."""
    begun = time.process_time()
    run = one.train(iterations, seed, who, out, None if iterations else budget)
    untrained, *later = evaluations(run)
    warm = {"imitated": later[0]} if values.read(run.config_file).get("start") else {}
    took = {"processed": processed(run), "cpu_seconds": round(time.process_time() - begun)}
    votes = {"voted": voted(run, one.votes)} if one.votes else {}
    return {"untrained": untrained, **warm, "after": later[-1] | votes, **took}


if __name__ == "__main__":
    main()
