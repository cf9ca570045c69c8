"""Supervised fine-tuning on demonstrations: what ``marft sft`` starts a team from, before reinforcement learning.

    loss = −(1/T) Σ log π(y)  over the T tokens that agents say in demonstrations, each agent's under its own policy

Demonstrations are whole episodes of the team, rendered as training renders them, so every agent learns to answer the
prompts that it will meet, the others' words in them. Only episodes that succeed are learnt from; those that the grader
rejects are counted. Nothing is sampled from the policies, so there is no ratio and no check of one.

Departures: none from the usual; the loss of an iteration's minibatch is a mean over its tokens, not over its turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from marft_algos import credit
from marft_algos.algorithms.base import Algorithm, UpdateConfig, register
from marft_algos.batching import Batch, Level
from marft_algos.lazy import Tensor
from marft_algos.ranges import COUNT, RATE
from marft_algos.types import Estimates, Trajectory


@dataclass(frozen=True)
class SFTConfig(UpdateConfig):
    """Settings of supervised fine-tuning; those it shares with every algorithm are inherited."""

    offline, rewarded = True, False

    demonstrations: str = "expert"
    """Where episodes come from: ``expert`` (the task's own, see ``TaskDefaults.expert``), a JSONL file of recorded
    episodes, or a run, whose successful episodes are taken."""
    lr: Annotated[float | dict[str, float], RATE] = 5e-4
    """Adam step size. 5e-4: a usual one for adapters of rank 8, ten times that of reinforcement."""
    minibatches: Annotated[int, COUNT] = 8
    """Optimiser steps per pass; with 64 episodes of two turns, 16 replies a step."""


@register("sft")
class SFT(Algorithm):
    """Imitates demonstrations."""

    Config: ClassVar[type[UpdateConfig]] = SFTConfig
    level: Level = "action"
    imitates = True

    def credit(self, trajectories: Sequence[Trajectory], estimates: Estimates) -> dict[str, float]:
        """Weighs every demonstration alike."""
        estimates.advantages |= credit.spread(trajectories, [1.0] * len(trajectories))
        return {}

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Returns the negative log-likelihood, a mean over tokens."""
        return self.reduce(-logprobs * batch.advantages[:, None], batch), {}
