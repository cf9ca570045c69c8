"""How many programs a second the sandbox runs, against bubblewrap started once per run.

    python -m benchmarks sandbox [--runs N] [--rounds N] [--json FILE]

Both sides run the same program on the same ten calls, two at a time. The sandbox forks each run from a worker that is
there already, in the strongest layer that holds here. The other side starts ``bwrap`` with a fresh interpreter for
each run: new namespaces, an empty file system with Python in it, no capabilities; no seccomp filter, which would only
slow it. The two take turns, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from marft_envs.sandbox import Call, Sandbox

WORKERS = 2
PROGRAM = """
def solve(numbers, target):
    seen = {}
    for index, number in enumerate(numbers):
        if target - number in seen:
            return [seen[target - number], index]
        seen[number] = index
    return []
"""
INPUTS = [[list(range(20 + turn)), 30 + turn] for turn in range(10)]
SCRIPT = PROGRAM + "import json, sys\nfor line in sys.stdin: print(json.dumps(solve(*json.loads(line))), flush=True)"


def solve_here() -> list[Any]:
    """What the ten calls return, from the same program, in this process."""
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    return [names["solve"](*arguments) for arguments in INPUTS]


def bubblewrap() -> list[str]:
    """The command for one run."""
    program = shutil.which("bwrap")
    if program is None:
        raise SystemExit("bwrap is not installed; the comparison needs it (apt install bubblewrap)")
    environment = [sys.executable, os.path.join(sys.prefix, "pyvenv.cfg")]
    shown = ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.base_prefix, *environment]
    binds = [word for path in shown for word in ("--ro-bind-try", path, path)]
    shut = ["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--dev", "/dev"]
    return [program, *shut, *binds, "--clearenv", sys.executable, "-I", "-S", "-c", SCRIPT]


def cpu_seconds() -> float:
    """CPU time of this process and of its living descendants, with what they have reaped: the sandbox's whole cost.

    Not that of bubblewrap, whose processes end unaccounted for.
    """
    ticks, parents = 0, [str(os.getpid())]
    while parents:
        files = Path(f"/proc/{parents[0]}/task").glob("*/children")
        children = [pid for path in files for pid in path.read_text().split()]
        for pid in children:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        parents = parents[1:] + children
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def measure(one: Callable[[], list[Any]], runs: int, expected: list[Any]) -> tuple[float, float]:
    """Runs a second, two at a time, and CPU seconds of a run; every result is checked."""
    start, cpu = time.perf_counter(), cpu_seconds()
    with ThreadPoolExecutor(WORKERS) as pool:
        for got in pool.map(lambda _: one(), range(runs)):
            if got != expected:
                raise SystemExit(f"wrong results: {got}")
    return runs / (time.perf_counter() - start), (cpu_seconds() - cpu) / runs


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of the code sandbox")
    parser.add_argument("--runs", type=int, default=400, help="runs of the sandbox in each round; bwrap gets a quarter")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    expected, command = solve_here(), bubblewrap()
    calls = [Call("call", json.dumps(argument)) for argument in INPUTS]
    lines = "".join(json.dumps(argument) + "\n" for argument in INPUTS)
    rates: dict[str, list[float]] = {"sandbox": [], "bwrap": []}
    costs: list[float] = []
    with Sandbox(workers=WORKERS) as sandbox:
        sandbox.warm_up()

        def forked() -> list[Any]:
            return [result.value for result in sandbox.run_calls(PROGRAM, "solve", calls)]

        def started() -> list[Any]:
            done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
            return [json.loads(line) for line in done.stdout.splitlines()]

        sides = {"sandbox": (forked, arguments.runs), "bwrap": (started, max(4, arguments.runs // 4))}
        for turn in range(arguments.rounds + 1):
            for name, (one, runs) in sides.items():
                speed, cost = measure(one, runs if turn else 8, expected)
                if turn:  # the first turn brings files into the page cache
                    rates[name].append(speed)
                    costs += [cost] if name == "sandbox" else []
        layer = sandbox.layer
    print(f"layer             {layer}, {WORKERS} workers, 10 calls a run, {os.cpu_count()} cores")
    for name, values in rates.items():
        each = ", ".join(f"{value:.0f}" for value in values)
        print(f"{name:17s} {statistics.median(values):7.1f} runs/s (rounds: {each})")
    print(f"CPU time          {1000 * statistics.median(costs):.1f} ms a run of the sandbox, host and workers together")
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    print(f"ratio             {statistics.median(ratios):.2f} (rounds: {min(ratios):.2f} to {max(ratios):.2f})")
    if arguments.json:
        figures = {"layer": layer, "workers": WORKERS, "rates": rates, "cpu_seconds": costs, "ratios": ratios}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
