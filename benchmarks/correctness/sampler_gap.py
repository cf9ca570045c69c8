"""How far sampler and learner are apart in bf16, with the output head in bf16 and in fp32.

::

    python -m benchmarks sampler_gap [--model smollm2-135m] [--device cpu] [--replies 32] [--tokens 32]

Replies are sampled natively by two policies whose adapters were moved at random, and scored by the learner. Printed are
means of |log π_learner − log π_sampler| a token, of |Σ| over a reply (the ratio of an action), and the largest of a
token; intervals of 95 % over replies drawn again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.paired import publish
from marft_algos.engines import NativeEngine, row_seed
from marft_algos.models.loading import ModelSettings
from marft_algos.models.policy import PolicySet
from marft_algos.types import FloatArray, GenerationRequest, SamplingParams

ASKED = ("What is {} plus {}?", "Tell me about the number {}{}.", "Count from {} to {}.", "Write {} lines about {}.")


def gaps(policies: PolicySet, replies: int, tokens: int) -> list[FloatArray]:
    """Returns log π_learner − log π_sampler of every token, reply by reply."""
    names, requests = policies.policies, []
    for i in range(replies):
        text = ASKED[i % len(ASKED)].format(i % 7 + 2, i % 11 + 1)
        policy = names[i % len(names)]
        prompt = policies.renderer.render(policy, [{"role": "user", "content": text}])
        requests.append(GenerationRequest(policy, prompt, row_seed(0, 0, i, 0)))
    found = []
    sampled = NativeEngine(policies).generate(requests, SamplingParams(tokens))
    for request, reply in zip(requests, sampled, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *reply.action_ids]], device=policies.device)
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, len(request.prompt_ids) :] = True
        with torch.no_grad():
            scored = policies.logprobs(request.policy, ids, mask)[0][0, len(request.prompt_ids) - 1 :]
        found.append(scored.cpu().numpy() - reply.logprobs)
    return found


def moved(model: str, device: str, head: str, dtype: str = "bf16") -> PolicySet:
    """Returns two policies on a model, their adapters moved by noise of .01."""
    agents = {"first_0": "first", "second_0": "second"}
    settings = ModelSettings(head_dtype=head)
    policies = PolicySet.build(model, agents, device=device, dtype=dtype, settings=settings)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for policy in policies.policies:
            for tensor in policies.parameters(policy):
                tensor.add_(0.01 * torch.randn(tensor.shape, generator=draws).to(tensor.device))
    return policies


def interval(values: Sequence[float]) -> str:
    """The mean with its interval."""
    rows = np.asarray(values)
    drawn = np.random.default_rng(0).choice(rows, (2000, len(rows))).mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{rows.mean():.4f} [{low:.4f}, {high:.4f}]"


def row(head: str, found: Sequence[FloatArray]) -> dict[str, Any]:
    """A line of the table."""
    return {
        "head": "bf16" if head == "auto" else head,
        "a token": interval([float(np.abs(gap).mean()) for gap in found]),
        "a reply": interval([abs(float(gap.sum())) for gap in found]),
        "largest": float(max(np.abs(gap).max() for gap in found)),
        "tokens": sum(map(len, found)),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table and writes sampler_gap.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--replies", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = [row(h, gaps(moved(args.model, args.device, h), args.replies, args.tokens)) for h in ("auto", "fp32")]
    publish("sampler_gap", rows, list(rows[0]), args.out)


if __name__ == "__main__":
    main()
