"""Numbers of a minibatch, summed over its pieces; on a GPU the host waits for them once, not once a piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Added = Mapping[str, float | Tensor]
"""Numbers of a piece by name: its shares of sums, but the largest is kept of those whose name ends in ``_max``."""


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
