"""Tokens per second of rollout and update, through the same classes that train.

    python -m benchmarks.rollout                       # the embedded model: 128 episodes of math-dual-v0, level 0
    python -m benchmarks.rollout --shape qwen2.5-3b    # random weights of that shape: 64 episodes, 400 + 512 tokens

Times are CPU seconds of this process on a CPU (one thread) and wall seconds on a GPU; the best of three runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

import marft_envs
from marft_algos.batching import pack
from marft_algos.critic import Critics
from marft_algos.engines import NativeEngine, row_seed
from marft_algos.modeling import load_tokenizer, locate
from marft_algos.policy import PolicySet
from marft_algos.rollout import Collector
from marft_algos.types import GenerationRequest, SamplingParams, StopReason, Transition

SHAPES = {
    "qwen2.5-3b": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}
AGENTS = {"reasoner_0": "reasoner", "actor_0": "actor"}


def save_random(folder: Path, shape: str, device: str) -> Path:
    """Saves a randomly initialised model of a shape, with the embedded model's tokenizer."""
    tokenizer = load_tokenizer(locate("embedded"))
    config = Qwen2Config(**SHAPES[shape], eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def best(run: Callable[[], Any], device: torch.device, repeats: int = 3) -> tuple[float, Any]:
    """Returns the least seconds of a few runs, and the last run's result."""
    cuda = device.type == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    least, result = float("inf"), None
    for _ in range(repeats):
        start = clock()
        result = run()
        if cuda:
            torch.cuda.synchronize()
        least = min(least, clock() - start)
    return least, result


def update(policies: PolicySet, turns: list[Transition], micro: int) -> None:
    """One pass of forward and backward over the turns, in micro-batches of ``micro`` rows."""
    for policy in policies.policies:
        rows = sorted((t for t in turns if t.policy == policy), key=lambda t: len(t.prompt_ids) + len(t.action_ids))
        for start in range(0, len(rows), micro):
            batch = pack(rows[start : start + micro], "token", policies.device)
            logprobs, _ = policies.logprobs(policy, batch.input_ids, batch.action_mask, batch.temperature)
            logprobs.sum().backward()


def report(policies: PolicySet, turns: list[Transition], seconds: float, micro: int) -> dict[str, Any]:
    """Times the critic's features and the update, and counts tokens."""
    critics = Critics(policies)
    sampled = sum(len(t.action_ids) for t in turns)
    total = sampled + sum(len(t.prompt_ids) for t in turns)
    for t in turns:
        t.advantages = t.logprobs
    features, _ = best(lambda: critics.featurise(turns, view="own", level="token"), policies.device)
    updating, _ = best(lambda: update(policies, turns, micro), policies.device)
    return {
        "turns": len(turns),
        "sampled_tokens": sampled,
        "all_tokens": total,
        "rollout_s": round(seconds, 3),
        "rollout_sampled_tokens_per_s": round(sampled / seconds),
        "features_s": round(features, 3),
        "update_s": round(updating, 3),
        "update_tokens_per_s": round(total / updating),
    }


def embedded(episodes: int) -> dict[str, Any]:
    """Rollout through the environment, grading included."""
    vec = marft_envs.make_vec("math-dual-v0", num_envs=episodes, levels=(0,))
    policies = PolicySet.build("embedded", AGENTS, device="cpu")
    collector = Collector(vec, policies, NativeEngine(policies), SamplingParams(max_new_tokens=48))
    seconds, played = best(lambda: collector.collect(range(episodes)), policies.device)
    return report(policies, [t for trajectory in played for t in trajectory.transitions], seconds, micro=64)


def random_weights(shape: str, device: str, episodes: int, prompt: int, new: int, micro: int) -> dict[str, Any]:
    """Both agents' turns on synthetic prompts; no end token, so that every reply has full length."""
    with tempfile.TemporaryDirectory() as folder:
        policies = PolicySet.build(str(save_random(Path(folder), shape, device)), AGENTS, device=device)
    for policy in policies.policies:
        policies.base(policy).end_ids = ()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 400, (2 * episodes, prompt), generator=generator).tolist()
    asked = [GenerationRequest(policies.policies[i % 2], row, row_seed(0, 0, i, 0)) for i, row in enumerate(ids)]
    engine = NativeEngine(policies, max_batch=episodes)
    seconds, replies = best(lambda: engine.generate(asked, SamplingParams(max_new_tokens=new)), policies.device, 2)
    turns = [
        Transition(
            index=0, round=0, layer=0, agent=q.policy, role=q.policy, policy=q.policy, sees=(), prompt_ids=q.prompt_ids,
            action_ids=a.action_ids, logprobs=a.logprobs, text=a.text, stop_reason=StopReason.LENGTH, version=0,
        )
        for q, a in zip(asked, replies, strict=True)
    ]  # fmt: skip
    return report(policies, turns, seconds, micro)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape; default: embedded model")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--episodes", type=int, help="default: 128 (embedded), 64 (random weights)")
    parser.add_argument("--prompt", type=int, default=400, help="prompt tokens")
    parser.add_argument("--new", type=int, default=512, help="sampled tokens")
    parser.add_argument("--micro", type=int, default=16, help="rows per update pass")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.shape is None:
        found = embedded(args.episodes or 128)
    else:
        found = random_weights(args.shape, args.device, args.episodes or 64, args.prompt, args.new, args.micro)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
