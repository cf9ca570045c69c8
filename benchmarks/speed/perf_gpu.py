"""What one GPU makes of it: speed, memory, and what could only be guessed without; a table to paste into an issue.

::

    python -m benchmarks gpu

Some ten minutes, 8 GB of disk for a moment, nothing downloaded: a random model with Qwen2.5-3B's shape, a dual team
with an adapter each, 64 episodes (16 on a card under 40 GB, which also computes activations again), some 400 prompt and
512 new tokens an agent; the second agent reads the first one's reply, too. Environment, chat prompts and Collector are
those of a run, so prompts share their profile. Decoding and update as in ``perf_throughput``; an iteration is rollout
(captured, if that went well before), old log-probs, features, credit, one epoch of policies and value heads. The same
update is also done by the modules of transformers and peft. Everything is done once with short replies first, which
does not count. A part that fails says so in the table, its traceback beside it, and the others go on. Most of the time
goes into decoding without a captured step, which ``--captured`` leaves out. Without a GPU a tiny shape runs through the
same code on a CPU thread: that shows that it runs, and nothing of a GPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import marft_algos
from benchmarks.paired import publish
from benchmarks.speed.gpu_decoding import Rows, decoding, groups, many_rows, short_turns
from benchmarks.speed.perf_throughput import Bench
from benchmarks.team import Stage
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.batching import Batch
from marft_algos.learner.learner import Learner
from marft_algos.models.forward import transformers_pass
from marft_algos.models.scoring import head_of, score
from marft_algos.terminal import say

SIZES = {
    "cuda": {"shape": "qwen2.5-3b", "episodes": 64, "prompt": 400, "new": 512, "repeats": 2},
    "small cuda": {"shape": "qwen2.5-3b", "episodes": 16, "prompt": 400, "new": 512, "repeats": 2},
    "cpu": {"shape": "tiny", "episodes": 4, "prompt": 24, "new": 16, "repeats": 1},
}
AIMS = {
    "share of decoding's roofline, --decode-graph": (0.20, 0.50),
    "utilisation of the update": (0.35, 0.60),
    "iteration, s": (22.0, 10.0),
}
"""What must be reached, and what is aimed at, on an H200 and the sizes for a GPU; of the last, less is better."""
OWED = "No GPU here: a tiny shape on the CPU. The figures of a GPU are not measured."
KERNELS = {
    "flash": ("_flash_attention_forward", "_scaled_dot_product_flash_attention_for_cpu"),
    "cudnn": ("_cudnn_attention_forward",),
    "memory-efficient": ("_efficient_attention_forward",),
    "plain": ("_scaled_dot_product_attention_math",),
}
"""Kind of attention -> operators that compute it."""


def micro_tokens(device: str) -> int:
    """Tokens of an update's pass whose activations (5.6 MB each) fit beside the rest: as in the cards' presets."""
    large = device == "cpu" or torch.cuda.get_device_properties(0).total_memory > 120e9
    return 16384 if large else 8192


def sizes(device: str) -> dict[str, Any]:
    """The sizes for a device, and whether activations are computed again."""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    small = kind == "cuda" and torch.cuda.get_device_properties(0).total_memory < 40e9
    return {**SIZES["small cuda" if small else kind], "micro": micro_tokens(kind), "checkpointing": small}


class Iterations:
    """Whole iterations of MARFT; what the last one logged stays."""

    def __init__(self, bench: Bench, features: Literal["base", "policy"] = "base") -> None:
        self.bench, self.logged = bench, dict[str, float]()
        self._config = MARFTConfig(
            lr=1e-5, old_logprobs="learner", tis_cap=2.0, adam_eps=1e-8, ratio_tolerance=100.0,
            micro_tokens=bench.args.micro, critic_features=features,
        )  # fmt: skip

    def run(self, number: int, graph: bool) -> list[float]:
        """Seconds of so many iterations, after one of short replies.

        Args:
            number: of iterations.
            graph: whether steps of decoding are captured.
        """
        learner = Learner(MARFT(self._config), self.bench.policies, self.bench.critics)

        def one(stage: Stage, iteration: int) -> None:
            self.logged = learner.update(stage.play(iteration), iteration)

        with self.bench.stages(graph) as (warming, stage):
            one(warming, 0)
            return [self.bench.seconds(partial(one, stage, i)) for i in range(number)]

    def mean(self, name: str) -> float:
        """A number that every policy logs, over policies."""
        return statistics.mean(v for key, v in self.logged.items() if key.endswith(f"/{name}"))


def machine(device: str) -> Rows:
    """What it runs on."""
    rows: Rows = {"marft": marft_algos.__version__, "torch": torch.__version__}
    if not device.startswith("cuda"):
        return rows
    card = torch.cuda.get_device_properties(0)
    return rows | {
        "CUDA": torch.version.cuda,
        "capability": f"{card.major}.{card.minor}",
        "memory of the card, GB": card.total_memory / 1e9,
    }


_CAPTURED = ", --decode-graph"
"""Behind the names of what is measured with a captured step."""


def phases(bench: Bench) -> Rows:
    """Rollout, features and update, each for itself."""
    rows = {name: value for name, value in bench.measure().items() if name != "times"}
    decoding = ("rollout tokens/s", "share of decoding's roofline", "rollout, s") if bench.captured else ()
    return {name + _CAPTURED * (name in decoding): value for name, value in rows.items()}


def graph(bench: Bench) -> Rows:
    """Rollouts whose step of decoding is captured (``--decode-graph``), and how many replies are the same."""
    if bench.captured:
        return {}
    if not bench.cuda:
        return {f"rollout tokens/s{_CAPTURED}": "not measured: a graph wants a GPU"}
    played = list[Any]()
    with bench.stages(graph=True) as (warming, stage):
        warming.play(0)
        seconds = [bench.seconds(lambda: played.append(stage.play(0))) for _ in range(bench.args.repeats)]
    captured = [t.reply.action_ids for d in played[-1] for t in d.transitions]
    plain = [t.reply.action_ids for t in bench.turns]
    same = [sum(x == y for x, y in zip(a, b, strict=True)) / len(a) for a, b in zip(captured, plain, strict=True)]
    bench.graph, speed = True, sum(map(len, captured)) / statistics.median(seconds)
    return {
        f"rollout tokens/s{_CAPTURED}": speed,
        f"share of decoding's roofline{_CAPTURED}": speed / bench.roofline,
        f"rollout, s{_CAPTURED}": statistics.median(seconds),
        "tokens the same as without (bf16 rounds otherwise)": statistics.mean(same),
        "different tokens of a reply (few: the row above says little)": statistics.mean(len({*a}) for a in captured),
    }


def modules(bench: Bench, policy: str, batch: Batch) -> Tensor:
    """Log-probabilities [n] of a batch's sampled tokens as the modules of transformers and peft compute them."""
    weights = bench.policies.weights(policy)
    mask, rows = batch.action_mask[:, 1:], batch.input_ids[:, 1:]
    with bench.policies.forward_pass(policy).autocast():
        hidden = transformers_pass.hidden_states(weights.trunk(), weights.model, batch.input_ids, F.pad(mask, (0, 1)))
        return score(head_of(weights.model), hidden, rows[mask], batch.temperature[:, None].expand_as(mask)[mask])[0]


