"""Trains the systems of this folder, one after the other, and prints what came of each.

python examples/systems/run.py --all --iterations 2        # does every one run?
python examples/systems/run.py rema malt --seeds 0 1 --single
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from examples.systems.system import System, scores  # noqa: E402

NAMES = sorted(file.stem for file in HERE.glob("*.py") if file.stem not in ("run", "system", "__init__"))


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
    parser.add_argument("--single", action="store_true", help="one agent, too, where there is one")
    parser.add_argument("--out", default="runs/systems")
    args = parser.parse_args(argv)
    names = NAMES if args.all else args.names
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        parser.error(
            f"There is no system {', '.join(unknown) or '(none was named)'}. Expected --all, or of: {', '.join(NAMES)}."
        )
    print(f"{'system':<22} {'who':<7} {'seed':>4} {'before':>7} {'after':>7} {'s':>6}")
    for name in names:
        one = system(name)
        for single in (False, True) if args.single and one.single else (False,):
            for seed in args.seeds:
                begun = time.perf_counter()
                before, after = scores(one.train(args.iterations, seed, single, args.out))
                took = time.perf_counter() - begun
                who = "single" if single else "team"
                print(f"{name:<22} {who:<7} {seed:>4} {before:>7.2f} {after:>7.2f} {took:>6.0f}", flush=True)


if __name__ == "__main__":
    main()
