"""Value heads with normalised targets (MAPPO's ValueNorm, arXiv 2103.01955): heads predict (V − μ)/σ of the returns.

Everything outside sees values in the rewards' units, and so do the loss's clip and Huber's δ. A head whose targets
have not been seen yet is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from marft_algos.algorithms.base import ValueHeads
from marft_algos.functional import Reals, ValueNorm
from marft_algos.types import Transition


class NormalisedCritics:
    """Wraps value heads; one running mean and variance per policy.

    Args:
        critics: The heads.
        beta: How much of the old statistics stays at an update.
    """

    def __init__(self, critics: ValueHeads, beta: float) -> None:
        self._critics = critics
        self._norms = {policy: ValueNorm(beta) for policy in critics.policies}

    @property
    def policies(self) -> list[str]:
        """Policies that have a head."""
        return self._critics.policies

    @property
    def device(self) -> torch.device:
        """Where the heads are."""
        return self._critics.device

    def parameters(self, policy: str) -> Sequence[Tensor]:
        """Trainable tensors of one head."""
        return self._critics.parameters(policy)

    def featurise(self, transitions: Sequence[Transition], *, view: Any, level: Any) -> Mapping[Transition, Tensor]:
        """Returns features of turns."""
        return self._critics.featurise(transitions, view=view, level=level)

    def values(self, policy: str, features: Tensor) -> Tensor:
        """[N, d] -> [N] fp32, in the rewards' units."""
        mean, std = self._norms[policy].statistics
        return self._critics.values(policy, features) * std + mean

    def update(self, policy: str, returns: Reals) -> None:
        """Updates the statistics: once per iteration, before the fit."""
        self._norms[policy].update(returns)

    def state_dict(self) -> dict[str, dict[str, float]]:
        """Returns the running sums of every policy."""
        return {policy: norm.state_dict() for policy, norm in self._norms.items()}

    def load_state_dict(self, state: Mapping[str, dict[str, float]]) -> None:
        """Restores ``state_dict``."""
        for policy, sums in state.items():
            self._norms[policy].load_state_dict(sums)
