"""What settings of other trainers are called here, whoever writes them: on the command line, in Python, in a file."""

from __future__ import annotations

import re
from collections.abc import Collection

from marft_algos.config.presets import BF16_OPTIONS

_FOLDER = "--runs-dir DIR --name NAME; the run's folder is DIR/NAME"
ELSEWHERE = {
    **dict.fromkeys(("out", "output", "output_dir", "run_dir", "save_dir", "log_dir", "logdir"), _FOLDER),
    **dict.fromkeys(("run_name", "exp_name", "experiment_name"), "--name NAME"),
    **dict.fromkeys(("model", "model_name", "model_name_or_path"), "--models MODEL"),
    **dict.fromkeys(("num_train_epochs", "max_steps", "total_steps", "steps"), "--iterations N"),
    **dict.fromkeys(("learning_rate", "actor_lr", "policy_lr"), "--lr RATE"),
    **dict.fromkeys(("warmup_steps", "warmup_ratio"), "--lr-warmup ITERATIONS"),
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "per_device_train_batch_size", "rollout_batch_size"),
        "--episodes-per-iteration N; what one pass holds: --micro-tokens N",
    ),
    "gradient_accumulation_steps": "--micro-tokens N; pieces are accumulated by themselves",
    **dict.fromkeys(("num_generations", "n_samples_per_prompt", "rollouts_per_example"), "--group-size N"),
    "num_iterations": "--epochs N for passes over one batch, --iterations N for batches",
    **dict.fromkeys(("max_tokens", "max_completion_length", "max_response_length"), "--max-new-tokens N"),
    **dict.fromkeys(("max_length", "max_seq_length", "max_prompt_length", "max_model_len"), "--context N"),
    **dict.fromkeys(("beta", "kl_loss_coef", "init_kl_coef"), "--kl-coef WEIGHT"),
    **dict.fromkeys(("epsilon", "clip_range", "cliprange", "clip_coef"), "--clip EPSILON"),
    **dict.fromkeys(("epsilon_high", "clip_ratio_high"), "--clip-high EPSILON"),
    **dict.fromkeys(("ent_coef", "entropy_coeff"), "--entropy-coef WEIGHT"),
    "gae_lambda": "--lambda-tok LAMBDA --lambda-turn LAMBDA",
    "gamma": "--gamma-tok GAMMA --gamma-turn GAMMA",
    **dict.fromkeys(("save_steps", "save_freq"), "--save-every ITERATIONS"),
    **dict.fromkeys(("eval_steps", "eval_freq"), "--eval-every ITERATIONS"),
    **dict.fromkeys(("report_to", "logger"), "--loggers tensorboard (or trackio, wandb, mlflow)"),
    "bf16": f"--dtype bf16 {BF16_OPTIONS}",
    "fp32": "--dtype fp32",
    "resume_from_checkpoint": "--resume RUN",
    **dict.fromkeys(("wandb", "use_wandb", "wandb_project"), "--loggers wandb"),
    **dict.fromkeys(("dataset", "dataset_name", "dataset_path", "train_file"), "--data PATH; of tools: --env-kwargs"),
    **dict.fromkeys(
        ("reward", "reward_fn", "reward_func", "reward_funcs"),
        "--env MODULE:ID; the environment pays, and one of your own as you like (docs/custom-tasks.md)",
    ),
    **dict.fromkeys(
        ("gpus", "n_gpus", "num_gpus", "n_gpus_per_node", "devices"), "--device cuda; --nproc N for several GPUs"
    ),
    "use_vllm": '--engines POLICY={kind="vllm",url="…"} (docs/engines.md)',
}
"""What settings of this name, of other trainers, are called here."""


def advice(name: str, settings: Collection[str], of_algorithm: Collection[str]) -> str:
    """Says what to write in Python or in a file instead of a setting that does not exist; "" where nothing is known.

    Args:
        name: As it was written.
        settings: Names of the run's settings.
        of_algorithm: Names of the algorithm's.
    """
    typed, words = ELSEWHERE.get(name, "--data PATH" if name == "data" else ""), []
    for option in re.findall(r"--([a-z][a-z-]*)", typed):
        key = option.replace("-", "_")
        if key in of_algorithm:
            words.append(f'algorithm={{"{key}": …}}')
        elif key in settings:
            words.append(f"{key}=…")
        elif key == "data":
            words.append('env_kwargs={"data": …}')
    return f"In Python: {', '.join(dict.fromkeys(words))}; on the command line: {typed}." if words else ""
