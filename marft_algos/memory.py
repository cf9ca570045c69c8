"""How much is computed at once; and when memory runs out, half of it, once: then an error names the setting."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from marft_algos.lazy import torch
from marft_envs.errors import MarftError

T = TypeVar("T")
PASS_TOKENS = 256
"""Pads that may cost less than a pass of its own for what would be padded."""


class OutOfMemory(MarftError, RuntimeError):
    """Memory ran out, again."""


def passes(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Splits rows into passes, longest first: at most ``budget`` padded tokens each (but at least one row), few pads.

    Args:
        lengths: of the rows, in tokens.
        budget: padded tokens at once.

    Returns:
        Numbers of rows, pass by pass.
    """
    found: list[list[int]] = []
    longest = pads = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        pads += longest - lengths[i]
        size = longest * (len(found[-1]) + 1) if found else 0
        if not found or size > budget or pads > max(PASS_TOKENS, size // 8):
            found.append([])
            longest, pads = lengths[i], 0
        found[-1].append(i)
    return found


class Budget:
    """How much of something is computed at once.

    Args:
        size: to start with.
        unit: what is counted, for messages.
        flag: the setting to lower, for messages.
    """

    def __init__(self, size: int, unit: str, flag: str) -> None:
        self.size, self._unit, self._flag = size, unit, flag
        self._halved = False

    def run(self, work: Callable[[int], T], wanted: int) -> T:
        """Returns ``work(size)``; if memory runs out, once in this object's life, ``work`` runs again at half.

        Args:
            work: what to do with at most that much at once; must stand to be repeated.
            wanted: how much there is in all: half of what was really tried is half of the smaller of both.

        Raises:
            OutOfMemory: it was halved before, or cannot be.
        """
        try:
            return work(self.size)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            tried = min(self.size, wanted)
            if self._halved or tried < 2:
                raise OutOfMemory(
                    f"Memory ran out with {tried} {self._unit} at once. Lower {self._flag} below {tried}."
                ) from error
        self._halved, self.size = True, tried // 2
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"Memory ran out with {tried} {self._unit} at once; going on with {self.size} (set {self._flag} to that).",
            stacklevel=3,
        )
        return self.run(work, wanted)


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out, on a GPU or on a CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
