"""What every rank of a run holds: the base models whole or a share of them, in pieces that fit."""

from __future__ import annotations

import dataclasses

from marft_algos.models.loading import pick_device
from marft_algos.ranks.group import RankGroup
from marft_algos.terminal import say
from marft_algos.training.estimate import GB, shapes_of
from marft_algos.training.fit import fitted, share, tell
from marft_algos.training.layout import ProcessLayout
from marft_algos.training.plan import MemoryPlanner, Shard
from marft_algos.training.resolve import RunSpec
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError


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
    room = min(group.gather(share(pick_device(config.device))))
    planner = planner_of(spec, env, room)
    layout = ProcessLayout(group.size, group.size, per_node=group.size)
    plan = planner.best([layout], None if config.shard == "auto" else config.shard)
    plan.rank.check(room)
    if plan.config != config:
        tell(config, planner.rank(layout, plan.shard), plan.config, plan.rank, room)
    if plan.shard != config.shard and plan.shard == "base":
        whole = planner.plan(layout, "whole").rank.peak
        say(f"memory: whole, a rank would need {whole / GB:.3g} GB; the base is sharded ({plan.rank.peak / GB:.3g} GB)")
    return dataclasses.replace(spec, config=plan.config), plan.shard


def planner_of(spec: RunSpec, env: FlexEnv, room: int) -> MemoryPlanner:
    """Returns what estimates a rank on this machine's devices, of so many bytes."""
    device = pick_device(spec.config.device)
    return MemoryPlanner(spec, env, shapes_of(spec, device), room, device=device)
