"""Turns that older weights sampled: how many there are, and whether those weights score them as they were sampled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from marft_algos.batching import UpdateError
from marft_algos.types import Transition

SAMPLE = 8
"""Turns that are scored again an iteration: an error of the sampler shows in every one of them."""
Rescore = Callable[[Sequence[Transition]], Sequence[np.ndarray]]


class WeightSource(Protocol):
    """What this needs of a set of policies."""

    def parameters(self, policy: str) -> Sequence[Tensor]:
        """Trainable tensors."""


class WeightHistory:
    """Keeps the trained weights of the last versions in the host's memory.

    Args:
        policies: Whose weights.
        names: The policies that are trained.
        size: Versions to keep before the present one.
    """

    def __init__(self, policies: WeightSource, names: Sequence[str], size: int) -> None:
        self._policies, self._names, self._size = policies, names, size
        self._versions: dict[int, dict[str, list[Tensor]]] = {}

    def keep(self, version: int) -> None:
        """Keeps the present weights as this version's, and forgets those that are too old for the next update."""
        self._versions[version] = {
            p: [x.detach().to("cpu", copy=True) for x in self._policies.parameters(p)] for p in self._names
        }
        self._versions = {v: weights for v, weights in self._versions.items() if v > version - self._size}

    def measure(
        self, rows: Mapping[str, Sequence[Transition]], behind: Mapping[Transition, int], rescore: Rescore, limit: float
    ) -> dict[str, float]:
        """Returns the share of turns by age, and how far the sampler was off, under the weights that it sampled from.

        Args:
            rows: Turns to learn from, by policy.
            behind: Updates since they were sampled.
            rescore: Scores turns under the weights as they are.
            limit: Largest allowed mean gap per token.

        Returns:
            ``staleness/<k>/share`` of all turns, and ``staleness/<k>/gap``, mean |Δ log-prob| per token, of a few.

        Raises:
            UpdateError: A gap is too large, or a version's weights are not there.
        """
        if not behind:
            return {}
        turns = [t for part in rows.values() for t in part]
        ages = sorted({behind[t] for t in turns})
        metrics = {f"staleness/{k}/share": sum(behind[t] == k for t in turns) / len(turns) for k in ages}
        stale = [t for t in turns if behind[t]]
        sample = [stale[i * len(stale) // SAMPLE] for i in range(SAMPLE)] if len(stale) > SAMPLE else stale
        for k in ages:
            part = [t for t in sample if behind[t] == k]
            if part:
                metrics[f"staleness/{k}/gap"] = gap = self._gap(part, rescore)
                _check(gap, k, limit)
        return metrics

    def _gap(self, turns: Sequence[Transition], rescore: Rescore) -> float:
        """Returns mean |log π_learner − log π_sampler| per token of turns of one version."""
        total = 0.0
        with self._under(turns[0].reply.version):
            for policy in dict.fromkeys(t.policy for t in turns):
                part = [t for t in turns if t.policy == policy]
                gaps = [np.abs(x - t.reply.logprobs).sum() for x, t in zip(rescore(part), part, strict=True)]
                total += float(sum(gaps))
        return total / sum(len(t.reply.action_ids) for t in turns)

    @contextmanager
    def _under(self, version: int) -> Iterator[None]:
        """Puts a version's weights in the place of the present ones."""
        if version not in self._versions:
            raise UpdateError(
                f"The weights of version {version} are not kept, only those of {sorted(self._versions)}: turns that "
                "they sampled cannot be checked. Set staleness before the run starts, or begin it again: marft train"
            )
        present = {p: [x.detach().clone() for x in self._policies.parameters(p)] for p in self._names}
        self._put(self._versions[version])
        try:
            yield
        finally:
            self._put(present)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Sequence[Tensor]]) -> None:
        for policy, tensors in weights.items():
            for here, there in zip(self._policies.parameters(policy), tensors, strict=True):
                here.copy_(there)

    def state_dict(self) -> dict[str, Any]:
        """Returns the kept weights."""
        return {str(version): weights for version, weights in self._versions.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores ``state_dict``."""
        self._versions = {int(version): weights for version, weights in state.items()}


def _check(gap: float, age: int, limit: float) -> None:
    if not gap <= limit:  # not a number is no small gap
        raise UpdateError(
            f"Turns that were sampled {age} updates ago are {gap:.4f} per token off in log-probability under the "
            f"weights that sampled them (allowed: ratio_tolerance = {limit}). Check that the engine gives replies the "
            "version of the weights that sampled them, samples at the recorded temperature without top-k or top-p, and "
            "sees the same prompt; in bf16, use --old-logprobs learner --ratio-tolerance 0.1."
        )
