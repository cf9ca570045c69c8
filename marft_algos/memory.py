"""What happens when memory runs out: the work is cut in half once and goes on; then an error names the setting."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from marft_envs.errors import MarftError

T = TypeVar("T")


class OutOfMemory(MarftError, RuntimeError):
    """Memory ran out, again."""


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
