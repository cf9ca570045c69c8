"""GSPO: GRPO with the ratio and the clip on whole replies (arXiv 2507.18071).

    s_k  = exp( (1/L) Σ_t (log π_θ − log π_old)_{k,t} )
    loss = mean over turns of −min(s·A, clip(s, 1 − 3e-4, 1 + 4e-4)·A)

The same number as MARFT's token-normalised action ratio. A mean over tokens hardly moves: hence the tiny clip; read
``clip_share``.

Departures: a sequence is a turn, and ``turn_mean`` is GRPO's. No KL by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from marft_algos import functional as F
from marft_algos.algorithms.base import GroupConfig, register
from marft_algos.algorithms.grpo import GRPO, GRPOConfig
from marft_algos.batching import Batch
from marft_algos.lazy import Tensor
from marft_algos.ranges import COUNT, NOT_NEGATIVE, POSITIVE, Range


@dataclass(frozen=True)
class GSPOConfig(GRPOConfig):
    """Settings of GSPO; those it shares with GRPO and every algorithm are inherited."""

    group_size: Annotated[int, COUNT] = 16
    """Episodes of each start: the paper's."""
    clip: Annotated[float, Range(0.0, 1.0, open_low=True)] = 3e-4
    """Lower ε on the ratio of a reply: the paper's."""
    clip_high: Annotated[float | None, POSITIVE] = 4e-4
    """Upper ε on the ratio of a reply: the paper's."""
    kl_coef: Annotated[float, NOT_NEGATIVE] = 0.0
    """Off: the paper's."""


@register("gspo")
class GSPO(GRPO):
    """Group sequence policy optimisation."""

    Config: ClassVar[type[GroupConfig]] = GSPOConfig

    def surrogate(self, logprobs: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Returns the clipped surrogate on replies."""
        new = F.action_logprobs(logprobs, batch.mask, "token", batch.n_words)
        old = F.action_logprobs(batch.old_logprobs, batch.mask, "token", batch.n_words)
        mean = partial(self.mean_turns, batch=batch)
        return self.clipped(F.ratio(new, old), batch.advantages, batch, mean=mean)
