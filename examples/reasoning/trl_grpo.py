"""TRL's GRPO from a warm-started adapter: the same prompts, grader, adapter and processed tokens as `marft train`.

    marft export runs/chain_sum-warm --out exports/warm
    python examples/reasoning/trl_grpo.py chain_sum exports/warm --policy actor_0 --out models/trl --tokens 75000

A processed token is one of a prompt or of a reply, and a prompt counts for each of its replies.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tasks import TASKS, created, environment

from marft_envs.adapters.inward.reasoning_gym import same
from marft_envs.families.math.grader import extract_boxed


def questions(name, seed, n):
    """Returns rows of prompt and answer; seeds share no question."""
    env = environment(name, team=False)
    found = []
    for number in range(seed * 1_000_000, seed * 1_000_000 + n):
        env.reset(options={"task_id": str(number)})
        found.append({"prompt": env.messages(env.agent_selection), "gold": created(name, number)[0]["answer"]})
    env.close()
    return found


def right(completions, gold, **_):
    """Rewards a reply with 1 if it is right, as the environment does."""
    texts = [completion[-1]["content"] for completion in completions]
    boxed = [extract_boxed(text) for text in texts]
    return [float(same(t if b is None else b, g)) for t, b, g in zip(texts, boxed, gold, strict=True)]


def trained(name, export, policy, *, seed, tokens, lr, out, dtype, longest=96):
    """Trains the adapter, and saves it.

    Args:
        name: Data set.
        export: What ``marft export`` wrote of the warm start.
        policy: Whose adapter.
        seed: Of questions and sampling.
        tokens: Processed tokens; it ends with the iteration that reaches them.
        lr: Learning rate.
        out: Folder of the adapter.
        dtype: Of the frozen weights; the adapter's are float32.
        longest: Tokens of a reply.

    Returns:
        Processed tokens and mean reward of each iteration.
    """
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Budget(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop |= state.num_input_tokens_seen >= tokens and state.global_step % 4 == 0

    base = AutoModelForCausalLM.from_pretrained(export / "base", dtype=dtype)
    config = GRPOConfig(
        str(out / "trainer"), seed=seed, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_steps=1, max_steps=1000, lr_scheduler_type="constant",
        learning_rate=lr, loss_type="grpo", num_generations=4, max_completion_length=longest, temperature=1.0,
        # An iteration has 64 replies to 16 questions, and four steps, as in ``run.py``.
        per_device_train_batch_size=16, gradient_accumulation_steps=1, steps_per_generation=4,
    )  # fmt: skip
    trainer = GRPOTrainer(
        PeftModel.from_pretrained(base, export / policy, is_trainable=True), right, config,
        Dataset.from_list(questions(name, seed + 1, 8 * 1000)),
        processing_class=AutoTokenizer.from_pretrained(export / policy), callbacks=[Budget()],
    )  # fmt: skip
    trainer.train()
    trainer.model.save_pretrained(out)
    return [
        {"tokens": row["num_tokens"], "reward": row["reward"]} for row in trainer.state.log_history if "reward" in row
    ]


def main():
    """Trains, and prints what each iteration came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("export", type=Path)
    parser.add_argument("--policy", default="actor_0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=75_000)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--out", type=Path, required=True)
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    steps = trained(o.task, o.export, o.policy, seed=o.seed, tokens=o.tokens, lr=o.lr, out=o.out, dtype=o.dtype)
    (o.out / "iterations.json").write_text(json.dumps(steps), encoding="utf-8")
    print(*(f"{step['tokens']:>9.0f} tokens  reward {step['reward']:.3f}" for step in steps), sep="\n")


if __name__ == "__main__":
    main()
