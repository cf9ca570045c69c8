"""``marft plan``: what of a run fits where, and what it sends, from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from marft_algos.cli.training import typed_settings
from marft_algos.config import arguments, trust
from marft_algos.lazy import check_packages, require_training
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, Range
from marft_algos.runs import paths
from marft_algos.terminal import aligned, say
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.training.layout import ProcessLayout
    from marft_algos.training.plan import MemoryPlan, MemoryPlanner


@dataclass(frozen=True)
class PlanArguments:
    """Says what of a run fits where, and what it sends: marft plan [ALGO] [options of marft train] --gpus 8.

    Everything is computed from the settings and the models' configurations; no weights, no GPU and no network are
    needed. A model may be a folder with a config.json and nothing else. All options of marft train are understood:
    marft train --help-all
    """

    gpus: Annotated[int, Range(1, hint="To plan for a CPU: marft train --dry-run")] = 8
    """All that there are."""
    memory: Annotated[float, POSITIVE] = 80.0
    """Of one of them, in GB."""
    per_node: Annotated[int, COUNT] = 8
    """GPUs of one machine."""
    ranks: Annotated[int | None, COUNT] = None
    """Processes that learn, a power of two; none: chosen."""
    workers: Annotated[int | None, NOT_NEGATIVE] = None
    """Processes that only play; 0: the ranks play. None: chosen, or with --ranks all GPUs that are left."""
    worker_gpus: Annotated[int | None, COUNT] = None
    """GPUs of one worker (tensor parallel); none: as few as hold it."""
    bandwidth: Annotated[tuple[float, ...], POSITIVE] = (1.1, 40.0)
    """GB/s for which seconds are given: 1.1 is what 10 Gb/s Ethernet carries, 40 what a link of 400 Gb/s does."""


def run_plan(argv: list[str]) -> int:
    """``marft plan [ALGO] …``."""
    options, rest = arguments.parse(PlanArguments, argv, prog="marft plan", return_unknown_args=True)
    if not options.bandwidth:
        raise ConfigError("--bandwidth needs a number of GB/s, such as --bandwidth 1.1 40")
    check_packages()
    config, _ = typed_settings(rest)
    require_training()
    from marft_algos.training import setup
    from marft_algos.training.estimate import GB, shapes_of
    from marft_algos.training.layout import layouts
    from marft_algos.training.plan import GPU, MemoryPlanner
    from marft_algos.training.resolve import make_algorithm, resolve

    candidates = layouts(options.gpus, options.ranks, options.workers, options.worker_gpus, options.per_node)
    trust.check_dry(config.table())
    config, names = paths.on_disk(config)
    with closing(setup.make_env(config, config.env_kwargs)) as env:
        spec = resolve(config, env)
        make_algorithm(spec, setup.sampling(config))
        shapes = shapes_of(spec, GPU)
        planner = MemoryPlanner(spec, env, shapes, int(options.memory * GB), config.staleness)
        plan = planner.best(candidates, None if config.shard == "auto" else config.shard)
        say(f"{config.env} · {config.algo}, on {_counted(plan.layout)} of {options.memory:g} GB")
        say(_wire(planner, plan, options.bandwidth, names))
        say(_memory(planner, plan, options.memory))
        planner.check(plan)
    return 0


# Tables ---------------------------------------------------------------------------------------------------


def _wire(planner: MemoryPlanner, plan: MemoryPlan, bandwidths: Sequence[float], names: Mapping[str, str]) -> str:
    """Describes what crosses the wire."""
    from marft_algos.training.plan import episode_bytes, gathered_bytes, gradient_bytes, updates

    spec, config, ranks = planner.spec, plan.config, plan.layout.ranks
    rows = [["policy", "model", "parameters", "fp32", "bf16", *(f"at {rate:g} GB/s" for rate in bandwidths)]]
    published = updates(spec, planner.shapes)
    for each in published:
        times = [f"{_time(each.fp32, rate)}, {_time(each.bf16, rate)}" for rate in bandwidths]
        model = names.get(each.model, each.model)
        rows.append([each.policy, model, f"{each.parameters:,}", _size(each.fp32), _size(each.bf16), *times])
    kind = "all weights" if config.full_finetune else f"adapter of rank {config.lora_r}"
    lines = ["", f"what a policy publishes after an update ({kind}; to every node once; seconds of fp32, bf16):"]
    lines += [f"  {row}" for row in aligned(rows)]
    steps = config.algorithm.epochs * config.algorithm.minibatches

    def timed(n: int) -> str:
        return f"{_size(n)} ({', '.join(f'{_time(n, rate)} at {rate:g} GB/s' for rate in bandwidths)})"

    lines += ["", "what else crosses the wire:"]
    if ranks > 1:
        largest = max(published, key=lambda each: each.parameters)
        lines.append(
            f"  gradients   {timed(gradient_bytes(largest, ranks))} a rank, policy and step of the optimiser; steps"
            f" of a policy in an iteration: {steps}"
        )
    if plan.shard == "base":
        gathered = sum(gathered_bytes(shape, ranks) for shape in planner.shapes.values())
        lines.append(f"  layers      {timed(2 * gathered)} a rank and piece, forward and backward")
        if planner.plays(plan.layout):
            lines.append(f"              {timed(gathered)} a rank and iteration, to play")
    work, turns = plan.rank.work, planner.env.unwrapped.turn_limit
    vocabulary = max(shape.vocabulary for shape in planner.shapes.values())
    episode = episode_bytes(turns, work.prompt, work.new, vocabulary)
    lines.append(
        f"  episodes    {_size(episode)} each at most ({turns} turns of {work.prompt} + {work.new} tokens), "
        f"{timed(episode * config.episodes_per_iteration)} an iteration of {config.episodes_per_iteration}"
    )
    return "\n".join(lines)


def _memory(planner: MemoryPlanner, plan: MemoryPlan, memory: float) -> str:
    """Describes what fits, and who goes where."""
    from marft_algos.training.estimate import GB
    from marft_algos.training.fit import changes
    from marft_algos.training.plan import decoded_at_once

    layout = plan.layout
    lines = ["", f"memory of a rank, the base {_kept(plan.shard, layout.ranks)}:"]
    lines += [plan.rank.table()] if plan.rank.peak <= planner.room else []  # else the error shows it
    for shard in planner.shards(layout):
        other = plan if shard == plan.shard else planner.plan(layout, shard)
        word = (
            "fits"
            if other.rank.peak <= planner.room
            else "does not fit" + ", nor in smaller pieces" * plan.config.fit_memory
        )
        smaller = changes(planner.spec.config, other.config)
        lines.append(
            f"  {shard:<5}  {other.rank.peak / GB:8.2f} GB of {memory:g}: {word}{f', with {smaller}' * bool(smaller)}"
        )
    if plan.worker is not None:
        fits = plan.worker.peak <= planner.room
        lines += ["", f"memory of a worker's GPU, {memory:g} GB: {'fits' if fits else 'does not fit'}"]
        lines += [plan.worker.table()] if fits else []
    lines += (
        ["", f"what is decoded at once: {decoded_at_once(plan)}"] if planner.plays(layout) or layout.workers else []
    )
    play = "they learn and play" if not layout.workers else "ranks learn, workers play"
    lines += ["", f"where ({play}):", layout.table()]
    if layout.workers and not planner.staleness:
        lines.append("  Without --staleness ranks and workers wait for each other; with 1, both work at once.")
    if plan.excess(planner.room) <= 0:
        lines += ["", f"choose: ranks = {layout.ranks}, workers = {layout.workers}, shard = {plan.shard}"]
    return "\n".join(lines)


def _kept(shard: str, ranks: int) -> str:
    return "whole" if shard == "whole" else f"sharded over {ranks} ranks"


def _counted(layout: ProcessLayout) -> str:
    nodes = -(-layout.gpus // layout.per_node)
    cards = f"{layout.gpus} GPU{'s' * (layout.gpus > 1)}"
    return cards if nodes == 1 else f"{cards} in {nodes} nodes"


def _size(n: float) -> str:
    """Writes bytes: kB, MB, GB of powers of ten."""
    unit, name = next((u, name) for u, name in ((1e9, "GB"), (1e6, "MB"), (1.0, "B")) if n >= 10 * u or name == "B")
    if name == "B" and n >= 1000:
        unit, name = 1e3, "kB"
    shown = n / unit
    return f"{shown:,.0f} {name}" if shown >= 100 or name == "B" else f"{shown:.1f} {name}"


def _time(n: float, rate: float) -> str:
    """Writes how long so many bytes take at a rate in GB/s."""
    seconds = n / (rate * 1e9)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.{'0f' if seconds >= 0.01 else '2g'}} ms"
