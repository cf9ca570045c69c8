"""GRPO by TRL on a model, for ``perf_trl``; runs in TRL's own environment, without this project.

Usage: ``python trl_worker.py MODEL PROMPTS.json GROUPS SIZE NEW STEPS``. Prints the CPU seconds of all steps but the
first.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Keeps the CPU time at the end of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: object, state: object, control: object, **rest: object) -> None:
        """Called by the trainer."""
        self.ends.append(time.process_time())


def main() -> None:
    """Trains for a few steps."""
    model, prompts = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    groups, size, new, steps = map(int, sys.argv[3:7])
    torch.set_num_threads(1)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=groups * size, num_generations=size, max_steps=steps,
            max_completion_length=new, temperature=1.0, top_k=0, beta=0.0,
            learning_rate=1e-4, lr_scheduler_type="constant",
            gradient_checkpointing=False, bf16=False, use_cpu=True, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=AutoTokenizer.from_pretrained(model),
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
            callbacks=[clock],
        )
        trainer.train()
    print(json.dumps([b - a for a, b in zip(clock.ends, clock.ends[1:], strict=False)]))


if __name__ == "__main__":
    main()
