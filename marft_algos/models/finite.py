"""Weights that hold infinity or NaN are never written: a checkpoint is something to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from marft_envs.errors import MarftError


class NotFiniteError(MarftError, RuntimeError):
    """Weights that have blown up."""


def check(state: Any, what: str) -> None:
    """Checks all tensors in nested mappings and sequences.

    Args:
        state: Tensors by name, or a state that holds some.
        what: Whose they are, for the message.

    Raises:
        NotFiniteError: Some hold infinity or NaN.
    """
    names = _not_finite(dict(_tensors(state, "")))
    if names:
        raise NotFiniteError(
            f"{what} hold infinity or NaN ({len(names)} tensors; the first: {names[0]}), so they are not saved; "
            "earlier checkpoints are as they were. Go on from the last one, with smaller steps: "
            "marft train --resume RUN --lr …"
        )


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of those that hold infinity or NaN; the host waits once a device, not once a tensor."""
    flags: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        flags.setdefault(tensor.device, {})[name] = torch.isfinite(tensor).all()
    fine = {
        name: good
        for group in flags.values()
        for name, good in zip(group, torch.stack(list(group.values())).tolist(), strict=True)
    }
    return [name for name in tensors if not fine[name]]


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping | list | tuple):
        for key, inner in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _tensors(inner, f"{name}/{key}" if name else str(key))
