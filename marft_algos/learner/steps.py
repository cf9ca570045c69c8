"""What a step of an optimiser takes and says: its learning rate, a finite gradient, the numbers of its minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Adam

from marft_algos.batching import UpdateError
from marft_envs.errors import ConfigError, check_known

Added = Mapping[str, float | Tensor]
"""Numbers of a piece by name: its shares of sums, but the largest is kept of those whose name ends in ``_max``."""


class Optimiser(Protocol):
    """Owns the step of one policy: where gradients land, and what becomes of them."""

    def zero_grad(self) -> None:
        """Forgets the gradients that no step was taken with."""

    def rate(self, lr: float) -> None:
        """Sets the learning rate of the steps to come."""

    def step(self) -> float:
        """Takes a step with what has landed; returns the gradient's norm before it was clipped, 0: no step."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a step leaves to the next."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""


MakeOptimiser = Callable[[str, Sequence[Tensor], float, float, float | None], Optimiser]
"""Makes a policy's optimiser, of its name, trainable tensors, learning rate, Adam's ε and the largest norm."""


class LocalOptimiser:
    """Adam on tensors of this process.

    Args:
        name: Whose, for messages.
        parameters: Where gradients land.
        lr: Learning rate.
        eps: Adam's ε.
        max_norm: Of the gradient; None: it is not clipped.
    """

    def __init__(self, name: str, parameters: Sequence[Tensor], lr: float, eps: float, max_norm: float | None) -> None:
        self.adam = Adam(parameters, lr=lr, eps=eps, fused=True)
        self._name, self._max_norm = name, max_norm

    def zero_grad(self) -> None:
        """Frees the gradients."""
        self.adam.zero_grad(set_to_none=True)

    def rate(self, lr: float) -> None:
        """Sets the learning rate."""
        for group in self.adam.param_groups:
            group["lr"] = lr

    def step(self) -> float:
        """Clips, and steps; see the function ``step``."""
        return step(self.adam, self._name, self._max_norm)

    def state_dict(self) -> dict[str, Any]:
        """Returns Adam's means."""
        return self.adam.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores Adam's means."""
        self.adam.load_state_dict(state)


def step(optimizer: Adam, name: str, max_norm: float | None) -> float:
    """Clips the gradient, and takes the step; none where there is no gradient.

    Adam's running means would go on along the steps before: after one lucky episode in a batch, and none in the next
    ones, a policy moved six times as far in all as by the step that the episode's reward was for.

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


def rate_factor(iteration: int, warmup: int, anneal: int, first: int = 0) -> float:
    """Returns the learning rate's factor in an iteration, counted from 0.

    Args:
        iteration: Which one.
        warmup: Linear to 1 in the last of these iterations.
        anneal: Linear from 1 to .1 at this iteration, then .1; 0: 1.
        first: The first iteration in which policies are updated, from which on the warm-up counts.
    """
    risen = min((max(iteration - first, 0) + 1) / warmup, 1.0) if warmup else 1.0
    return risen * (1.0 if anneal == 0 else max(1.0 - 0.9 * iteration / anneal, 0.1))


def per_policy(setting: float | Mapping[str, float], policies: Sequence[str], name: str) -> dict[str, float]:
    """Returns one number for all policies, or one for each by id.

    Raises:
        ConfigError: An id that is unknown, or one that is missing.
    """
    if not isinstance(setting, Mapping):
        return dict.fromkeys(policies, float(setting))
    check_known(setting, policies, f"{name} names '{{}}', which is no trainable policy.")
    if missing := [p for p in policies if p not in setting]:
        raise ConfigError(f"{name} has no value for {missing}; give one number, or one for each of {list(policies)}.")
    return {p: float(setting[p]) for p in policies}


def read(pieces: Mapping[int, Added]) -> dict[int, dict[str, float]]:
    """Returns the pieces' numbers in double precision; tensors have one element, and have waited on their device."""
    tensors = [value.detach().double().reshape(()) for piece in pieces.values() for value in _tensors(piece)]
    known = iter(torch.stack(tensors).tolist() if tensors else ())
    return {
        number: {name: next(known) if isinstance(value, Tensor) else value for name, value in piece.items()}
        for number, piece in pieces.items()
    }


def summed(pieces: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the sums, added in the order of the pieces."""
    sums: dict[str, float] = {}
    for piece in pieces:
        for name, value in piece.items():
            sums[name] = max(sums.get(name, value), value) if name.endswith("_max") else sums.get(name, 0.0) + value
    return sums


def average(log: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over minibatches of each number (maximum for ``…_max``)."""
    keys = {key: [entry[key] for entry in log if key in entry] for entry in log for key in entry}
    return {key: max(v) if key.endswith("_max") else sum(v) / len(v) for key, v in keys.items()}


def _tensors(piece: Added) -> list[Tensor]:
    return [value for value in piece.values() if isinstance(value, Tensor)]
