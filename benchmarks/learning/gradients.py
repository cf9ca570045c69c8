"""How long are the gradients of replies that succeeded and of those that failed? Which baseline suits them?

::

    python -m benchmarks smollm2 --out runs/smollm2 --settings bf16 --seeds 0 --only sft
    python -m benchmarks gradients runs/smollm2/bf16-sft-0 [--episodes 256] [--seed 0]
    python -m benchmarks gradients --table                                               # what was found

A team plays training problems, and the gradient of every reply's log-probability is taken on its own, |g|² of it over
all trained weights of its policy. With a baseline b, a policy gradient adds (R − b)·g for each reply, R being 0 or 1.
Its mean does not depend on b, and its variance is E[(R − b)²·|g|²] less something that does not either. It is least at
b* = E[R·|g|²] / E[|g|²], which is below the mean of R where failures have longer gradients. ``length`` lets a reply's
tokens stand for |g|² (OPO, arXiv 2505.23585), ``optimal`` the (1 − π)² of its tokens: that is what
``baseline="optimal"`` subtracts. Intervals are of a bootstrap over episodes. What is found is written to
``benchmarks/results/gradients/<run>-<checkpoint>.json``, beside what it was found with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.runs import table
from marft_algos import functional as F
from marft_algos.batching import learnable, pack
from marft_algos.config import presets
from marft_algos.config import settings as configs
from marft_algos.models.policy import PolicySet
from marft_algos.rollout.panel import Chunk
from marft_algos.runs import start
from marft_algos.training.parts import build
from marft_algos.training.rollouts import RolloutWorker
from marft_algos.types import Estimates, Trajectory, Transition
from marft_envs.errors import MarftError

RESULTS = Path(__file__).parents[1] / "results" / "gradients"
RESAMPLES = 2000
HEADER = [
    "policy",
    "succeeded",
    "g² of failures over successes",
    "baseline",
    "its value",
    "variance, 1 at the mean",
]


def main() -> None:
    """Measures a run, keeps what was found, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", help="folder of a run, RUN/best or RUN/checkpoints/STEP")
    parser.add_argument("--table", action="store_true", help="print what there is, and measure nothing")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0, help="of problems and samples")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.table:
        print("\n\n".join(f"{f.stem}\n\n{page(read(f))}" for f in sorted(args.out.glob("*.json"))))
        return
    if args.run is None:
        parser.error("name the folder of a run to measure; --table prints what there is")
    origin = start.locate(args.run)
    found = measure(args.run, args.episodes, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    command = f"python -m benchmarks gradients RUN --episodes {args.episodes} --seed {args.seed}"
    file = args.out / f"{origin.run.root.name}-{origin.weights.name}.json"
    file.write_text(json.dumps({"command": command, "policies": found}) + "\n", encoding="utf-8")
    print(page(found))


def read(file: Path) -> dict[str, list[list[float]]]:
    """Returns what was found in a run, as ``measure`` does."""
    policies: dict[str, list[list[float]]] = json.loads(file.read_text(encoding="utf-8"))["policies"]
    return policies


def measure(run: str, episodes: int, seed: int) -> dict[str, list[list[float]]]:
    """Plays episodes of a team; returns per policy, of every reply: success, |g|², (1 − π)², tokens."""
    config = start.defaults(run)
    given = {"seed": seed, "episodes_per_iteration": episodes, "iterations": 1}
    parts = build(configs.build({**given, "algorithm": presets.BF16 if config.dtype == "bf16" else {}}, config))
    worker = RolloutWorker(parts, 0)
    try:
        played = worker.play(Chunk(parts.problems.train(seed, 0, episodes), 0)).trajectories
    finally:
        worker.close()
    return rows(parts.policies, played)


def rows(policies: PolicySet, played: Sequence[Trajectory]) -> dict[str, list[list[float]]]:
    """Takes every reply's gradient on its own."""
    trained = [policy for policy in policies.policies if policies.trainable(policy)]
    succeeded = {t: float(bool(d.success)) for d in played for t in d.transitions}
    by_policy, _ = learnable(played, trained)
    return {
        policy: [
            [
                succeeded[t],
                squared_length(policies, policy, t),
                float(F.score_norms(t.reply.logprobs).sum()),
                float(len(t.reply.action_ids)),
            ]
            for t in turns
        ]
        for policy, turns in by_policy.items()
    }


def squared_length(policies: PolicySet, policy: str, t: Transition) -> float:
    """Returns |∇ log π(reply)|² over the policy's trained weights."""
    batch = pack([t], Estimates(shares={t: 1.0}), "action", policies.device)
    logprobs, _ = policies.logprobs(policy, batch.input_ids, batch.action_mask, batch.temperature)
    parts = torch.autograd.grad(logprobs.sum(), list(policies.parameters(policy)))
    return float(sum(part.double().square().sum() for part in parts))


def baselines(found: np.ndarray) -> dict[str, float]:
    """Returns the baselines that are compared, of [replies, 4] as ``measure`` has them."""
    paid, length, surprise = found[:, 0], found[:, 1], found[:, 2]
    return {
        "none": 0.0,
        "mean": float(paid.mean()),
        "length": float(np.average(paid, weights=found[:, 3])),
        "optimal": float(np.average(paid, weights=surprise)),
        "b*": float(np.average(paid, weights=length)),
    }


def variances(found: np.ndarray) -> dict[str, float]:
    """Returns E[(R − b)²·|g|²] of each baseline, over that of the mean."""
    paid, length = found[:, 0], found[:, 1]
    each = {name: float(np.mean((paid - b) ** 2 * length)) for name, b in baselines(found).items()}
    return {name: value / each["mean"] for name, value in each.items()}


def page(found: dict[str, Any]) -> str:
    """Makes the table."""
    lines = []
    for policy, each in found.items():
        replies = np.array(each)
        succeeded = int(replies[:, 0].sum())
        if succeeded in (0, len(replies)):
            raise MarftError(
                f"{succeeded} of {len(replies)} replies of '{policy}' succeeded; expected some that did and some that"
                " did not, whose gradients can be compared. Ask for more: --episodes 256, or take another run."
            )
        rng = np.random.default_rng(0)
        drawn = [replies[rng.integers(0, len(replies), len(replies))] for _ in range(RESAMPLES)]
        drawn = [d for d in drawn if 0 < d[:, 0].mean() < 1]
        ratio = _interval(_ratio(replies), [_ratio(d) for d in drawn])
        ranges = [variances(d) for d in drawn]
        for name, value in variances(replies).items():
            first = [policy, f"{replies[:, 0].mean():.3f}, n = {len(replies)}", ratio] if name == "none" else [""] * 3
            spread = "1" if name == "mean" else _interval(value, [r[name] for r in ranges])
            lines.append([*first, name, f"{baselines(replies)[name]:.3f}", spread])
    return table(HEADER, lines)


def _ratio(found: np.ndarray) -> float:
    failed = found[:, 0] == 0
    return float(found[failed, 1].mean() / found[~failed, 1].mean())


def _interval(value: float, drawn: Sequence[float]) -> str:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
