"""Decoding, the update, a whole iteration and memory on one GPU, against the aims of this project.

::

    python -m benchmarks gpu

A randomly initialised model with Qwen2.5-3B's shape, a dual team with an adapter each, 64 episodes, some 400 prompt and
512 new tokens an agent; the second agent reads the first one's reply, too. Environment, chat prompts and Collector are
those of a run, so prompts share their profile. Decoding and update as in ``perf_throughput``; an iteration is rollout,
old log-probs, features, credit, one epoch of policies and value heads.
Without a GPU a tiny shape runs through the same code, on a CPU thread: that shows that it runs, and nothing of a GPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.paired import publish
from benchmarks.speed.perf_throughput import Bench
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.learner.learner import Learner

SIZES = {
    "cuda": {"shape": "qwen2.5-3b", "episodes": 64, "prompt": 400, "new": 512, "repeats": 3},
    "cpu": {"shape": "tiny", "episodes": 4, "prompt": 24, "new": 16, "repeats": 1},
}
AIMS = {
    "share of decoding's roofline": (0.20, 0.50),
    "utilisation of the update": (0.35, 0.50),
    "iteration, s": (22.0, 12.0),
}
"""What must be reached, and what is aimed at, on an H200 and the sizes for a GPU; of the last, less is better."""
OWED = "No GPU here: a tiny shape on the CPU. The figures of a GPU are owed."


def micro_tokens(device: str) -> int:
    """Tokens of an update's pass whose activations (5.6 MB each) fit beside the rest: as in the cards' presets."""
    large = device == "cpu" or torch.cuda.get_device_properties(0).total_memory > 120e9
    return 16384 if large else 8192


def iterations(bench: Bench) -> list[float]:
    """Seconds of whole iterations, the first left out."""
    args, policies = bench.args, bench.policies
    config = MARFTConfig(lr=1e-5, old_logprobs="learner", ratio_tolerance=0.2, micro_tokens=args.micro)
    learner = Learner(MARFT(config), policies, bench.critics)

    def one(iteration: int) -> None:
        learner.update(bench.stage.play(iteration), iteration)

    return [bench.seconds(partial(one, i)) for i in range(args.repeats + 1)][1:]


def verdict(name: str, value: float) -> str:
    """What a figure means against its aims."""
    if name not in AIMS:
        return ""
    must, aim = AIMS[name]
    sign = -1 if aim < must else 1
    word = "aim reached" if sign * value >= sign * aim else "reached" if sign * value >= sign * must else "MISSED"
    return f"{word} (at {'most' if sign < 0 else 'least'} {must:g}, aim {aim:g})"


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the table."""
    bench = Bench(args)
    measured = bench.measure()
    seconds = iterations(bench)
    measured["iteration, s"] = statistics.median(seconds)
    if bench.cuda:
        measured["most memory, GB"] = torch.cuda.max_memory_allocated() / 1e9
    else:
        measured["most memory, GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    judged = bench.cuda and all(getattr(args, key) == value for key, value in SIZES["cuda"].items() if key != "repeats")
    return [
        {"what": name, "value": value, "verdict": verdict(name, value) if judged else ""}
        for name, value in measured.items()
        if name != "times"
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table and writes perf_gpu.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, what in (("shape", "tiny or qwen2.5-3b"), ("episodes", ""), ("prompt", "tokens"), ("new", "tokens")):
        parser.add_argument(f"--{name}", type=str if name == "shape" else int, help=what or None)
    parser.add_argument("--micro", type=int, help="tokens of one pass of the update")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args(argv)
    kind = "cuda" if args.device.startswith("cuda") else "cpu"
    for key, value in {**SIZES[kind], "micro": None}.items():
        if getattr(args, key) is None:
            setattr(args, key, micro_tokens(kind) if key == "micro" else value)
    torch.set_num_threads(1)
    publish("perf_gpu", measure(args), ["what", "value", "verdict"], args.out)
    if kind == "cpu":
        print(OWED)


if __name__ == "__main__":
    main()
