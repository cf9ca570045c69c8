"""Named settings: what a preset changes against the defaults of ``config.py`` and of the algorithm.

``quickstart`` is what ``marft train`` does without arguments. The paper's presets reproduce its tables to the digit.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import marft_envs
from marft_envs.errors import ConfigError, did_you_mean

# In bf16 the sampler and the learner differ by up to a few hundredths a token, which adds up over a text: the learner
# computes the old log-probs itself, and the check that the ratio is 1 allows for it. Truncated importance weights
# correct for what remains: other probabilities were sampled from. fp32 is far inside either way.
BF16: dict[str, Any] = {"old_logprobs": "learner", "ratio_tolerance": 0.1, "tis_cap": 2.0}
"""Settings of the update in bf16."""
BF16_OPTIONS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in BF16.items())
"""The same as options of the command."""

# Of the gradient of SmolLM2's adapter, 2.4 M numbers, up to half are below the paper's epsilon, 1e-5, and a step is
# half of lr (python -m benchmarks arithmetic); adapters of models of billions have ten times as many, smaller ones.
_LARGE: dict[str, Any] = {**BF16, "adam_eps": 1e-8}


def _every(iterations: int) -> dict[str, Any]:
    return dict.fromkeys(("eval_every", "save_every", "record_every"), iterations)


QUICKSTART: dict[str, Any] = {
    # Level 0 is what the embedded model was warm-started on: 35 to 55 % greedy, so there is something to learn.
    "env": "math-dual-v0",
    "env_kwargs": {"levels": [0]},
    "models": "embedded",
    "dtype": "fp32",  # on a GPU too: a tiny model gains nothing from bf16
    # The replies at level 0 are short; what is longer has gone astray.
    "max_new_tokens": 48,
    # Most of the gain comes in the first 20; the rest is for seeds that start slowly. A minute or two of one core.
    "iterations": 80,
    "episodes_per_iteration": 128,
    **_every(20),
    "algorithm": {
        # A model of less than a million parameters takes steps that would break one of three billion; at 2e-3 trials
        # stalled.
        "lr": 1e-3,
        "critic_lr": 2e-3,
        # Eight small steps on each batch of episodes: with one, a hundred iterations moved a trial by two points.
        "epochs": 2,
        "minibatches": 4,
        "critic_epochs": 2,
        "critic_minibatches": 4,
        # Action level: the ratio of whole replies, on which the clip binds. On their mean over tokens it hardly does:
        # one seed of three ended where it had started.
        "norm": "sum",
        # A step too far shows here first: healthy minibatches stay around .005, with peaks of .03.
        "kl_stop": 0.05,
    },
}

TOY: dict[str, Any] = {
    "env": "relay-v0",
    "models": "embedded",
    "dtype": "fp32",
    # A digit and the end of the turn.
    "max_new_tokens": 2,
    "iterations": 80,
    "episodes_per_iteration": 128,
    **_every(40),
    "algorithm": {
        "lr": 2e-3,
        # Solved at this rate in twenty to sixty iterations, and without annealing some seeds were undone again later.
        "anneal": 80,
        "critic_lr": 2e-3,
        # What decides a toy is exploration: a team that settles on half a code stays there. The model starts out
        # saying any digit, so nearness to where it started keeps all digits in play; an entropy bonus drifts to
        # words that are no digits. At .05 route-v0 pooled two colours in three seeds of five.
        "kl_coef": 0.2,
        "kl_stop": 0.1,
    },
}

CODE: dict[str, Any] = {
    **QUICKSTART,
    "env": "code-reflect-v0",
    "models": "embedded-code",
    # Programs of level 0 have one line.
    "max_new_tokens": 40,
    # Most of the gain comes in the first ten: what was misread most of the time is right a third of the time.
    "iterations": 30,
    **_every(10),
}

TOOLS: dict[str, Any] = {
    **QUICKSTART,
    "env": "tools-router-v0",
    # The model knows the tools of level 0 by heart: policy and schemas would be most of its prompts.
    "env_kwargs": {"levels": [0], "show_policy": False, "show_tools": "none"},
    "models": "embedded-tools",
    # A call of level 0 has ten tokens.
    "max_new_tokens": 16,
    # Most of the gain comes in the first ten: what was mistaken most of the time is right a third of the time.
    "iterations": 20,
    **_every(10),
}

DOCS: dict[str, Any] = {
    **QUICKSTART,
    "env": "docs-chain-v0",
    # Ledgers of one window, which two readers share.
    "env_kwargs": {"level": 0, "kinds": "total", "lengths": 1},
    "models": "embedded-docs",
    # Readers of a role are one policy, so that what two have learnt, sixteen can be run with.
    "policies": "shared",
    # A page takes some 25 tokens, a document of one window some 45.
    "max_new_tokens": 64,
    "iterations": 40,
    **_every(10),
}

SMOLLM2: dict[str, Any] = {
    "env": "math-dual-v0",
    "env_kwargs": {"levels": [0]},
    "models": "smollm2-135m",
    "dtype": "fp32",
    # Its replies to profiles alone are essays: 0 of 300 problems. After 128 episodes of the expert all replies can be
    # read, .38 to .40 are right, and sampling still varies (.15 nats a token): more demonstrations leave less to try.
    "warm_start": 2,
    "max_new_tokens": 32,
    "iterations": 24,
    "episodes_per_iteration": 64,
    "eval_every": 12,
    "eval_episodes": 300,
    "save_every": 4,
    "record_every": 12,
    "algorithm": {
        # Two steps an iteration. At 5e-4 the entropy of one policy rose fivefold within three iterations in one seed of
        # three, and they ended 4, 10 and 8 points lower (docs/smollm2.md).
        "lr": 2e-4,
        # Adam's first steps have the size of the rate in every weight, and at 5e-4 one run of three did not win back
        # what they lost: +8 points of 500 problems without it, +13 to +21 in four runs with it (docs/smollm2.md).
        "lr_warmup": 6,
        # Failures have gradients two to nine times as long, squared, as successes, so the mean has more variance; with
        # it three seeds ended 9, 1 and 5 points lower, which alone shows no difference (docs/smollm2.md).
        "baseline": "optimal",
        "minibatches": 2,
        # 4 GB at most; a machine with more gains nothing from longer pieces.
        "micro_tokens": 2048,
    },
}

_PAPER: dict[str, Any] = {
    "env": "math-dual-v0",
    "env_kwargs": {"data": "math"},
    "models": "Qwen/Qwen2.5-Coder-3B-Instruct",
    "lora_targets": ("q_proj", "v_proj"),  # the released launch script's; the tables do not say
    "critic_hidden": (64,),
    "max_new_tokens": 512,
    "context": 2048,
    "num_envs": 4,
    # The tables name four rollout threads and no number of episodes: one episode a thread, 8k of them as in figure 3.
    "episodes_per_iteration": 4,
    "iterations": 2000,
    **_every(100),
    "algorithm": {
        "lr": 1e-6,
        "critic_lr": 1e-5,
        "adam_eps": 1e-5,
        "epochs": 1,
        "minibatches": 1,
        "clip": 0.2,
        "gamma_tok": 0.99,
        "gamma_turn": 0.99,
        "lambda_tok": 0.95,
        "lambda_turn": 0.95,
        "max_grad_norm": 0.5,
        "huber_delta": 10.0,  # the tables say only that Huber is on; 10 is the released code's
        # Not in the tables: the code sketch of appendix A. With one epoch of one minibatch it cannot act.
        "kl_stop": 0.02,
        **BF16,
    },
}


def _paper(entropy: float) -> dict[str, Any]:
    return _PAPER | {"algorithm": _PAPER["algorithm"] | {"entropy_coef": entropy}}


_3B, _7B = "Qwen/Qwen2.5-Coder-3B-Instruct", "Qwen/Qwen2.5-Coder-7B-Instruct"


def _card(
    model: str, micro_tokens: int, *, gradient_checkpointing: bool = False, quantize: str = "none"
) -> dict[str, Any]:
    """Fits one GPU. Cards differ in what is computed at once, never in what is learned.

    Args:
        model: the paper's, or the next larger one of its family.
        micro_tokens: tokens of one pass of an update; what takes most memory.
        gradient_checkpointing: compute layers again on the way back.
        quantize: of the base weights.
    """
    return {
        "models": model,
        "dtype": "bf16",
        "context": 2048,  # the paper's
        # All 64 episodes of an iteration at once: 2.6 GB of keys and values (3B), 4.0 GB (7B), and 6 GB of prompts
        # on their way through a layer at most. More rows than episodes there are not.
        "engine_batch": 64,
        "gradient_checkpointing": gradient_checkpointing,
        "quantize": quantize,
        "algorithm": {**_LARGE, "micro_tokens": micro_tokens},
    }


# An update keeps 5.6 MB of a token (3B) and 7.6 MB (7B), or a twentieth of that and half as much work again.
_CARDS: dict[str, dict[str, Any]] = {
    # Weights 6 GB. Whole activations would leave room for some 2,000 tokens, two rows: computed again, 8,192 take
    # 2.5 GB.
    "gpu-24gb": _card(_3B, 8192, gradient_checkpointing=True),
    # 8,192 tokens take 46 GB; twice as many would not fit.
    "gpu-80gb": _card(_3B, 8192),
    # 16,384, the default, take 92 GB.
    "gpu-141gb": _card(_3B, 16384),
    # In bf16 the weights alone are 15 GB and leave no room to sample: in 4 bits they are 5.6 GB.
    "gpu-24gb-7b": _card(_7B, 8192, gradient_checkpointing=True, quantize="nf4"),
    # 4,096 tokens take 31 GB beside 15 GB of weights; twice as many would not fit.
    "gpu-80gb-7b": _card(_7B, 4096),
    # 8,192 tokens take 62 GB; twice as many would not fit.
    "gpu-141gb-7b": _card(_7B, 8192),
}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"algorithm": _LARGE},
    "quickstart": QUICKSTART,
    "toy": TOY,
    "code": CODE,
    "tools": TOOLS,
    "docs": DOCS,
    "smollm2": SMOLLM2,
    "smollm2-bf16": {**SMOLLM2, "dtype": "bf16", "algorithm": {**SMOLLM2["algorithm"], **BF16}},
    "paper-table3": _paper(0.1),
    "paper-table4": _paper(0.0),
    "paper-table5": _paper(0.01),
    **_CARDS,
}
SUMMARIES = {
    "default": "the project's choice for models of a billion parameters and more",
    "quickstart": "the embedded model on a CPU, in minutes (what `marft train` does without arguments)",
    "toy": "the embedded model on the toy ladder: relay-v0, xor-v0, route-v0, signal-v0",
    "code": "the embedded coding model on level 0 of the programming problems",
    "tools": "the embedded tool-using model on level 0 of the depot",
    "docs": "the embedded reading model on level 0 of the long documents",
    "smollm2": "a real language model of 135 M parameters on a CPU, in an hour: demonstrations, then reinforcement",
    "smollm2-bf16": "the same in bf16, in less than half the time where the CPU computes in it (avx512_bf16, amx_bf16)",
    "paper-table3": "the paper's table 3, exactly: MATH, Qwen2.5-Coder-3B-Instruct, entropy 0.1",
    "paper-table4": "the paper's table 4, exactly: as table 3 with entropy 0",
    "paper-table5": "the paper's table 5, exactly: as table 3 with entropy 0.01",
    "gpu-24gb": "Qwen2.5-Coder-3B-Instruct on one GPU of 24 GB",
    "gpu-80gb": "the same on one GPU of 80 GB",
    "gpu-141gb": "the same on one GPU of 141 GB",
    "gpu-24gb-7b": "Qwen2.5-Coder-7B-Instruct on one GPU of 24 GB, its weights in 4 bits",
    "gpu-80gb-7b": "Qwen2.5-Coder-7B-Instruct on one GPU of 80 GB",
    "gpu-141gb-7b": "Qwen2.5-Coder-7B-Instruct on one GPU of 141 GB",
}


TOYS = ("relay-v0", "xor-v0", "route-v0", "signal-v0")


def suited(env: str) -> str:
    """Names the preset of the embedded model that was made for this environment."""
    if env in TOYS:
        return "toy"
    return next((name for name in ("code", "tools", "docs") if env.startswith(f"{name}-")), "quickstart")


def accepts(env_id: str, keyword: str) -> bool:
    """Whether the environment's constructor has this keyword."""
    return keyword in inspect.signature(marft_envs.spec(env_id).load()).parameters


def keep_accepted(env_id: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps the arguments that another environment than the one they were meant for can take, too."""
    return {key: value for key, value in kwargs.items() if accepts(env_id, key)}


def get(name: str) -> dict[str, Any]:
    """Returns a preset's settings, as ``config.build`` takes them.

    Raises:
        ConfigError: No such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"There is no preset '{name}'. {did_you_mean(name, PRESETS)}")
    return copy.deepcopy(PRESETS[name]) | {"preset": name}
