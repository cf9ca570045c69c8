"""Numbers of a minibatch, summed over its pieces; on a GPU the host waits for them once, not once a piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor


class Numbers:
    """Sums of numbers by name, of which the largest is kept if the name ends in ``_max``.

    Args:
        names: sums that begin at 0, and come first.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._start = dict.fromkeys(names, 0.0)
        self._added: list[tuple[str, float | Tensor]] = []

    def add(self, name: str, value: float | Tensor) -> None:
        """Adds a number; a tensor with one element stays where it is until ``read``."""
        self._added.append((name, value.detach() if isinstance(value, Tensor) else value))

    def read(self) -> dict[str, float]:
        """Returns the sums, in double precision, in the order in which they were added."""
        tensors = [value.double().reshape(()) for _, value in self._added if isinstance(value, Tensor)]
        known = iter(torch.stack(tensors).tolist() if tensors else ())
        sums = dict(self._start)
        for name, added in self._added:
            value: float = next(known) if isinstance(added, Tensor) else added
            sums[name] = max(sums.get(name, value), value) if name.endswith("_max") else sums.get(name, 0.0) + value
        return sums


def average(log: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the mean over minibatches of each number (maximum for ``…_max``)."""
    keys = {key: [entry[key] for entry in log if key in entry] for entry in log for key in entry}
    return {key: max(v) if key.endswith("_max") else sum(v) / len(v) for key, v in keys.items()}
