"""What a data set costs in memory where several processes of a machine read it: held by each, or left in the file.

::

    python -m benchmarks datasets [--rows 120000] [--processes 1 4]

A JSONL file of math problems is written; so many processes load it as environments do, then draw 200 problems each.
Memory is what the processes have more than one that loads a file of one row: their proportional set size (Linux), in
which a page that several share counts once. *Held* is how files below ``rows.LARGE`` are read. Seconds: of CPU, to
load, and to draw a problem.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runs import table

PROCESS = """
import json, sys, time
from pathlib import Path
import numpy as np
from marft_envs.problems import rows
from marft_envs.families.math import data
rows.LARGE = int(sys.argv[2])
start = time.process_time()
problems = data.load(sys.argv[1])
loaded = time.process_time()
draws = np.random.default_rng(0)
for _ in range(200):
    problems.draw(draws)
drawn = time.process_time()
print("ready", flush=True)
sys.stdin.readline()
found = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
print(json.dumps([int(found["Pss"].split()[0]) / 1e3, loaded - start, (drawn - loaded) / 200]), flush=True)
sys.stdin.readline()
"""


def measure(path: Path, large: int, processes: int) -> list[float]:
    """Returns megabytes of all processes, and CPU seconds of one to load and to draw."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(path), str(large)], **pipes) for _ in range(processes)
    ]

    def told(process: Any, word: str = "") -> str:
        if word:
            process.stdin.write(word)
            process.stdin.flush()
        return str(process.stdout.readline())

    for process in started:
        assert told(process) == "ready\n", "a process has failed; what it printed stands above"
    found = [json.loads(told(process, "now\n")) for process in started]
    for process in started:
        process.communicate("end\n")
    return [sum(row[0] for row in found), *(sum(row[i] for row in found) / processes for i in (1, 2))]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        one, path = Path(folder) / "one.jsonl", Path(folder) / "all.jsonl"
        text = "Ann has some pears, and gives a part of them to her friends; how many are left? " * 3
        with path.open("w", encoding="utf-8") as file:
            for i in range(args.rows):
                row = {
                    "id": f"p{i}",
                    "problem": f"{i}: {text}",
                    "answer": f"{i}",
                    "solution": f"{i} {text}",
                    "level": 1,
                }
                file.write(json.dumps(row) + "\n")
        with path.open(encoding="utf-8") as file:
            one.write_text(file.readline(), encoding="utf-8")
        size = path.stat().st_size / 1e6
        for count in args.processes:
            least = measure(one, 1 << 62, count)[0]
            for way, large in (("held", 1 << 62), ("left in the file", 1)):
                memory, load, draw = measure(path, large, count)
                lines.append([f"{count}", way, f"{memory - least:.0f}", f"{load:.1f}", f"{1e6 * draw:.0f}"])
    print(f"{args.rows} problems, {size:.0f} MB")
    print(table(["processes", "problems are", "MB in all", "to load, CPU s each", "to draw one, µs"], lines))


if __name__ == "__main__":
    main()