def update_by_modules(bench: Bench) -> Rows:
    """The update as the modules of transformers and peft do it, in the same pieces."""

    def update() -> None:
        for policy, batch in bench.batches():
            modules(bench, policy, batch).sum().backward()

    update()
    seconds = statistics.median(bench.seconds(update) for _ in range(bench.args.repeats))
    return {"update, s, by the modules of transformers and peft": seconds}


def flash(bench: Bench) -> Rows:
    """Which kernels attend in the update, and whether it computes what transformers' masked attention does."""
    policy, batch = next(bench.batches())
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.cuda else [])]
    with profile(activities=kinds) as profiled:
        named, _ = bench.policies.logprobs(policy, batch.input_ids, batch.action_mask, batch.temperature)
        named.sum().backward()
    calls = Counter(event.key.removeprefix("aten::") for event in profiled.key_averages() for _ in range(event.count))
    used = {kind: sum(calls[name] for name in names) for kind, names in KERNELS.items()}
    model = bench.policies.weights(policy).model
    before = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        gap = (modules(bench, policy, batch) - named.detach()[batch.mask]).abs()
    model.set_attn_implementation(before)
    return {
        "attention of an update's pass": ", ".join(f"{kind} {n}" for kind, n in used.items() if n),
        "gap to transformers' masked attention, a token": float(gap.mean()),
        "gap to transformers' masked attention, largest": float(gap.max()),
    }


