"""CPU seconds (user + system) of commands that train nothing, in turn with an interpreter that does nothing.

    python -m benchmarks help [--repeats 5] [--limit 1.0]

Each command runs in a process of its own; ``-c pass`` and ``-c 'import torch'`` are the measures of the machine: the
first is what any command costs, the second what these commands do without. Ends with 1 if a median is above the limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

MARFT = ("-m", "marft_algos")
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "python -c 'import torch'": ("-c", "import torch"),
    "marft --help": (*MARFT, "--help"),
    "marft train --help": (*MARFT, "train", "--help"),
    "marft train --help-all": (*MARFT, "train", "--help-all"),
    "marft train grpo --help": (*MARFT, "train", "grpo", "--help"),
    "marft eval --help": (*MARFT, "eval", "--help"),
    "marft train mraft": (*MARFT, "train", "mraft"),
    "marft train --iteratoins 3": (*MARFT, "train", "--iteratoins", "3"),
}


def cpu_seconds(words: tuple[str, ...], folder: str) -> float:
    """User and system time of one process, its own children included."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=1.0, help="CPU seconds that no command of marft may exceed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for turn in range(args.repeats + 1):  # the first turn fills the file cache
            for name, words in COMMANDS.items():
                used = cpu_seconds(words, folder)
                if turn:
                    seconds[name].append(used)
    print(f"{'CPU seconds':<30} {'median':>7} {'least':>7} {'most':>7}")
    for name, row in seconds.items():
        print(f"{name:<30} {statistics.median(row):7.2f} {min(row):7.2f} {max(row):7.2f}")
    medians = {name: statistics.median(row) for name, row in seconds.items() if name.startswith("marft")}
    slow = [name for name, median in medians.items() if median > args.limit]
    if slow:
        sys.exit(f"above {args.limit:g} CPU seconds: {', '.join(slow)}")


if __name__ == "__main__":
    main()
