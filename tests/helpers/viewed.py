"""Runs to look at, written by hand: episodes of a small team, and metrics that rise."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.flex import PlainTask, flex, play
from marft_algos.extras.bench.folder import BenchFolder
from marft_envs import Outcome, TurnRecord
from marft_envs.records import trajectory

HOSTILE = '<script>document.title = "owned"</script><img src=x onerror=alert(1)> \u202egnp.exe \ud800'


def episode(seed: int, good: bool, words: str = "", tokens: bool = False) -> dict[str, Any]:
    """An episode of three agents in a chain, two rounds, as a record: the last turn has a result."""

    def paid(turns: Sequence[TurnRecord]) -> Outcome:
        over = turns[0].round == 1
        return Outcome(team_reward=float(over and good), success=good if over else None, terminated=over)

    def told(turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(results={turns[-1].index: f"looked up {seed}"} if turns[-1].agent == "c_0" else {})

    env = flex(3, task=PlainTask(layer=told, round=paid), max_rounds=2)
    made = trajectory.to_dict(play(env, seed, lambda env, agent: f"{agent} says {words or seed}").episode)
    for turn in made["turns"]:
        turn["extras"] = {"observation": f"The number is {made['task_id']}.", "tokens": 3, "logprob": -1.5}
        if tokens:
            pieces = {"pieces": [turn["agent"], " says", f" {words or seed}"], "logprobs": [-0.1, -0.2, -1.2]}
            turn["extras"] |= {**pieces, "advantages": [0.5, -0.25, 1.0], "values": [0.1, 0.2, 0.3], "advantage": 0.4}
    return made


def write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def metrics(iteration: int) -> dict[str, Any]:
    """A line of metrics.jsonl; iterations 0 and 4 are evaluated."""
    line: dict[str, Any] = {"iteration": iteration, "time_elapsed": 2.0 * iteration, "tokens": 100}
    line |= {"tokens_total": 100 * iteration}
    if iteration:
        line |= {"return": 0.1 * iteration, "policy/a_0/loss": 1.0 / iteration, "policy/b_0/loss": 0.5 / iteration}
    if iteration % 4 == 0:
        score = 0.25 + iteration / 8
        panel = {"eval/n": 8, "eval/instances": 8, "eval/held_out": 1.0}
        line |= {"eval/success": score, "eval/low": score - 0.1, "eval/high": score + 0.1, **panel}
    return line


def write_run(root: Path, iterations: int = 4, offset: int = 0) -> Path:
    """A run of which the untrained team solves the first two of eight problems, and the trained one six."""
    root.mkdir(parents=True)
    (root / "config.toml").write_text('env = "made/up-v0"\nalgo = "marft"\n')
    write_lines(root / "metrics.jsonl", [metrics(i) for i in range(iterations + 1)])
    for iteration, solved in ((0, 2), (4, 6)):
        rows = [episode(s, s < solved, f"{iteration} and {s}") for s in range(offset, 8)]
        write_lines(root / f"episodes/eval-{iteration:06d}.jsonl", rows)
    train = [episode(s // 2, s % 2 == 0, tokens=True) for s in range(6)]
    write_lines(root / "episodes/train-000002.jsonl", train)
    return root


def write_bench(root: Path, level: float = 0.9) -> BenchFolder:
    """A benchmark of two rows and three seeds each, with its runs: ``ours`` solves ``level`` of 40 problems, the baseline half."""
    bench = BenchFolder(root)
    bench.prepare({"baseline": "reinforce"})
    grid_runs = [
        {"key": f"{name}{seed}", "algorithm": name, "env": "made-up", "credit": "", "seed": seed, "kind": "train"}
        | {"hidden": False, "skipped": ""}
        for name in ("reinforce", "ours")
        for seed in range(3)
    ]
    bench.write_stage("main", grid_runs)
    for grid_run in grid_runs:
        solved = round(40 * (level if grid_run["algorithm"] == "ours" else 0.5)) + grid_run["seed"] - 1
        outcomes = [1.0] * solved + [0.0] * (40 - solved)
        facts = {"score": solved / 40, "tokens": 100, "seconds": 2.0, "peak_memory": 2**20, "curve": [], "drift": []}
        bench.write_result(grid_run["key"], {"problems": [str(i) for i in range(40)], "outcomes": outcomes, **facts})
        write_run(bench.runs / grid_run["key"])
    return bench
