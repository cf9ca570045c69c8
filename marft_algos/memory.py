"""How much is computed at once; and when memory runs out, half of it, once: then an error names the setting."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence

from marft_algos.lazy import torch
from marft_envs.errors import MarftError

PASS_TOKENS = 256
"""Pads that may cost less than a pass of its own for what would be padded."""


class OutOfMemory(MarftError, RuntimeError):
    """Memory ran out, and nothing here makes up for it.

    Args:
        message: What happened, and what to type.
        tried: How much was computed at once; 0: that does not help.
        alone: Other ranks know nothing of it, and wait.
    """

    def __init__(self, message: str, *, tried: int = 0, alone: bool = False) -> None:
        super().__init__(message)
        self.tried, self.alone = tried, alone


def passes(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Splits rows into passes, longest first: at most ``budget`` padded tokens each (but at least one row), few pads.

    Args:
        lengths: of the rows, in tokens.
        budget: padded tokens at once.

    Returns:
        Numbers of rows, pass by pass.
    """
    rows: list[list[int]] = []
    longest = pads = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        pads += longest - lengths[i]
        size = longest * (len(rows[-1]) + 1) if rows else 0
        if not rows or size > budget or pads > max(PASS_TOKENS, size // 8):
            rows.append([])
            longest, pads = lengths[i], 0
        rows[-1].append(i)
    return rows


class Budget:
    """How much of something is computed at once.

    The work stands in a loop over the sizes to try, so that it can be repeated; in most cases there is one::

        for size in budget.sizes(len(rows)):
            with budget:
                replies = decode(rows, size)

    Args:
        size: to start with.
        unit: what is counted, for messages.
        flag: the setting to lower, for messages.
        again: whether the work can be repeated: not where other processes wait in the middle of it.
    """

    def __init__(self, size: int, unit: str, flag: str, again: bool = True) -> None:
        self.size, self._unit, self._flag, self._again = size, unit, flag, again
        self._tried, self._halved = size, False

    def sizes(self, wanted: int) -> Iterator[int]:
        """Yields the size to compute with; a second one, half as large, if memory runs out within ``with budget``.

        Args:
            wanted: how much there is in all: half of what was really tried is half of the smaller of both.
        """
        size = self.size
        self._tried = min(size, wanted)
        yield size
        if self.size == size:
            return
        gc.collect()  # here, because the error with all that its frames held is gone by now
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        warnings.warn(
            f"Memory ran out with {self._tried} {self._unit} at once; going on with {self.size} (set {self._flag} to"
            " that).",
            stacklevel=3,
        )
        yield from self.sizes(wanted)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Halves the size if memory ran out for the first time in this object's life.

        Raises:
            OutOfMemory: it was halved before, or cannot be, or the work cannot be repeated.
        """
        if error is None or not out_of_memory(error):
            return False
        if self._halved or self._tried < 2 or not self._again:
            raise OutOfMemory(
                f"Memory ran out with {self._tried} {self._unit} at once. Lower {self._flag} below {self._tried}.",
                tried=self._tried,
                alone=not self._again,
            ) from error
        self._halved, self.size = True, self._tried // 2
        return True


def out_of_memory(error: BaseException) -> bool:
    """Returns whether an error says that memory ran out, on a GPU or on a CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
