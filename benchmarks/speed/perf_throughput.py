"""Tokens per second of rollout, critic features and update; what share of the machine that is; where the time goes.

::

    python -m benchmarks throughput                                # a tiny shape: 16 episodes, 64 + 64 tokens
    python -m benchmarks throughput --shape qwen2.5-3b --episodes 64 --prompt 400 --new 512 --micro 16384      # one GPU
    python -m benchmarks throughput --against HEAD~5               # this tree and that commit, in turn

Both agents of a dual team, a policy each, the second reading the first, in a real environment with chat prompts that
share their profile, as a run has them; replies have full length. CPU seconds of one thread on a CPU, wall seconds on a
GPU; the median of the repetitions. The roofline of decoding is what reading the weights once
and every row's keys and values once a step takes at the reading bandwidth measured here; the utilisation of the
update counts 4 · N floating-point operations a token (forward, and backward without the frozen weights' gradients), of
the head's only those of sampled tokens, at the rate of a product of random matrices measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import shapes
from benchmarks.paired import publish, ratios
from benchmarks.team import Stage, build
from marft_algos.batching import Batch, micro_batches, pack
from marft_algos.engines import NativeEngine
from marft_algos.models.critic import Critics
from marft_algos.models.loading import ModelSettings
from marft_algos.types import Estimates, Transition

SHAPES = {"tiny": shapes.tiny(64), "qwen2.5-3b": shapes.QWEN_3B}
PHASES = ("rollout", "features", "update")
WARM = 16
"""New tokens of a reply in what is done once before anything is measured."""


class Bench:
    """A team and its turns.

    Args:
        args: of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.cuda = args, args.device.startswith("cuda")
        dtype = torch.bfloat16 if self.cuda else torch.float32
        with tempfile.TemporaryDirectory() as folder:
            model = str(shapes.save(Path(folder), SHAPES[args.shape], dtype, args.device))
            settings = ModelSettings(gradient_checkpointing=getattr(args, "checkpointing", False))
            self.policies = build(model, 2, args.device, settings)
        self.captured = self.cuda and getattr(args, "captured", False)
        """Whether every rollout captures its steps of decoding."""
        self.graph: bool = self.captured
        """Whether steps of decoding have been captured, and may be again."""
        engine = NativeEngine(self.policies, max_batch=args.episodes, decode_graph=self.captured)
        self.stage = Stage(self.policies, args.episodes, args.prompt, args.new, engine)
        self.warming = Stage(self.policies, args.episodes, args.prompt, min(args.new, WARM), engine)
        self.critics = Critics(self.policies)
        self.roofline = float("nan")
        """Tokens a second that decoding could reach at most, once measured."""
        self.turns: list[Transition] = []
        self.estimates = Estimates()

    def rollout(self, stage: Stage | None = None) -> None:
        """Plays every episode: environment, prompts, sampling."""
        self.use([turn for trajectory in (stage or self.stage).play(0) for turn in trajectory.transitions])

    def use(self, turns: list[Transition]) -> None:
        """Makes these the turns of updates."""
        self.turns = turns
        self.estimates = Estimates(advantages={turn: turn.reply.logprobs for turn in turns})

    @contextmanager
    def stages(self, graph: bool, episodes: int | None = None) -> Iterator[tuple[Stage, Stage]]:
        """Lends the stage for warming up and the one that is measured; on request, steps of decoding are captured."""
        if graph == self.captured and episodes is None:
            yield self.warming, self.stage
            return
        episodes = episodes or self.args.episodes
        engine = NativeEngine(self.policies, episodes, decode_graph=graph)
        sizes = episodes, self.args.prompt
        stages = [Stage(self.policies, *sizes, new, engine) for new in (min(self.args.new, WARM), self.args.new)]
        try:
            yield stages[0], stages[1]
        finally:
            for stage in stages:
                stage.close()

    def features(self) -> None:
        """One pass of the frozen trunk."""
        self.critics.featurise(self.turns, view="own", level="token")

    def update(self, shared: bool = False) -> None:
        """One forward and backward pass of every turn; see ``batches``."""
        for _, batch in self.batches(shared):
            self.policies.logprobs(*batch.scored)[0].sum().backward()

    def batches(self, shared: bool = False) -> Iterator[tuple[str, Batch]]:
        """Yields the pieces of an update, each with its policy; on request, turns that begin alike are together."""
        for policy in self.policies.policies:
            for piece in micro_batches([t for t in self.turns if t.policy == policy], self.args.micro, shared=shared):
                yield policy, pack(piece, self.estimates, "token", self.policies.device)

    def seconds(self, work: Callable[[], Any]) -> float:
        """What one call takes."""
        clock = time.perf_counter if self.cuda else time.process_time
        start = clock()
        work()
        if self.cuda:
            torch.cuda.synchronize()
        return clock() - start

    def measure(self) -> dict[str, Any]:
        """Seconds of the phases, and what follows from them."""
        times: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.rollout(self.warming)
        self.features()
        self.update()
        for i in range(self.args.repeats):
            for phase in PHASES:
                if i == 0 and phase != "rollout":
                    getattr(self, phase)()  # memory of this size is asked for once
                times[phase].append(self.seconds(getattr(self, phase)))
        middle = {phase: statistics.median(times[phase]) for phase in PHASES}
        new = sum(len(t.reply.action_ids) for t in self.turns)
        every = new + sum(len(t.request.prompt_ids) for t in self.turns)
        model = self.policies.base(self.policies.policies[0]).model
        weights = sum(p.numel() for p in model.parameters())
        head = model.get_output_embeddings().weight.numel()
        copy, flops = self.machine
        self.roofline = self.roof(self.args.episodes)
        return {
            "device": torch.cuda.get_device_name() if self.cuda else "cpu, one thread",
            "rollout tokens/s": new / middle["rollout"],
            "share of decoding's roofline": new / middle["rollout"] / self.roofline,
            "update tokens/s": every / middle["update"],
            "utilisation of the update": 4 * ((weights - head) * every + head * new) / middle["update"] / flops,
            "measured reading, GB/s": copy / 1e9,
            "measured product, GFLOP/s": flops / 1e9,
            **{f"{phase}, s": middle[phase] for phase in PHASES},
            "most memory, GB": torch.cuda.max_memory_allocated() / 1e9 if self.cuda else None,
            "times": times,
        }

    def roof(self, rows: int) -> float:
        """Tokens a second of so many rows if a step took no longer than reading weights and cache."""
        model = self.policies.base(self.policies.policies[0]).model
        config, size = model.config, next(model.parameters()).element_size()
        heads = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
        cache = 2 * config.num_hidden_layers * heads * size * (self.args.prompt + self.args.new / 2)
        return rows * self.machine[0] / (sum(p.numel() for p in model.parameters()) * size + rows * cache)

    @cached_property
    def machine(self) -> tuple[float, float]:
        """Bytes read a second by a sum over 256 MB, and operations a second of a square product."""
        size = 8192 if self.cuda else 1024
        dtype = torch.bfloat16 if self.cuda else torch.float32
        data = torch.randn(1 << 26, device=self.args.device)
        # Random numbers: a device may clock higher on constant ones.
        a = torch.randn(size, size, device=self.args.device).to(dtype)
        data.sum(), a @ a
        copy = min(self.seconds(data.sum) for _ in range(5))
        product = min(self.seconds(partial(torch.mm, a, a)) for _ in range(5))
        return data.nbytes / copy, 2 * size**3 / product

    def profile(self, rows: int = 12) -> str:
        """The operators that take most of an update, and of a rollout with short replies."""
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        short: Callable[[], None] = partial(self.rollout, self.warming)
        kept, tables = (self.turns, self.estimates), []
        for what, work in (("update", self.update), ("rollout of short replies", short)):
            with profile(activities=kinds) as profiled:
                work()
            by = "self_cuda_time_total" if self.cuda else "self_cpu_time_total"
            tables.append(f"{what}\n" + profiled.key_averages().table(sort_by=by, row_limit=rows))
        self.turns, self.estimates = kept
        return "\n".join(tables)


