"""A whole iteration of ``marft train`` against the released code's own loop.

::

    python -m benchmarks perf_iteration --reference DIR        # a checkout of jwliao-ai/MARFT at 1beacdb

Both run as their users run them: environment, tokeniser, buffer, rollout, one epoch of policies and critic, logging; 2
agents, 8 episodes, 64 new tokens, 4 layers, hidden 128, vocabularies of 1,024 and 32,768, both levels; the released
profiles, the same problems (level 0) and the same random model, whose replies have no end. Three patches let the
released code run on a CPU in fp32 (``benchmarks/speed/iteration_worker.py``): its device, its ``.cuda()``, its half
precision. Its LoRA is on q and v, ours on every linear layer; its critic's head has 1,024 and 512 hidden units, ours
64; it draws from the 50 likeliest tokens, ours from all.

CPU seconds of one thread, a process a side, in turn; of each process the median of its iterations but for the first
and the last. Memory: the process's peak beyond what it held before the first iteration, models loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from benchmarks import shapes
from benchmarks.paired import publish, ratios
from marft_envs.errors import ConfigError
from marft_envs.families.math import data

SIDES = ("released", "marft")
COLUMNS = [
    "vocabulary", "level", "released, s", "marft, s", "released / marft", "tokens", "released, MB", "marft, MB",
]  # fmt: skip
ITERATIONS = 5


def prepare(folder: Path, reference: Path, vocabulary: int) -> None:
    """Writes the model, the problems and the profiles that both sides use."""
    model = shapes.save(folder / "model", shapes.tiny(128, 4, vocabulary))
    endless(model)
    problems = data.load("procedural", "train", levels=0)
    both = [{"problem": p.problem, "answer": p.answer, "final_answer": p.answer} for p in problems]
    (folder / "problems.json").write_text(json.dumps(both), encoding="utf-8")
    (folder / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in both), encoding="utf-8")
    profiles = reference / "marft" / "scripts" / "profiles" / "math_dual.json"
    if not profiles.is_file():
        raise ConfigError(
            f"{profiles} is not there. --reference takes a checkout of jwliao-ai/MARFT at 1beacdb: "
            "git clone https://github.com/jwliao-ai/MARFT"
        )
    roles = [{**role, "device": "cpu"} for role in json.loads(profiles.read_text(encoding="utf-8"))]
    (folder / "profiles.json").write_text(json.dumps(roles), encoding="utf-8")


def endless(folder: Path) -> None:
    """Makes the end token impossible: its embedding, which is its output row, too, points away from all states.

    Every other token carries the same constant in the first place, which the residual stream hands on to the head.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(folder)  # transformers gives it no type that has its methods
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = model.get_input_embeddings().weight.data
    rows[:, 0] = 1.0
    for token in {tokenizer.eos_token_id, tokenizer.pad_token_id}:
        rows[token, 0] = -20.0
    model.save_pretrained(folder)


def run(side: str, reference: Path, folder: Path, level: str, args: argparse.Namespace) -> dict[str, Any]:
    """One process: seconds of its iterations that count, tokens of an iteration, megabytes."""
    settings = {"reference": str(reference), "folder": str(folder), "level": level, "episodes": args.episodes}
    settings |= {"new": args.new, "iterations": ITERATIONS}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.iteration_worker", side, json.dumps(settings)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise ConfigError(f"The {side} side failed with exit status {done.returncode}:\n{done.stderr[-3000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(reference: Path, vocabulary: int, level: str, args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    memory: dict[str, list[float]] = {side: [] for side in SIDES}
    tokens: dict[str, int] = {}
    for repetition in range(args.repeats):
        for side in SIDES:
            with tempfile.TemporaryDirectory() as name:
                prepare(Path(name), reference, vocabulary)
                measured = run(side, reference, Path(name), level, args)
            seconds[side].append(statistics.median(measured["seconds"]))
            memory[side].append(measured["megabytes"])
            tokens[side] = measured["tokens"]
        print(f"{vocabulary}, {level}: {repetition + 1} of {args.repeats} pairs", file=sys.stderr, flush=True)
    if len(set(tokens.values())) > 1:
        raise ConfigError(f"The sides sampled different numbers of tokens ({tokens}): their seconds do not compare.")
    return {
        "vocabulary": vocabulary,
        "level": level,
        **{f"{side}, s": statistics.median(seconds[side]) for side in SIDES},
        "released / marft": ratios(seconds, *SIDES),
        "tokens": tokens["marft"],
        **{f"{side}, MB": round(statistics.median(memory[side])) for side in SIDES},
        "seconds": seconds,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table and writes perf_iteration.json, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="checkout of jwliao-ai/MARFT at 1beacdb")
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[1024, 32768])
    parser.add_argument("--levels", nargs="+", default=["token", "action"])
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    rows = []
    for vocabulary in args.vocabularies:
        for level in args.levels:
            rows.append(measure(args.reference.resolve(), vocabulary, level, args))
            publish("perf_iteration", rows, COLUMNS, args.out)


if __name__ == "__main__":
    main()
