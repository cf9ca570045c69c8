"""Memory of a run of SmolLM2: what is estimated before it starts, against the peak of a process of its own.

::

    python -m benchmarks memory
    python -m benchmarks memory --only pieces --json memory.json

Each setting is one iteration of ``marft train`` with the untrained model, whose replies mostly run to the limit, so
that the longest case, which is what the estimate is of, is nearly met. The peak is the process's largest resident set,
Python and its packages included.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runs import peak_memory, table
from marft_algos.cli.training import typed_settings
from marft_algos.training import setup
from marft_algos.training.estimate import GB, estimate
from marft_algos.training.resolve import resolve

SHORT = ("--warm-start", "0", "--iterations", "1", "--eval-episodes", "4", "--eval-every", "0", "--record-every", "0")
SETTINGS: dict[str, tuple[str, ...]] = {
    "pieces": ("--episodes-per-iteration", "16", "--max-new-tokens", "64", "--micro-tokens", "2048"),
    "whole": ("--episodes-per-iteration", "16", "--max-new-tokens", "64", "--micro-tokens", "16384"),
    "recomputed": (
        *("--episodes-per-iteration", "16", "--max-new-tokens", "64", "--micro-tokens", "16384"),
        "--gradient-checkpointing",
    ),
    "rollout": ("--episodes-per-iteration", "64", "--max-new-tokens", "96", "--micro-tokens", "1024"),
}
"""Label -> options over those of the preset."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    args = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    for name in args.only:
        foreseen, taken = estimated(SETTINGS[name]), measured(SETTINGS[name])
        figures[name] = {"options": " ".join(SETTINGS[name]), "estimated": foreseen, "measured": taken}
        print(f"{name}: estimated {foreseen / GB:.2f} GB, measured {taken / GB:.2f} GB", file=sys.stderr, flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    rows = [
        [f"`{f['options']}`", f"{f['estimated'] / GB:.2f}", f"{f['measured'] / GB:.2f}", ratio(f)]
        for f in figures.values()
    ]
    print(table(["options, over `--preset smollm2`", "estimated, GB", "peak, GB", "estimated / peak"], rows))


def ratio(figures: dict[str, Any]) -> str:
    """Returns how much was foreseen of what was taken."""
    return f"{figures['estimated'] / figures['measured']:.2f}"


def estimated(options: tuple[str, ...]) -> int:
    """Returns the estimate of a setting in bytes."""
    config, _ = typed_settings(["--preset", "smollm2", *SHORT, *options])
    env = setup.make_env(config, config.env_kwargs)
    return estimate(resolve(config, env), env).peak


def measured(options: tuple[str, ...]) -> int:
    """Returns the largest resident set of a run in bytes.

    Raises:
        RuntimeError: It failed; its output is in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "--preset", "smollm2", *SHORT, *options, "--runs-dir", folder, "--no-check-memory"]
        return peak_memory(words, Path(folder) / "log.txt")


if __name__ == "__main__":
    main()
