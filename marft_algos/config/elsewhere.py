"""What settings of other trainers are called here, whoever writes them: on the command line, in Python, in a file."""

from __future__ import annotations

import re
from collections.abc import Collection

from marft_algos.config.presets import BF16_OPTIONS

_TABLE = """\
out output output_dir run_dir save_dir log_dir logdir | --runs-dir DIR --name NAME; the run's folder is DIR/NAME
run_name exp_name experiment_name | --name NAME
model model_name model_name_or_path | --models MODEL
num_train_epochs max_steps total_steps steps | --iterations N
learning_rate actor_lr policy_lr | --lr RATE
warmup_steps warmup_ratio | --lr-warmup ITERATIONS
batch_size train_batch_size per_device_train_batch_size rollout_batch_size \
  | --episodes-per-iteration N; what one pass holds: --micro-tokens N
gradient_accumulation_steps | --micro-tokens N; pieces are accumulated by themselves
num_generations n_samples_per_prompt rollouts_per_example | --group-size N
num_iterations | --epochs N for passes over one batch, --iterations N for batches
max_tokens max_completion_length max_response_length | --max-new-tokens N
max_length max_seq_length max_prompt_length max_model_len | --context N
beta kl_loss_coef init_kl_coef | --kl-coef WEIGHT
epsilon clip_range cliprange clip_coef | --clip EPSILON
epsilon_high clip_ratio_high | --clip-high EPSILON
ent_coef entropy_coeff | --entropy-coef WEIGHT
gae_lambda | --lambda-tok LAMBDA --lambda-turn LAMBDA
gamma | --gamma-tok GAMMA --gamma-turn GAMMA
save_steps save_freq | --save-every ITERATIONS
eval_steps eval_freq | --eval-every ITERATIONS
report_to logger | --loggers tensorboard (or trackio, wandb, mlflow)
bf16 | --dtype bf16 BF16
fp32 | --dtype fp32
resume_from_checkpoint | --resume RUN
wandb use_wandb wandb_project | --loggers wandb
dataset dataset_name dataset_path train_file | --data PATH; of tools: --env-kwargs
reward reward_fn reward_func reward_funcs \
  | --env MODULE:ID; the environment pays, and one of your own as you like (docs/custom-tasks.md)
gpus n_gpus num_gpus n_gpus_per_node devices | --device cuda; --nproc N for several GPUs
use_vllm | --engines POLICY={kind="vllm",url="…"} (docs/engines.md)
"""
_ROWS = [row.split(" | ") for row in _TABLE.replace("BF16", BF16_OPTIONS).splitlines()]
ELSEWHERE = {name: here for names, here in _ROWS for name in names.split()}
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