def against(revision: str, argv: list[str], repeats: int) -> list[dict[str, Any]]:
    """Runs this measurement as another commit has it and as this tree does, in turn; returns a row a phase."""
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(other), revision], cwd=root, check=True)
        try:
            seconds: dict[str, dict[str, list[float]]] = {w: {phase: [] for phase in PHASES} for w in ("that", "this")}
            for _ in range(repeats):
                for which, tree in (("that", other), ("this", root)):
                    for phase, spent in _one(tree, argv).items():
                        seconds[which][phase].append(spent)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=root, check=True)
    flat = {(which, phase): spent for which, phases in seconds.items() for phase, spent in phases.items()}
    return [
        {
            "phase": phase,
            "that, s": statistics.median(flat["that", phase]),
            "this, s": statistics.median(flat["this", phase]),
            "that / this": ratios({"that": flat["that", phase], "this": flat["this", phase]}, "that", "this"),
        }
        for phase in PHASES
    ]


def _one(tree: Path, argv: list[str]) -> dict[str, float]:
    """One run in a process of its own: packages and measurement of ``tree``, since they fit each other."""
    code = (
        f"import sys; sys.path.insert(0, {str(tree)!r});"
        f" from benchmarks.speed.perf_throughput import main; main({[*argv, '--repeats', '1', '--json']!r})"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    measured = json.loads(done.stdout.splitlines()[-1])
    return {phase: measured[f"{phase}, s"] for phase in PHASES}


def main(argv: list[str] | None = None) -> None:
    """Prints what was measured, and writes perf_throughput.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="prompt tokens")
    parser.add_argument("--new", type=int, default=64, help="sampled tokens")
    parser.add_argument("--micro", type=int, default=16384, help="tokens per update pass")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="also the operators that take most")
    parser.add_argument("--against", metavar="REVISION", help="compare with another commit, in turn")
    parser.add_argument("--json", action="store_true", help="print one line of JSON and write nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/perf"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.against:
        arguments = [
            f"--{name}={getattr(args, name)}" for name in ("shape", "device", "episodes", "prompt", "new", "micro")
        ]
        rows = against(args.against, arguments, args.repeats)
        publish("perf_against", rows, ["phase", "that, s", "this, s", "that / this"], args.out)
        return
    bench = Bench(args)
    measured = bench.measure()
    if args.json:
        print(json.dumps(measured))
        return
    rows = [{"what": name, "value": value} for name, value in measured.items() if name != "times"]
    publish("perf_throughput", rows, ["what", "value"], args.out)
    if args.profile:
        print(bench.profile())


if __name__ == "__main__":
    main()
