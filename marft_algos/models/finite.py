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
    found = [name for name, tensor in _tensors(state, "") if not bool(torch.isfinite(tensor).all())]
    if found:
        raise NotFiniteError(
            f"{what} hold infinity or NaN ({len(found)} tensors; the first: {found[0]}), so they are not saved; "
            "earlier checkpoints are as they were. Go on from the last one, with smaller steps: "
            "marft train --resume RUN --lr …"
        )


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping | list | tuple):
        for key, inner in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _tensors(inner, f"{name}/{key}" if name else str(key))