def iteration(bench: Bench) -> Rows:
    """Whole iterations, and how far the learner is from the sampler."""
    iterations = Iterations(bench)
    rows: Rows = {
        "iteration, s": statistics.median(iterations.run(bench.args.repeats, bench.graph)),
        "it decodes": "with --decode-graph" if bench.graph else "without a graph",
        "gap of sampler and learner, a token": iterations.mean("sampler_gap"),
        "truncated importance weight, mean": iterations.mean("tis_weight"),
    }
    if bench.cuda:
        return rows | {"most memory, GB": torch.cuda.max_memory_allocated() / 1e9}
    return rows | {"most memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def policy_features(bench: Bench) -> Rows:
    """An iteration in which value heads read the policies' own states (``--critic-features policy``)."""
    return {"iteration, s, --critic-features policy": Iterations(bench, "policy").run(1, bench.graph)[0]}


def operators(bench: Bench) -> Rows:
    """Prints which operators take most, where that was asked for."""
    if bench.args.profile:
        print(bench.profile(rows=30))
    return {}


PARTS = (
    phases, graph, flash, decoding, iteration, policy_features, many_rows, short_turns, groups, update_by_modules,
    operators,
)  # fmt: skip


def verdict(name: str, value: Any) -> str:
    """What a figure means against its aims."""
    if name not in AIMS:
        return ""
    must, aim = AIMS[name]
    sign = -1 if aim < must else 1
    word = "aim reached" if sign * value >= sign * aim else "reached" if sign * value >= sign * must else "MISSED"
    return f"{word} (at {'most' if sign < 0 else 'least'} {must:g}, aim {aim:g})"


def measure(args: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """The rows of the table, and how many parts failed."""
    judged = args.device.startswith("cuda") and all(
        getattr(args, key) == value for key, value in SIZES["cuda"].items() if key != "repeats"
    )
    start, rows, failed = time.monotonic(), list[dict[str, Any]](), 0
    bench = Bench(args)
    chosen = (partial(part, bench) for part in PARTS if part.__name__ in args.parts)
    parts: tuple[Callable[[], Rows], ...] = (partial(machine, args.device), *chosen)
    for part in parts:
        try:
            found = part()
        except Exception as error:  # whatever a card makes of it belongs into the table
            traceback.print_exc()
            failed += 1
            said = str(error).strip().split("\n")[0][:120]
            found = {getattr(part, "func", part).__name__: f"FAILED: {type(error).__name__}: {said}"}
        for name, value in found.items():
            say(f"{(time.monotonic() - start) / 60:.1f} min: {name}: {value}", error=True)
            rows.append({"what": name, "value": value, "verdict": verdict(name, value) if judged else ""})
    rows.append({"what": "all of this, minutes", "value": (time.monotonic() - start) / 60, "verdict": ""})
    return rows, failed


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table and writes perf_gpu.json; returns 1 if a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, what in (("shape", "tiny or qwen2.5-3b"), ("episodes", ""), ("prompt", "tokens"), ("new", "tokens")):
        parser.add_argument(f"--{name}", type=str if name == "shape" else int, help=what or None)
    parser.add_argument("--micro", type=int, help="tokens of one pass of the update")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--captured", action="store_true", help="do not decode without a captured step as well")
    parser.add_argument(
        "--checkpointing", action=argparse.BooleanOptionalAction, default=None, help="compute activations again"
    )
    parser.add_argument("--profile", action="store_true", help="also print the operators that take most")
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--parts", nargs="+", choices=names, default=names, help="what is measured; all")
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args(argv)
    for key, value in sizes(args.device).items():
        if getattr(args, key) is None:
            setattr(args, key, value)
    torch.set_num_threads(1)
    rows, failed = measure(args)
    publish("perf_gpu", rows, ["what", "value", "verdict"], args.out)
    if not args.device.startswith("cuda"):
        print(OWED)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
