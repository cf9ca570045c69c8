"""Does a team that routes itself learn to use tools, and what is the router worth?

::

    python -m benchmarks tools_learning --out runs/tools_learning

Per seed: token-level MARFT on ``tools-router-v0`` (the preset ``tools``: level 0 of the depot); then the trained
specialists in a fixed chain, each acting once, without the router; and the same specialists trained in that chain on
as many tokens. Scores are the share of all held-out tasks that are completed, greedy; 95 % intervals: Wilson for
scores, paired bootstrap over tasks for differences. CPU time is that of the process that finished the run, its
evaluations before and after included. Finished runs are not run again.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.learning.reflection import points, score
from benchmarks.runs import Done, Job, run_all, table

CHAIN = ('dependency=[["orders_0"],["shipping_0"],["refunds_0"]]', "max_rounds=1")
"""Environment arguments of the fixed chain."""

Played = dict[str, float]
"""Task -> whether it was completed."""


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and of tools_learning.json")
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    columns = [column(str(seed), args.out) for seed in range(args.seeds)]
    lines = [[name, *(cells[name] for cells in columns)] for name in columns[0]]
    text = json.dumps(lines, indent=1, ensure_ascii=False) + "\n"
    (args.out / "tools_learning.json").write_text(text, encoding="utf-8")
    print(table(["", *(f"seed {seed}" for seed in range(args.seeds))], lines))


def column(seed: str, folder: Path) -> dict[str, str]:
    """One seed: runs what has not been run, and returns the table's cells by their rows' names."""
    words = ("--preset", "tools", "--level", "token", "--seed", seed)
    router, router_cpu = train(Job(f"router-{seed}", words), folder)
    budget = ("--iterations", "100000", "--token-budget", str(router.tokens))
    chain, chain_cpu = train(Job(f"chain-{seed}", (*words, *budget, "--env-kwargs", *CHAIN)), folder)
    before, after = evaluated(router, 0), evaluated(router, -1)
    chain_before, chain_after = evaluated(chain, 0), evaluated(chain, -1)
    moved = transferred(router, folder / f"router-{seed}-in-chain.jsonl")
    return {
        "router team, untrained": score(before),
        "router team, trained": score(after),
        "… gain of the router team in points, paired": points(before, after),
        "the untrained specialists in a chain": score(chain_before),
        "the router team's trained specialists in a chain": score(moved),
        "… what the router team has more, points, paired": points(moved, after),
        "specialists trained in a chain": score(chain_after),
        "… gain of the chain in points, paired": points(chain_before, chain_after),
        "router team trained less chain trained, points, paired": points(chain_after, after),
        "tokens of training, router and chain": f"{router.tokens / 1000:.0f}k, {chain.tokens / 1000:.0f}k",
        "CPU time, router and chain": f"{router_cpu:.0f} s, {chain_cpu:.0f} s",
        "wall time, router and chain": f"{router.seconds:.0f} s, {chain.seconds:.0f} s",
    }


def train(job: Job, folder: Path) -> tuple[Done, float]:
    """Runs a job unless it is finished; returns it with the CPU seconds that it took."""
    file = folder / f"{job.name}-cpu.json"
    started = _cpu()
    done = run_all([job], folder, 1)[job.name]
    if not file.exists():
        file.write_text(json.dumps({"cpu_seconds": round(_cpu() - started, 1)}) + "\n", encoding="utf-8")
    return done, float(json.loads(file.read_text(encoding="utf-8"))["cpu_seconds"])


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def evaluated(done: Done, which: int) -> Played:
    """One of a run's evaluations, in the order of their iterations."""
    return {record.task_id: record.outcome for record in done.run.evaluation(done.run.recorded("eval")[which])}


def transferred(done: Done, file: Path) -> Played:
    """Evaluates a trained router team's specialists in the fixed chain."""
    if not file.exists():
        command = [sys.executable, "-m", "marft_algos", "eval", str(done.run.root), "--out", str(file)]
        subprocess.run([*command, "--env-kwargs", *CHAIN], check=True, stdout=subprocess.DEVNULL)
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {row["task_id"]: float(row["success"]) for row in rows}


if __name__ == "__main__":
    main()
