"""What every rank of a run holds: the base models whole or a share of them, in pieces that fit.

Each rank holds adapters, Adam's moments and value heads whole, and the frozen base ``whole`` or, of its layers, one
share (``base``). Everything is computed from shapes: no weights are read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch

from marft_algos.config.settings import TrainConfig
from marft_algos.models.loading import pick_device
from marft_algos.ranks import reduction
from marft_algos.ranks.group import RankGroup
from marft_algos.terminal import say
from marft_algos.training.estimate import BASE, GB, Estimate, MemoryItem, Shape, ceil, estimate, shapes_of
from marft_algos.training.fit import fitted, share, shrunk, tell
from marft_algos.training.resolve import RunSpec
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError

Shard = Literal["whole", "base"]


def placed(spec: RunSpec, env: FlexEnv, group: RankGroup, *, loaded: bool = False) -> tuple[RunSpec, Shard]:
    """Fits a run into the memory of its ranks: the base whole if it can be, with smaller pieces if need be.

    Args:
        spec: The run's settings, resolved.
        env: An environment of the run, reset.
        group: The ranks; all of them make this call, and get the same answer.
        loaded: The base model is there already: it stays whole, and its memory is not estimated.

    Returns:
        The run, with smaller pieces if it would not fit, and how its base models are kept.

    Raises:
        ConfigError: It does not fit, or the base cannot be sharded.
    """
    config = spec.config
    if config.shard == "base" and group.size == 1:
        raise ConfigError(
            "A base is sharded over several ranks, and this is one process. Type: --nproc 2, or --shard auto"
        )
    here = spec.here()
    if loaded or not config.check_memory or not here.local:
        return spec, "base" if config.shard == "base" else "whole"
    if group.size == 1:
        here, memory = fitted(here, env)
        memory.check(share(memory.device))
        return dataclasses.replace(spec, config=here.config), "whole"
    device = pick_device(config.device)
    room = min(group.gather(share(device)))
    ranks = RankMemory(spec, env, shapes_of(spec, device), group.size, device)
    shards: list[Shard] = ranks.shards() if config.shard == "auto" else [config.shard]
    if config.shard == "base" and "base" not in ranks.shards():
        raise ConfigError(
            "A base is sharded where its layers are known apart, it is not quantised and not trained itself. Type:"
            " --shard whole"
        )
    fits = [ranks.fitted(shard, room) for shard in shards]
    shard, (config, memory) = min(zip(shards, fits, strict=True), key=lambda fit: max(fit[1][1].peak, room))
    memory.check(room)
    if config != spec.config:
        tell(spec.config, ranks.held(shard), config, memory, room)
    if shard != spec.config.shard and shard == "base":
        whole = fits[0][1].peak
        say(f"memory: whole, a rank would need {whole / GB:.3g} GB; the base is sharded ({memory.peak / GB:.3g} GB)")
    return dataclasses.replace(spec, config=config), shard


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Estimates one of several ranks of a run."""

    spec: RunSpec
    env: FlexEnv
    shapes: Mapping[str, Shape]
    ranks: int
    device: torch.device

    def shards(self) -> list[Shard]:
        """Lists how the base can be kept: a share of it trains nothing itself."""
        config = self.spec.config
        known = all(shape.blocks for shape in self.shapes.values())
        shared = known and not config.full_finetune and config.quantize == "none"
        return ["whole", "base"] if shared else ["whole"]

    def fitted(self, shard: Shard, room: int) -> tuple[TrainConfig, Estimate]:
        """Returns the settings, with smaller pieces where a rank would not fit, and what it then holds."""
        config, memory = self.spec.config, self.held(shard)
        if memory.peak > room and config.fit_memory:
            config, memory = shrunk(config, memory, room, lambda smaller: self.held(shard, smaller))
        return config, memory

    def held(self, shard: Shard, config: TrainConfig | None = None) -> Estimate:
        """Estimates what a rank holds, with these settings instead of the run's."""
        spec = self.spec if config is None else dataclasses.replace(self.spec, config=config)
        shapes = self.shapes
        if shard == "base":  # the passes are transformers' own
            shapes = {model: dataclasses.replace(shape, packed=False) for model, shape in shapes.items()}
        alone = estimate(spec, self.env, device=self.device, shapes=shapes, processes=self.ranks)
        held = [item for item in alone.held if item.what != BASE or shard == "whole"]
        if shard == "base":
            held = [*share_of_base(self.shapes.values(), self.ranks), *held]
        heads = value_heads(spec, self.shapes) if alone.work.features else 0
        trained = [self.shapes[spec.models[policy]] for policy in spec.trained]
        largest = max((s.parameters if spec.config.full_finetune else s.adapter for s in trained), default=0)
        held += [
            MemoryItem("value heads, and Adam", 16 * heads),
            MemoryItem("sums of gradients, by reduction slots", slot_sums(self.ranks) * 4 * largest),
        ]
        phases = dict(alone.phases)
        if all(spec.endpoints[policy].kind != "native" for policy in spec.local):
            del phases["rollout"]
        elif shard == "base":
            gathered = sum(shape.blocks for shape in shapes.values())
            layers = MemoryItem("layers of the base models, gathered to play", gathered)
            phases["rollout"] = (layers, *phases["rollout"])
        return dataclasses.replace(alone, held=tuple(held), phases=phases)


def share_of_base(shapes: Collection[Shape], ranks: int) -> list[MemoryItem]:
    """Lists what one of several ranks holds of sharded base models."""
    layer = max(ceil(shape.blocks, shape.layers) for shape in shapes)
    return [
        MemoryItem("layers of the base models, a share", sum(ceil(s.blocks, ranks) for s in shapes), "more ranks"),
        MemoryItem(
            "their embeddings and heads", sum(s.weights - s.blocks for s in shapes), "a smaller model (--models)"
        ),
        MemoryItem("a layer gathered for a pass, and the next", 2 * layer),
    ]


def value_heads(spec: RunSpec, shapes: Mapping[str, Shape]) -> int:
    """Counts the parameters of the value heads, one for each policy that plays here."""
    widths = {model: (shape.hidden, *spec.config.critic_hidden, 1) for model, shape in shapes.items()}
    return sum((a + 1) * b for policy in spec.local for a, b in pairwise(widths[spec.models[policy]]))


def slot_sums(ranks: int) -> int:
    """Counts the sums of gradients that one of several ranks holds at most beside its gradient.

    They are one of each level of the tree of its slots, and the slot that is added; at the end its own and a partner's.
    """
    return max(int(math.log2(max(reduction.USUAL, ranks) // ranks)) + 1, 2)
