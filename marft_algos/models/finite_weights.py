"""Weights that hold infinity or NaN are neither written nor read: a checkpoint is something to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from marft_algos.models.scoring import head_of
from marft_envs.errors import ConfigError, MarftError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights."""


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
    if names := _not_finite(dict(_tensors(state, ""))):
        raise NotFiniteError(
            f"{what} hold infinity or NaN ({len(names)} tensors; the first: {names[0]}), so they are not saved; "
            "earlier checkpoints are as they were. Go on from the last one, with smaller steps: "
            "marft train --resume RUN --lr …"
        )


def check_read(state: Any, what: str, then: str) -> None:
    """Checks all tensors of what was read: a number that is none is played, scored and trained on without a word.

    Args:
        state: As in ``check``.
        what: Which file or model it is.
        then: What to type next.

    Raises:
        ConfigError: Some hold infinity or NaN; the message names the first.
    """
    if names := _not_finite(dict(_tensors(state, ""))):
        raise ConfigError(f"{what} holds infinity or NaN ({len(names)} tensors; the first: {names[0]}). {then}")


def check_model(model: Any, spec: str) -> None:
    """Checks all weights of a model that was read, at 10 GiB/s: most are not touched by a trial run of a few tokens.

    Raises:
        ConfigError: Some are infinite or NaN.
    """
    bias = getattr(head_of(model), "bias", None)  # that of padding may be -inf: its logits tell
    weights = {name: tensor for name, tensor in model.named_parameters() if tensor is not bias}
    again = "Its weights are damaged. Save or download it again, or choose another: --models"
    check_read(weights, f"The model '{spec}'", again)


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of those that hold infinity or NaN; the host waits once a device, not once a tensor."""
    fine: dict[str, bool] = {}
    flags: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and tensor.dtype in FLOATS:  # the extremes are NaN where one number is: 20 times faster
            flags.setdefault(tensor.device, {})[name] = torch.isfinite(torch.stack(tensor.detach().aminmax())).all()
    for group in flags.values():
        fine |= zip(group, torch.stack(list(group.values())).tolist(), strict=True)
    return [name for name in tensors if not fine.get(name, True)]


def _tensors(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, Mapping | list | tuple):
        for key, inner in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _tensors(inner, f"{name}/{key}" if name else str(key))
