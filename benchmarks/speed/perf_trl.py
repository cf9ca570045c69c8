"""Samples per CPU second against TRL's GRPO, on the same tiny model, prompts, group size and lengths.

::

    python -m venv TRL && TRL/bin/pip install -c constraints.txt torch && TRL/bin/pip install trl==1.16.0 peft datasets
    python -m benchmarks perf_trl --python TRL/bin/python

One agent, 8 prompts of some 48 tokens (``--prompt``), groups of 8, 64 new tokens, LoRA of rank 8 on all linear
layers, one optimiser step a batch, no KL term (so neither scores a reference, and TRL needs no old log-probs either),
one thread. Ours is the algorithm ``grpo`` with environment, chat template and Collector, without logs and
checkpoints; TRL's is its trainer, which gets the same prompts as text. Each repetition runs a few steps of both, in
turn; a step's CPU seconds are the mean of all but the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import shapes
from benchmarks.paired import publish, ratios
from benchmarks.team import Stage, build
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.learner.learner import Learner

GROUPS, SIZE, NEW = 8, 8, 64


def prompts_of(model: str, prompt: int) -> list[str]:
    """The prompts of one step, as text."""
    policies = build(model, 1)
    played = Stage(policies, GROUPS, prompt, 1).play(0)
    tokenizer = policies.renderer.tokenizer(policies.policies[0])
    return [tokenizer.decode(t.transitions[0].request.prompt_ids) for t in played]


def ours(model: str, steps: int, prompt: int) -> list[float]:
    """CPU seconds of each step after the first."""
    policies = build(model, 1)
    stage = Stage(policies, GROUPS * SIZE, prompt, NEW)
    learner = Learner(GRPO(GRPOConfig(lr=1e-4, kl_coef=0.0)), policies)
    spent = []
    for step in range(steps):
        start = time.process_time()
        learner.update(stage.play(step, repeats=SIZE), step)
        spent.append(time.process_time() - start)
    return spent[1:]


def trl(python: Path, model: str, prompts: Path, steps: int) -> list[float]:
    """The same by TRL."""
    worker = str(Path(__file__).with_name("trl_worker.py"))
    command = [str(python), "-P", worker, model, str(prompts), *map(str, (GROUPS, SIZE, NEW, steps))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"TRL failed with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints the table and writes perf_trl.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="of the environment that has TRL")
    parser.add_argument("--prompt", type=int, default=48, help="tokens of a prompt, about; half of them the profile")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.python is None or not args.python.exists():
        print(f"Skipped: no TRL at --python {args.python}. The first lines of --help make its environment.")
        sys.exit(0)
    seconds: dict[str, list[float]] = {"trl": [], "marft": []}
    with tempfile.TemporaryDirectory() as folder:
        model, file = str(shapes.save(Path(folder) / "model", shapes.tiny(128, 4))), Path(folder) / "prompts.json"
        file.write_text(json.dumps(prompts_of(model, args.prompt)))
        for _ in range(args.repeats):
            seconds["trl"].append(statistics.mean(trl(args.python, model, file, args.steps)))
            seconds["marft"].append(statistics.mean(ours(model, args.steps, args.prompt)))
    middle = {name: statistics.median(spent) for name, spent in seconds.items()}
    row = {
        "prompt": args.prompt,
        "TRL, samples/s": GROUPS * SIZE / middle["trl"],
        "marft, samples/s": GROUPS * SIZE / middle["marft"],
        "TRL / marft": ratios(seconds, "trl", "marft"),
        "seconds": seconds,
    }
    publish("perf_trl", [row], [name for name in row if name != "seconds"], args.out)


if __name__ == "__main__":
    main()
