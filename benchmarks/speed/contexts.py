"""What a team's contexts cost: whole iterations in which what rows or rounds begin with is computed once, or each time.

::

    python -m benchmarks contexts [--only rounds group] [--pairs 3] [--out runs/perf]

Token-level MARFT on random Qwen2 models. ``rounds``: two agents with a policy each talk for eight rounds, and read all
that was said; 4 episodes, replies of 64 tokens, hidden 256, 4 layers. ``group``: one agent, 4 starts of 4 episodes
each, prompts of some 526 tokens (a tenth is the profile), replies of 32. ``growth``: the first at hidden 64, with 1 to
16 rounds.

Both ways alternate in one process, from the same seeds (``MARFT_KERNELS`` with and without ``prefix``): CPU seconds of
one thread, the median of the ratios of each turn, least and greatest; and the largest relative difference of the
gradients of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import shapes
from benchmarks.paired import publish, ratios
from benchmarks.team import Stage, build
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.learner import learner as learning
from marft_algos.learner import steps
from marft_algos.models.critic import Critics
from marft_algos.models.policy import PolicySet

SIZES: dict[str, dict[str, int]] = {
    "rounds": {
        "hidden": 256,
        "layers": 4,
        "agents": 2,
        "rounds": 8,
        "episodes": 4,
        "prompt": 186,
        "new": 64,
        "group": 1,
    },
    "group": {
        "hidden": 256,
        "layers": 4,
        "agents": 1,
        "rounds": 1,
        "episodes": 16,
        "prompt": 526,
        "new": 32,
        "group": 4,
    },
}
GROWTH = {"hidden": 64, "layers": 2, "agents": 2, "episodes": 4, "prompt": 186, "new": 64, "group": 1}
WAYS = {"each time": "forward,decode,merge,attention", "once": "forward,decode,merge,attention,prefix"}
PARTS = ("rollout", "features", "update", "iteration")


def plain_text(policies: PolicySet) -> None:
    """Lets a random model sample printable text only: control tokens and broken characters do not come back as such."""
    for policy in policies.policies:
        tokenizer, weights = policies.renderer.tokenizer(policy), policies.weights(policy)
        bias = torch.full((weights.base.model.vocab_size,), -1e4)
        words = [i for i in range(len(tokenizer)) if re.fullmatch("[ -~]+", tokenizer.decode(i))]
        bias[sorted({*words} - {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder})] = 0.0
        for model in (weights.base.model, weights.model):
            model.get_output_embeddings().bias = torch.nn.Parameter(bias, requires_grad=False)


def iteration(model: Path, size: dict[str, int], way: str, seed: int) -> tuple[dict[str, float], list[torch.Tensor]]:
    """Plays and learns once; returns CPU seconds of each part and what was read, and the gradient of every step."""
    os.environ["MARFT_KERNELS"] = WAYS[way]
    policies = build(str(model), size["agents"])
    shapes.disturb(policies)
    plain_text(policies)
    profile = 0.1 if size["group"] > 1 else 0.5
    stage = Stage(policies, size["episodes"], size["prompt"], size["new"], None, size["rounds"], profile)
    critics = Critics(policies)
    learner = learning.Learner(MARFT(MARFTConfig(lr=1e-6, epochs=1, minibatches=1)), policies, critics)
    spent, gradients, step, featurise = {"features": 0.0}, list[torch.Tensor](), steps.step, critics.featurise

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        found = featurise(*args, **kwargs)
        spent["features"] += time.process_time() - start
        return found

    def noted(optimizer: Any, *args: Any) -> float:
        gradients.append(torch.cat([p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]))
        return step(optimizer, *args)

    critics.featurise = timed  # type: ignore[method-assign]
    steps.step = noted  # type: ignore[assignment]
    start = time.process_time()
    played = stage.play(seed, size["group"])
    middle = time.process_time()
    learner.update(played, seed)
    end = time.process_time()
    steps.step = step
    stage.close()
    turns = [t for trajectory in played for t in trajectory.transitions]
    spent |= {"rollout": middle - start, "update": end - middle - spent["features"], "iteration": end - start}
    trained = sum(len(t.reply.action_ids) for t in turns)
    counted = {name: n / trained for name, n in policies.take_counted().items()}
    return spent | {"trained": trained, **counted}, gradients


def compare(model: Path, size: dict[str, int], pairs: int) -> dict[str, Any]:
    """Both ways, in turn."""
    seconds: dict[str, dict[str, list[float]]] = {part: {way: [] for way in WAYS} for part in PARTS}
    worst, row = 0.0, dict[str, Any]()
    for pair in range(pairs + 1):
        found = {way: iteration(model, size, way, pair) for way in WAYS}
        (_, each), (_, once) = found.values()
        worst = max(
            [worst, *(float((a - b).norm() / a.norm().clamp(min=1e-12)) for a, b in zip(each, once, strict=True))]
        )
        for way, (spent, _) in found.items():
            row[f"tokens a trained one, {way}"] = spent["computed"]
            if pair:  # the first one of each warms up
                for part in PARTS:
                    seconds[part][way].append(spent[part])
        print(json.dumps({way: spent for way, (spent, _) in found.items()}), flush=True)
    for part in PARTS:
        row[part] = ratios(seconds[part], *WAYS)
        row[f"{part}, s"] = [round(min(seconds[part][way]), 4) for way in WAYS]
    return {**size, **row, "gradients differ by": worst}


def main() -> None:
    """Prints the table, and writes contexts.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*SIZES, "growth"], default=[*SIZES, "growth"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = [(name, SIZES[name]) for name in args.only if name in SIZES]
        if "growth" in args.only:
            sizes += [(f"{rounds} rounds", {**GROWTH, "rounds": rounds}) for rounds in (1, 2, 4, 8, 16)]
        for name, size in sizes:
            model = Path(folder) / f"{size['hidden']}"
            if not model.exists():
                shapes.save(model, shapes.tiny(size["hidden"], size["layers"]))
            rows.append({"run": name, **compare(model, size, args.pairs)})
    publish(
        "contexts",
        rows,
        ["run", *PARTS, "gradients differ by", *(f"tokens a trained one, {w}" for w in WAYS)],
        args.out,
    )


if __name__ == "__main__":
    main()
