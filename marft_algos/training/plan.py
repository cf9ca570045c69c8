"""Plans a run on several GPUs: what fits where, and what crosses the wire.

Everything is computed from shapes, that is, from settings and models' configurations: no weights are read, and no GPU
is asked. Ranks learn; each holds adapters, Adam's moments and value heads whole, and the frozen base ``whole`` or, of
its layers, one share (``base``). Workers only play.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from marft_algos.config.settings import TrainConfig
from marft_algos.ranks import lanes
from marft_algos.rollout.panel import CHUNK, chunk_of
from marft_algos.training.estimate import (
    BASE,
    CUDA_CONTEXT,
    GB,
    Estimate,
    MemoryItem,
    Shape,
    estimate,
    in_flight,
    rollout_items,
)
from marft_algos.training.fit import shrunk
from marft_algos.training.layout import ProcessLayout, ceil, most_workers
from marft_algos.training.resolve import RunSpec
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError

Shard = Literal["whole", "base"]
GPU = torch.device("cuda")
MOST_RANKS = 1024
"""Largest number of ranks that is proposed."""

# An episode on the wire is its pickled trajectory, counted over short and long ones (tests/training/test_plan.py).
EPISODE, TURN = 300, 300
"""Bytes of an episode, and of a turn, without tokens and texts."""
TEXT = 4
"""Bytes of text a token: the prompt's messages, and the reply."""
LOGPROB = 4
"""Bytes of a log-probability, fp32."""


# What crosses the wire --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Update:
    """Names what a policy publishes after an update: its adapter, or all of its weights."""

    policy: str
    model: str
    parameters: int

    @property
    def fp32(self) -> int:
        """Returns the bytes in fp32, as trained."""
        return 4 * self.parameters

    @property
    def bf16(self) -> int:
        """Returns the bytes in bf16, as engines compute with them."""
        return 2 * self.parameters


def updates(spec: RunSpec, shapes: Mapping[str, Shape]) -> list[Update]:
    """Lists what each trained policy publishes."""
    whole = spec.config.full_finetune
    trained = [(policy, spec.models[policy], shapes[spec.models[policy]]) for policy in spec.trained]
    return [Update(policy, model, shape.parameters if whole else shape.adapter) for policy, model, shape in trained]


def gradient_bytes(update: Update, ranks: int) -> int:
    """Returns the bytes that a rank sends for one optimiser step: one gradient, fp32, to a partner of each level."""
    return update.fp32 * int(math.log2(ranks))


def gathered_bytes(shape: Shape, ranks: int) -> int:
    """Returns the bytes that a rank receives to run all layers of a sharded base once, forward or backward."""
    return shape.blocks - ceil(shape.blocks, ranks)


def episode_bytes(turns: int, prompt: int, reply: int, vocabulary: int) -> int:
    """Returns the bytes of an episode without features: token ids, log-probabilities, texts and records.

    Args:
        turns: Of all agents.
        prompt: Tokens of a turn's prompt.
        reply: Tokens of its reply.
        vocabulary: Of the model; larger ids take more bytes, as pickle writes them.
    """
    token = 2 if vocabulary <= 1 << 8 else 3 if vocabulary <= 1 << 16 else 5
    return EPISODE + turns * (TURN + prompt * (token + TEXT) + reply * (token + TEXT + LOGPROB))


# What fits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Says what every process holds under one layout."""

    layout: ProcessLayout
    shard: Shard
    config: TrainConfig
    """The settings, with smaller pieces where a rank would not fit."""
    rank: Estimate
    worker: Estimate | None

    def excess(self, room: int) -> int:
        """Returns the bytes by which its largest process exceeds a card; at most 0: all fit."""
        return max(each.peak - room for each in (self.rank, self.worker) if each is not None)


