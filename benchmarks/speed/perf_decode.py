"""Decoding: the native engine against transformers' ``generate``, and against itself with two policies in turn.

::

    python -m benchmarks perf_decode

A tiny Qwen2 (2 layers, hidden 64 and 128, vocabulary 1,024), 32 prompt tokens, 96 new ones. ``generate`` runs the bare
model (its best case), the engine a policy with its adapter. Plain: every reply has full length. Ragged: a reply ends
with probability .03 a token. CPU seconds of one thread, runs in turn.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import shapes
from benchmarks.paired import in_turn, publish, ratios
from marft_algos.engines import NativeEngine, row_seed
from marft_algos.models.policy import PolicySet
from marft_algos.types import Generation, GenerationRequest, SamplingParams

PROMPT, NEW = 32, 96


def requests(policies: list[str], n: int) -> list[GenerationRequest]:
    """Random prompts, policies by turns."""
    ids = torch.randint(40, 400, (n, PROMPT), generator=torch.Generator().manual_seed(1)).tolist()
    return [GenerationRequest(policies[i % len(policies)], row, row_seed(0, 0, i, 0)) for i, row in enumerate(ids)]


def largest_gap(policies: PolicySet, batch: list[GenerationRequest], replies: list[Generation]) -> float:
    """The largest difference of a sampled log-prob from the learner's scoring."""
    worst = 0.0
    for request, reply in zip(batch, replies, strict=True):
        ids = torch.tensor([[*request.prompt_ids, *reply.action_ids]])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        mask[:, PROMPT:] = True
        with torch.no_grad():
            scored, _ = policies.logprobs(request.policy, ids, mask)
        worst = max(worst, float((scored[0, PROMPT - 1 :] - torch.from_numpy(reply.logprobs)).abs().max()))
    return worst


def measure(folder: Path, hidden: int, batch: int, ragged: bool, repeats: int) -> dict[str, Any]:
    """One row of the table."""
    model = str(shapes.save(folder / f"{hidden}", shapes.tiny(hidden)))
    policies = PolicySet.build(model, shapes.TEAM, device="cpu")
    shapes.disturb(policies)
    base = policies.base("actor")
    base.chat.end_ids = tuple(range(500, 530)) if ragged else ()
    engine, params = NativeEngine(policies), SamplingParams(max_new_tokens=NEW)
    single, both = requests(["actor"], batch), requests(["actor", "reasoner"], batch)
    prompts = torch.tensor([request.prompt_ids for request in single])
    plain: Any = PolicySet.build(model, shapes.TEAM, device="cpu").base("actor").model

    def generate() -> Any:
        settings = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0, "pad_token_id": 0}
        with torch.inference_mode():
            return plain.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                eos_token_id=list(base.chat.end_ids) or None,
                **settings,
            )

    def by_policy() -> list[list[Generation]]:
        return [engine.generate([r for r in both if r.policy == p], params) for p in policies.policies]

    plain.generation_config.eos_token_id = None
    runs = {
        "generate": generate,
        "native": lambda: engine.generate(single, params),
        "two policies, one batch": lambda: engine.generate(both, params),
        "two policies in turn": by_policy,
    }
    seconds = in_turn(runs, repeats)
    replies = engine.generate(single, params)
    return {
        "hidden": hidden,
        "batch": batch,
        "lengths": "ragged" if ragged else "full",
        "tokens/s": round(sum(len(r.action_ids) for r in replies) / sorted(seconds["native"])[repeats // 2]),
        "generate / native": ratios(seconds, "generate", "native"),
        "in turn / one batch": ratios(seconds, "two policies in turn", "two policies, one batch"),
        "largest log-prob gap": largest_gap(policies, single, replies),
        "seconds": seconds,
    }


def main() -> None:
    """Prints the table and writes perf_decode.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = ["hidden", "batch", "lengths", "tokens/s", "generate / native", "in turn / one batch"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for hidden in args.hidden:
            for batch in args.batches:
                rows += [measure(Path(folder), hidden, batch, ragged, args.repeats) for ragged in (False, True)]
                publish("perf_decode", rows, [*columns, "largest log-prob gap"], args.out)


if __name__ == "__main__":
    main()
