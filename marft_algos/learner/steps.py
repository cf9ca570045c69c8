"""One step of an optimiser, by a gradient that is finite and not too long."""

from __future__ import annotations

import math

import torch
from torch.optim import Adam

from marft_algos.batching import UpdateError


def step(optimizer: Adam, name: str, max_norm: float | None) -> float:
    """Clips the gradient, and takes the step; none where there is no gradient.

    Adam's running means would go on along the steps before: after one lucky episode in a batch, and none in the next
    ones, a policy moved six times as far in all as by the step that the episode was paid for.

    Args:
        optimizer: Of one policy, or of one value head.
        name: Whose, for messages.
        max_norm: Of the gradient; None: it is not clipped.

    Returns:
        The gradient's norm before it was clipped; 0: no step was taken.

    Raises:
        UpdateError: The gradient is not finite.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm))
    if not math.isfinite(norm):
        raise UpdateError(f"The gradient of '{name}' has norm {norm}; lower its learning rate or the reward's scale.")
    if norm:
        optimizer.step()
    return norm
