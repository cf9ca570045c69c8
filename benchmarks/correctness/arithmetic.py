"""What bf16 does to the gap between sampler and learner, and Adam's epsilon to the steps of an adapter.

::

    python -m benchmarks arithmetic [--model smollm2-135m] [--device cpu] [--replies 32] [--tokens 32]

Replies of up to 32 tokens are sampled natively by policies whose adapters were moved at random, and scored by the
learner. First table, in bf16, the head in bf16 and in fp32: means of |log π_learner − log π_sampler| a token, of |Σ|
over a reply (the ratio of an action), and the largest of a token; intervals of 95 % over replies drawn again. Second
table, in fp32: the gradient of one minibatch (mean over tokens of A log π, with normal advantages of unit variance,
norm clipped to .5), for several sizes of those moves: how many of its numbers are below epsilon, and what
share of lr Adam's first step takes, |g| / (|g| + ε), on average over numbers that are not 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import shapes
from benchmarks.paired import publish
from marft_algos.engines import NativeEngine, row_seed
from marft_algos.models.loading import ModelSettings
from marft_algos.models.policy import PolicySet
from marft_algos.types import FloatArray, Generation, GenerationRequest, SamplingParams

ASKED = ("What is {} plus {}?", "Tell me about the number {}{}.", "Count from {} to {}.", "Write {} lines about {}.")
EPSILONS = (1e-5, 1e-8)
MOVED = (0.0, 0.001, 0.01)


def moved(model: str, device: str, size: float, **settings: Any) -> PolicySet:
    """Returns two policies on a model, their adapters moved by noise of this size."""
    policies = PolicySet.build(model, {"first_0": "first", "second_0": "second"}, device=device, **settings)
    shapes.disturb(policies, size)
    return policies


def sampled(policies: PolicySet, replies: int, tokens: int) -> list[tuple[GenerationRequest, Generation]]:
    """Samples replies of all policies in turn."""
    names, requests = policies.policies, []
    for i in range(replies):
        text, policy = ASKED[i % len(ASKED)].format(i % 7 + 2, i % 11 + 1), names[i % len(names)]
        prompt = policies.renderer.render(policy, [{"role": "user", "content": text}])
        requests.append(GenerationRequest(policy, prompt, row_seed(0, 0, i, 0)))
    return list(zip(requests, NativeEngine(policies).generate(requests, SamplingParams(tokens)), strict=True))


def scored(policies: PolicySet, pairs: Sequence[tuple[GenerationRequest, Generation]]) -> Iterator[Tensor]:
    """Yields the learner's log-probs of each reply."""
    for request, reply in pairs:
        ids = torch.tensor([[*request.prompt_ids, *reply.action_ids]], device=policies.device)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, len(request.prompt_ids) :] = True
        yield policies.logprobs(request.policy, ids, mask)[0][0, len(request.prompt_ids) - 1 :]


def interval(values: Sequence[float]) -> str:
    """The mean with its interval."""
    rows = np.asarray(values)
    drawn = np.random.default_rng(0).choice(rows, (2000, len(rows))).mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{rows.mean():.4f} [{low:.4f}, {high:.4f}]"


@torch.no_grad()
def gap(args: argparse.Namespace, head: str) -> dict[str, Any]:
    """A line of the first table."""
    settings = ModelSettings(head_dtype=head)
    policies = moved(args.model, args.device, 0.01, dtype="bf16", settings=settings)
    pairs = sampled(policies, args.replies, args.tokens)
    gaps: list[FloatArray] = [
        new.cpu().numpy() - reply.logprobs for (_, reply), new in zip(pairs, scored(policies, pairs), strict=True)
    ]
    return {
        "head": "bf16" if head == "auto" else head,
        "a token": interval([float(np.abs(row).mean()) for row in gaps]),
        "a reply": interval([abs(float(row.sum())) for row in gaps]),
        "largest": float(max(np.abs(row).max() for row in gaps)),
        "tokens": sum(map(len, gaps)),
    }


def steps(args: argparse.Namespace, size: float) -> dict[str, Any]:
    """A line of the second table."""
    policies = moved(args.model, args.device, size, dtype="fp32")
    pairs = sampled(policies, args.replies, args.tokens)
    advantages = torch.randn(len(pairs), generator=torch.Generator().manual_seed(1))
    total = sum(len(reply.action_ids) for _, reply in pairs)
    for advantage, logprobs in zip(advantages.tolist(), scored(policies, pairs), strict=True):
        (-advantage * logprobs.sum() / total).backward()
    grads = [p.grad.flatten() for name in policies.policies for p in policies.parameters(name) if p.grad is not None]
    numbers = torch.cat(grads).abs()
    norm = float(numbers.norm())
    numbers = numbers[numbers > 0] * min(1.0, 0.5 / norm)
    row: dict[str, Any] = {"moved by": size, "norm": norm, "median": float(numbers.median())}
    for epsilon in EPSILONS:
        row[f"below {epsilon:g}"] = float((numbers < epsilon).float().mean())
        row[f"step at {epsilon:g}"] = float((numbers / (numbers + epsilon)).mean())
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the tables, and writes arithmetic_gap.json and arithmetic_epsilon.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--replies", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for name, rows in (
        ("arithmetic_gap", [gap(args, head) for head in ("auto", "fp32")]),
        ("arithmetic_epsilon", [steps(args, size) for size in MOVED]),
    ):
        publish(name, rows, list(rows[0]), args.out)


if __name__ == "__main__":
    main()
