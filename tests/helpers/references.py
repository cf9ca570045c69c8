"""Textbook formulas that others are tested against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marft_algos.functional import Array


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    mask: Sequence[bool],
    gamma: float,
    lam: float,
    bootstrap: float = 0.0,
) -> tuple[Array, Array]:
    """Plain GAE over one sequence of steps (arXiv 1506.02438); steps outside ``mask`` do not exist.

    Args:
        rewards: [T], paid after each step.
        values: [T], V before each step; what stands at masked steps has no influence.
        mask: [T], True where the step counts.
        gamma: Discount per counted step.
        lam: λ.
        bootstrap: V after the last counted step.

    Returns:
        Advantages and returns [T]; 0 outside ``mask``.
    """
    advantages, returns = np.zeros(len(values)), np.zeros(len(values))
    next_value, next_advantage = float(bootstrap), 0.0
    for t in reversed(np.flatnonzero(np.asarray(mask, dtype=bool))):
        delta = rewards[t] + gamma * next_value - values[t]
        advantages[t] = delta + gamma * lam * next_advantage
        returns[t] = advantages[t] + values[t]
        next_value, next_advantage = float(values[t]), float(advantages[t])
    return advantages, returns
