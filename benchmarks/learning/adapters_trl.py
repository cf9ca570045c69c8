"""Does TRL's GRPO learn here? The embedded model on ``math-dual-v0`` (level 0), each agent in rows of its own.

::

    python -m benchmarks adapters_trl --out runs/adapters-trl        # in an environment with trl

A generation is ``ROWS`` rows in groups of 8 that play one task each. In half of them the reasoner's tokens are trained,
in half the actor's; the other agent speaks with the same weights, untrained. Writes ``adapters_trl.json`` (versions,
settings, mean reward of every generation while training, the held-out tasks before and after, sampled at temperature 1,
seconds and processor seconds of training) and ``adapters_trl.png``. Exits with 1 unless the held-out score has risen by
more than two standard errors.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import marft_envs
from marft_algos.models import embedded_path
from marft_envs.adapters.outward.trl import TeamRollout, rows, team_return

ENV, KWARGS = "math-dual-v0", {"levels": [0]}
LEARNERS = ("reasoner_0", "actor_0")
ROWS, STEPS = 512, 2
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": ROWS // STEPS, "steps_per_generation": STEPS, "num_generations": 8,
    "max_completion_length": 48,  # of one turn; replies at level 0 are short
    # All weights of a model of a third of a million; a large one would take a hundredth.
    "learning_rate": 4e-4, "adam_beta2": 0.95, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 6,
}  # fmt: skip
HELD_OUT = 512


def main() -> int:
    """Trains, and writes what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--generations", type=int, default=80)
    parser.add_argument("--seconds", type=float, default=540.0, help="processor seconds of training at most")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    trainer, stop = build(args)
    before = held_out(trainer)
    started, cpu = time.monotonic(), time.process_time()
    stop.until = cpu + args.seconds
    trainer.train()
    spent = {"seconds": round(time.monotonic() - started), "cpu_seconds": round(time.process_time() - cpu)}
    after = held_out(trainer)
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    error = math.sqrt(sum(score * (1 - score) / HELD_OUT for score in (before, after)))
    result = {
        "env": ENV, "env_kwargs": KWARGS, "seed": args.seed, "settings": SETTINGS,
        "versions": {name: metadata.version(name) for name in ("trl", "torch", "transformers")},
        "python": platform.python_version(), "optimiser_steps": trainer.state.global_step, **spent,
        "held_out": {"episodes": HELD_OUT, "before": before, "after": after, "standard_error": round(error, 3)},
        "reward": [round(float(reward), 4) for reward in rewards],
    }  # fmt: skip
    (args.out / "adapters_trl.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    plot(result, args.out / "adapters_trl.png")
    print(f"held out {before:.3f} -> {after:.3f} (± {error:.3f}); {trainer.state.global_step} steps, {spent}")
    return 0 if after - before > 2 * error else 1


class Stop(TrainerCallback):
    """Ends training when the time is up."""

    until = math.inf

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= time.process_time() > self.until


def build(args: argparse.Namespace) -> tuple[Any, Stop]:
    """The trainer of TRL, with this project's rollout."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    model = AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32)
    config = trl.GRPOConfig(
        str(args.out / "trainer"), max_steps=args.generations * STEPS, seed=args.seed, use_cpu=True, bf16=False,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, **SETTINGS,
    )  # fmt: skip
    tasks = rows(marft_envs.make(ENV, **KWARGS), LEARNERS, range(args.seed * 100_000, args.seed * 100_000 + 20_000))
    stop = Stop()
    trainer = trl.GRPOTrainer(
        model, reward_funcs=team_return, args=config, processing_class=tokenizer,
        train_dataset=Dataset.from_list(tasks), callbacks=[stop],
        rollout_func=TeamRollout(marft_envs.make_vec(ENV, ROWS, **KWARGS)),
    )  # fmt: skip
    return trainer, stop


def held_out(trainer: Any) -> float:
    """Mean return on tasks that training does not draw from."""
    envs = marft_envs.make_vec(ENV, HELD_OUT, split="test", **KWARGS)
    prompts = [row["prompt"] for row in rows(marft_envs.make(ENV, **KWARGS), ["actor_0"], range(HELD_OUT))]
    returns = TeamRollout(envs)(prompts, trainer)["team_return"]
    assert returns is not None  # of the columns only logprobs may be None
    return sum(returns) / len(returns)


def plot(result: dict[str, Any], path: Path) -> None:
    """Reward of every generation, its mean over five, and the held-out scores."""
    from matplotlib.figure import Figure

    rewards = result["reward"]
    smooth = [sum(rewards[max(0, i - 4) : i + 1]) / len(rewards[max(0, i - 4) : i + 1]) for i in range(len(rewards))]
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(rewards) + 1), rewards, color="#3a6ea5", alpha=0.35, label="while training")
    axes.plot(range(1, len(rewards) + 1), smooth, color="#3a6ea5", label="mean of five")
    held = result["held_out"]
    axes.plot([0, len(rewards)], [held["before"], held["after"]], "o", color="#c8553d", label="held out")
    axes.set(xlabel=f"generation of {ROWS} episodes", ylabel="team return", title=f"TRL GRPO on {ENV}, level 0")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
