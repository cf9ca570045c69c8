"""How the cost of a token grows with episodes, agents, the length of replies and the vocabulary.

::

    python -m benchmarks perf_scaling --plot docs/images/scaling.png

A tiny Qwen2 (2 layers, hidden 64, vocabulary 1,024), some 48 prompt tokens, token-level MARFT, one epoch. One thing
grows, the others stay at 8 episodes, 2 agents, 64 tokens; each agent reads the reply before it, by the real environment
and Collector. CPU µs of one thread
per sampled token, rollout and update apart; the least of a few repetitions, since others use the machine, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks import shapes
from benchmarks.paired import publish
from benchmarks.team import Stage, build
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.learner.learner import Learner
from marft_algos.models.critic import Critics

AXES = {
    "episodes": (2, 8, 32, 128),
    "agents": (1, 2, 4, 8, 12),
    "tokens": (64, 256, 1024, 2048),
    "vocabulary": (1024, 8192, 32768, 131072),
}
PROMPT = 48
USUAL = {"episodes": 8, "agents": 2, "tokens": 64, "vocabulary": 1024}


def measure(folder: Path, axis: str, value: int, repeats: int) -> dict[str, Any]:
    """One point: microseconds per sampled token."""
    size = {**USUAL, axis: value}
    model = folder / str(size["vocabulary"])
    if not model.exists():
        shapes.save(model, shapes.tiny(64, 2, size["vocabulary"]))
    policies = build(str(model), size["agents"])
    stage = Stage(policies, size["episodes"], PROMPT, size["tokens"])
    learner = Learner(MARFT(MARFTConfig(lr=1e-4)), policies, Critics(policies))
    rollout, update = [], []
    for i in range(repeats + 1):
        start = time.process_time()
        played = stage.play(i)
        middle = time.process_time()
        learner.update(played, i)
        rollout.append(middle - start)
        update.append(time.process_time() - middle)
    tokens = size["episodes"] * size["agents"] * size["tokens"] / 1e6
    return {
        "axis": axis,
        **size,
        "rollout, us": min(rollout[1:]) / tokens,
        "update, us": min(update[1:]) / tokens,
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """One panel an axis."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    for panel, axis in zip(figure.subplots(1, len(AXES), sharey=True), AXES, strict=True):
        along = [row for row in rows if row["axis"] == axis]
        for part in ("rollout", "update"):
            panel.plot([row[axis] for row in along], [row[f"{part}, us"] for row in along], marker="o", label=part)
        panel.set(xlabel=axis, xscale="log", yscale="log")
    figure.axes[0].set_ylabel("CPU µs per sampled token")
    figure.axes[0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints the table, writes perf_scaling.json and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    parser.add_argument("--plot", type=Path, help="default: perf_scaling.png beside the JSON")
    parser.add_argument("--axes", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for axis in args.axes:
            for value in AXES[axis]:
                rows.append(measure(Path(folder), axis, value, args.repeats))
                print(rows[-1], flush=True)
    publish("perf_scaling", rows, ["axis", *USUAL, "rollout, us", "update, us"], args.out)
    draw(rows, args.plot or args.out / "perf_scaling.png")


if __name__ == "__main__":
    main()
