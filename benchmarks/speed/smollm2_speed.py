"""SmolLM2-135M on one core: tokens a CPU second of the update and of rollouts, against a transformers + peft loop.

::

    python -m benchmarks smollm2_speed [--repeats 4] [--profiles 0 60 250] [--parts update rollout]

Both sides do the same work in turn in one process: the same micro-batches, adapters of rank 8 on all linear layers, the
same sampled tokens to learn from. The plain loop is what one writes with the two libraries: a padded batch through
``model(...)``, logits of the replies only (``logits_to_keep``), log-softmax, backward; ``generate`` with a key-value
cache for rollouts. All rows start with a profile of the given length (those of ``math-dual-v0`` have some 50 tokens),
have a text of their own of 24 tokens, and replies of 32; an update has as many rows as ``--micro-tokens`` hold, a
rollout 64 (the episodes of an iteration). A ratio is of CPU seconds, one thread, in each repetition; the median, and
the least and the greatest.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from benchmarks.pack import RESULTS
from benchmarks.paired import in_turn, publish, ratios
from benchmarks.shapes import disturb
from marft_algos.engines import NativeEngine
from marft_algos.engines.base import GenerationRequest
from marft_algos.models.loading import load_base
from marft_algos.models.policy import PolicySet
from marft_algos.types import SamplingParams

MODEL = "smollm2-135m"
OWN, NEW = 24, 32
ROWS = 64
"""Of a rollout."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def texts(profile: int, rows: int) -> tuple[Tensor, Tensor]:
    """Token ids [rows, T], and which of them were sampled."""
    generator = torch.Generator().manual_seed(0)
    head = torch.randint(100, 40_000, (1, profile), generator=generator).expand(rows, -1)
    ids = torch.cat([head, torch.randint(100, 40_000, (rows, OWN + NEW), generator=generator)], 1)
    return ids, torch.arange(ids.shape[1]).expand_as(ids) >= profile + OWN


def plain(dtype: str) -> Any:
    """The model with an adapter, by transformers and peft alone."""
    base = load_base(MODEL, dtype=DTYPES[dtype], device=torch.device("cpu")).model
    return get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))


def plain_update(model: Any, ids: Tensor, sampled: Tensor) -> Callable[[], None]:
    """One micro-batch of a policy gradient."""
    new = int(sampled[0].sum())

    def run() -> None:
        logits = model(input_ids=ids, logits_to_keep=new + 1).logits[:, :-1].float()
        model.zero_grad(set_to_none=True)
        (-logits.log_softmax(-1).gather(-1, ids[:, -new:, None]).mean()).backward()

    return run


def our_update(policies: PolicySet, ids: Tensor, sampled: Tensor) -> Callable[[], None]:
    """The same."""

    def run() -> None:
        for parameter in policies.parameters("actor"):
            parameter.grad = None
        logprobs, _ = policies.logprobs("actor", ids, sampled)
        (-logprobs.sum() / sampled.sum()).backward()

    return run


def rollouts(model: Any, policies: PolicySet, ids: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """``generate``, and the native engine, on the same prompts; replies of exactly NEW tokens."""
    prompts = ids[:, :-NEW]
    engine = NativeEngine(policies)
    policies.renderer.chat("actor").end_ids = ()
    asked = [GenerationRequest("actor", row.tolist(), seed=i) for i, row in enumerate(prompts)]

    def theirs() -> Any:
        with torch.no_grad():
            return model.generate(
                input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=NEW,
                min_new_tokens=NEW, top_k=0, top_p=1.0, temperature=1.0,
            )  # fmt: skip

    return theirs, lambda: engine.generate(asked, SamplingParams(NEW, 1.0))


def main() -> None:
    """Prints a table and writes smollm2_speed.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--profiles", nargs="+", type=int, default=[0, 60, 250])
    parser.add_argument("--parts", nargs="+", choices=("update", "rollout"), default=["update", "rollout"])
    parser.add_argument("--micro-tokens", type=int, default=2048)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    models = {dtype: plain(dtype) for dtype in DTYPES}
    ours = {dtype: PolicySet.build(MODEL, {"actor_0": "actor"}, device="cpu", dtype=dtype) for dtype in DTYPES}
    for policies in ours.values():
        disturb(policies, 0.002)
    rows: list[dict[str, Any]] = []
    for part in args.parts:
        for profile in args.profiles:
            rows_of = {"update": max(args.micro_tokens // (profile + OWN + NEW), 1), "rollout": ROWS}
            ids, sampled = texts(profile, rows_of[part])
            runs: dict[str, Callable[[], Any]] = {}
            for dtype in DTYPES:
                if part == "update":
                    runs[f"plain {dtype}"] = plain_update(models[dtype], ids, sampled)
                    runs[f"ours {dtype}"] = our_update(ours[dtype], ids, sampled)
                else:
                    runs[f"plain {dtype}"], runs[f"ours {dtype}"] = rollouts(models[dtype], ours[dtype], ids)
            seconds = in_turn(runs, args.repeats)
            tokens = ids.numel() if part == "update" else len(ids) * NEW
            for dtype in DTYPES:
                rows.append(
                    {"part": part, "profile": profile, "rows": len(ids), "dtype": dtype, "tokens": tokens}
                    | {f"{side} tok/s": tokens / min(seconds[f"{side} {dtype}"]) for side in ("plain", "ours")}
                    | {"plain / ours": ratios(seconds, f"plain {dtype}", f"ours {dtype}")}
                    | {"plain fp32 / ours": ratios(seconds, "plain fp32", f"ours {dtype}")}
                    | {"n": args.repeats}
                )
                print(rows[-1], flush=True)
    columns = [
        "part",
        "profile",
        "rows",
        "dtype",
        "plain tok/s",
        "ours tok/s",
        "plain / ours",
        "plain fp32 / ours",
        "n",
    ]
    publish("smollm2_speed", rows, columns, args.out)


if __name__ == "__main__":
    main()
