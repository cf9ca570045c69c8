"""Fits a run into the memory that there is: less is computed at once, and the results are the same but for rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.group import local_size
from marft_algos.terminal import say
from marft_algos.training.estimate import GB, Estimate, capacity, estimate
from marft_algos.training.resolve import RunSpec
from marft_envs import FlexEnv

SHARE = 0.8
"""Of the memory that a fitted run is estimated to take: estimates are off by a fifth."""
PIECE = {"cpu": 1024, "cuda": 4096}
"""Tokens below which pieces cost speed; layers are computed again before they are cut further."""


def fitted(
    spec: RunSpec, env: FlexEnv, room: int | None = None, device: torch.device | None = None
) -> tuple[RunSpec, Estimate]:
    """Returns the run, with smaller pieces if it would not fit, and its estimate; says what it changed.

    Rollouts are decoded in smaller batches (``engine_batch``); updates run in smaller pieces (``micro_tokens``), then
    with ``gradient_checkpointing``. Where that is not enough, the settings are left as they are.

    Args:
        spec: The run's settings, resolved.
        env: An environment of the run, reset.
        room: Bytes of the device; by default asked of it.
        device: Instead of the one that the settings name.
    """
    first = now = estimate(spec, env, device=device)
    room = share(now.device) if room is None else room
    config = spec.config
    if now.peak <= room or not config.fit_memory:
        return spec, now
    config, now = shrunk(config, now, room, lambda c: estimate(dataclasses.replace(spec, config=c), env, device=device))
    if now.peak > room:
        return spec, first
    tell(spec.config, first, config, now, room)
    return dataclasses.replace(spec, config=config), now


def tell(before: TrainConfig, first: Estimate, after: TrainConfig, now: Estimate, room: int) -> None:
    """Says what was made smaller."""
    say(
        f"memory: {first.peak / GB:.3g} GB would be needed and there are {room / GB:.3g}; taking"
        f" {changes(before, after)} ({now.peak / GB:.3g} GB; results are the same but for rounding)"
    )


def share(device: torch.device) -> int:
    """Returns the bytes that this process can use; ranks of one machine share its memory."""
    return capacity(device) // (local_size() if device.type == "cpu" else 1)


def shrunk(
    config: TrainConfig, now: Estimate, room: int, of: Callable[[TrainConfig], Estimate]
) -> tuple[TrainConfig, Estimate]:
    """Returns settings with smaller pieces, and their estimate: with room to spare, or the smallest that there are.

    Args:
        config: What does not fit.
        now: Its estimate.
        room: Bytes of the device.
        of: Estimates settings.
    """
    while now.peak > SHARE * room:
        if (smaller := _smaller(config, now)) is None:
            break
        config, now = smaller, of(smaller)
    return config, now


def _smaller(config: TrainConfig, now: Estimate) -> TrainConfig | None:
    """Returns settings that take less in the phase that takes most; None where nothing is left to make smaller."""
    work = now.work
    row = work.prompt + work.new
    if now.worst == "rollout" and work.rows > 1:
        return dataclasses.replace(config, engine_batch=work.rows // 2)
    if now.worst != "update":
        return None
    if work.micro > (least := max(PIECE[now.device.type], row)):
        return _cut(config, max(work.micro // 2, least))
    if not config.gradient_checkpointing:
        return dataclasses.replace(config, gradient_checkpointing=True)
    return _cut(config, max(work.micro // 2, row)) if work.micro > row else None


def _cut(config: TrainConfig, micro_tokens: int) -> TrainConfig:
    return dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, micro_tokens=micro_tokens))


def changes(before: TrainConfig, after: TrainConfig) -> str:
    """Returns what one would have typed."""
    said = []
    if after.engine_batch != before.engine_batch:
        said.append(f"--engine-batch {after.engine_batch}")
    if after.algorithm.micro_tokens != before.algorithm.micro_tokens:
        said.append(f"--micro-tokens {after.algorithm.micro_tokens}")
    if after.gradient_checkpointing != before.gradient_checkpointing:
        said.append("--gradient-checkpointing")
    return " ".join(said)