@dataclass(frozen=True, slots=True)
class MemoryPlanner:
    """Estimates ranks and workers of one run."""

    spec: RunSpec
    env: FlexEnv
    shapes: Mapping[str, Shape]
    room: int
    """Bytes of a card."""
    staleness: int = 0
    """Versions that an episode may be old: so many more adapters stay on a worker."""
    device: torch.device = GPU

    def shards(self, layout: ProcessLayout) -> list[Shard]:
        """Lists how the base can be kept under a layout: a share of it trains nothing itself."""
        config = self.spec.config
        known = all(shape.blocks for shape in self.shapes.values())
        shared = layout.ranks > 1 and known and not config.full_finetune and config.quantize == "none"
        return ["whole", "base"] if shared else ["whole"]

    def rank(self, layout: ProcessLayout, shard: Shard, config: TrainConfig | None = None) -> Estimate:
        """Estimates one rank."""
        spec = self.spec if config is None else dataclasses.replace(self.spec, config=config)
        shapes = self.shapes
        if shard == "base":  # the passes are transformers' own
            shapes = {model: dataclasses.replace(shape, packed=False) for model, shape in shapes.items()}
        alone = estimate(spec, self.env, device=self.device, shapes=shapes, processes=layout.ranks)
        held = [item for item in alone.held if item.what != BASE or shard == "whole"]
        if shard == "base":
            held = [*share_of_base(self.shapes.values(), layout.ranks), *held]
        heads = value_heads(spec, self.shapes) if alone.work.features else 0
        trained = [update.fp32 for update in updates(spec, self.shapes)]
        held += [
            MemoryItem("value heads, and Adam", 16 * heads),
            MemoryItem("sums of gradients, by lanes", lane_sums(layout.ranks) * max(trained, default=0)),
        ]
        phases = {name: parts for name, parts in alone.phases.items() if name != "rollout" or self.plays(layout)}
        if shard == "base" and "rollout" in phases:
            phases["rollout"] = (
                MemoryItem("layers of the base models, gathered to play", sum(s.blocks for s in shapes.values())),
                *phases["rollout"],
            )
        return dataclasses.replace(alone, held=tuple(held), phases=phases)

    def worker(self, layout: ProcessLayout) -> Estimate:
        """Estimates one GPU of one worker."""
        config, gpus = self.spec.config, layout.worker_gpus
        alone = estimate(self.spec, self.env, device=self.device, shapes=self.shapes, processes=layout.workers)
        work = dataclasses.replace(alone.work, rows=in_flight(config, layout.workers), features=0)
        largest = max(self.shapes.values(), key=lambda shape: shape.layers * shape.keys * shape.element)
        adapters = sum(self.shapes[model].adapter * self.shapes[model].element for model in self.spec.models.values())
        more = f"--worker-gpus {2 * gpus}"
        held = (
            MemoryItem(BASE, ceil(sum(shape.weights for shape in self.shapes.values()), gpus), more),
            MemoryItem("adapters of all versions that are played", (self.staleness + 2) * adapters),
            MemoryItem("the GPU's own", CUDA_CONTEXT),
        )
        parts = rollout_items(config, largest, work)
        decoding = tuple(dataclasses.replace(part, bytes=ceil(part.bytes, gpus)) for part in parts)
        return Estimate(self.device, held, {"rollout": decoding}, work)

    def plan(self, layout: ProcessLayout, shard: Shard) -> MemoryPlan:
        """Plans one layout; where a rank does not fit, with smaller pieces, as a run would take them."""
        config, rank = self.spec.config, self.rank(layout, shard)
        if rank.peak > self.room and config.fit_memory:
            config, rank = shrunk(config, rank, self.room, lambda c: self.rank(layout, shard, c))
        return MemoryPlan(layout, shard, config, rank, self.worker(layout) if layout.workers else None)

    def best(self, layouts: Sequence[ProcessLayout], shard: Shard | None = None) -> MemoryPlan:
        """Returns the first layout that fits, the base whole if it can be; where none does, what exceeds least.

        Raises:
            ConfigError: The base cannot be kept so under any of them.
        """
        pairs = [(layout, each) for layout in layouts for each in self.shards(layout) if shard in (None, each)]
        if not pairs:
            raise ConfigError(
                "A base is sharded over two ranks or more, its layers known, not quantised and not trained itself."
                " Type: --shard whole, or --ranks 2"
            )
        plans: list[MemoryPlan] = []
        for layout, each in pairs:
            plans.append(self.plan(layout, each))
            if plans[-1].excess(self.room) <= 0:
                return plans[-1]
        return min(plans, key=lambda plan: plan.excess(self.room))

    def check(self, plan: MemoryPlan) -> None:
        """Refuses a plan that does not fit.

        Raises:
            ConfigError: With the parts, and what would fit.
        """
        for name, process in (("rank", plan.rank), ("worker", plan.worker)):
            if process is None or process.peak <= self.room:
                continue
            try:
                process.check(self.room)
            except ConfigError as error:
                ways = [*self._more_ranks(plan, name), f"cards of {process.peak / GB:.3g} GB (--memory)"]
                raise ConfigError(f"A {name} does not fit. {error} What would hold it: {', or '.join(ways)}.") from None

    def _more_ranks(self, plan: MemoryPlan, name: str) -> Iterator[str]:
        """Proposes the least number of ranks over which the sharded base fits."""
        layout = plan.layout
        ranks = max(layout.ranks, 2)
        while name == "rank" and ranks <= MOST_RANKS:
            workers, gpus = layout.workers or 1, max(ranks, layout.gpus)
            while most_workers(gpus, ranks, layout.worker_gpus, layout.per_node) < workers:
                gpus = (gpus // layout.per_node + 1) * layout.per_node
            wider = ProcessLayout(gpus, ranks, workers, layout.worker_gpus, layout.per_node)
            if "base" in self.shards(wider) and self.plan(wider, "base").rank.peak <= self.room:
                yield f"--gpus {wider.gpus} --ranks {ranks} --workers {workers}, the base sharded"
                return
            ranks *= 2

    def plays(self, layout: ProcessLayout) -> bool:
        """Returns whether ranks decode: nobody else does, and not all policies are played by servers."""
        native = any(self.spec.endpoints[policy].kind == "native" for policy in self.spec.local)
        return native and not layout.workers


def decoded_at_once(plan: MemoryPlan) -> str:
    """Describes a chunk, and the rows that a GPU decodes together."""
    config, layout, episodes = plan.config, plan.layout, plan.config.episodes_per_iteration
    players = layout.workers or config.lanes or lanes.usual(layout.ranks)
    chunk = config.chunk if players == 1 and not layout.workers else chunk_of(config, players, on_gpus=True)
    players_named = f"{players} {'worker' if layout.workers else 'lane'}{'s' * (players > 1)}"
    share = f"{episodes} over {players_named}, at least {CHUNK}, at most --engine-batch {config.engine_batch}"
    chosen = "--chunk" if config.chunk else share if chunk else "all of an iteration"
    rows = min(chunk or episodes, episodes, config.num_envs or episodes, config.engine_batch)
    return f"a chunk of {chunk or episodes} episodes ({chosen}); rows in flight on a GPU: {rows}"


def share_of_base(shapes: Collection[Shape], ranks: int) -> list[MemoryItem]:
    """Lists what one of several ranks holds of sharded base models."""
    layer = max(ceil(shape.blocks, shape.layers) for shape in shapes)
    return [
        MemoryItem("layers of the base models, a share", sum(ceil(s.blocks, ranks) for s in shapes), "more --ranks"),
        MemoryItem(
            "their embeddings and heads", sum(s.weights - s.blocks for s in shapes), "a smaller model (--models)"
        ),
        MemoryItem("a layer gathered for a pass, and the next", 2 * layer),
    ]


def value_heads(spec: RunSpec, shapes: Mapping[str, Shape]) -> int:
    """Counts the parameters of the value heads, one for each policy that plays here."""
    widths = {model: (shape.hidden, *spec.config.critic_hidden, 1) for model, shape in shapes.items()}
    return sum((a + 1) * b for policy in spec.local for a, b in pairwise(widths[spec.models[policy]]))


def lane_sums(ranks: int) -> int:
    """Counts the sums of gradients that a rank holds at most beside its gradient.

    They are one of each level of the tree of its lanes, and the lane that is added; at the end its own and a partner's.
    """
    return max(int(math.log2(max(lanes.USUAL, ranks) // ranks)) + 1, 2) if ranks > 1 else 0
