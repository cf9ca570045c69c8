"""Draws reproducible random numbers, of which procedural problems are made."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A random stream that is a pure function of its seed text.

    SHA-256 in counter mode, because neither ``random.randrange`` nor ``numpy.random.Generator`` promises the
    same draws in every version, and a problem's id must name the same problem for ever.
    """

    def __init__(self, seed: str, key: int) -> None:
        self.key = key
        self._seed = f"{seed}/{key}/".encode()
        self._blocks = 0
        self._words: list[int] = []

    def below(self, n: int) -> int:
        """Draws a uniform integer in ``[0, n)`` (the modulo bias is below n / 2**64)."""
        if not self._words:
            block = hashlib.sha256(self._seed + str(self._blocks).encode()).digest()
            self._blocks += 1
            self._words.extend(struct.unpack("<4Q", block))
        return self._words.pop() % n

    def integer(self, low: int, high: int) -> int:
        """Draws a uniform integer in ``[low, high]``, both ends included."""
        return low + self.below(high - low + 1)

    def nonzero(self, low: int, high: int) -> int:
        """Draws a uniform non-zero integer in ``[low, high]``, where ``low < 0 < high``."""
        value = self.integer(low, high - 1)
        return value if value < 0 else value + 1

    def choice(self, items: Sequence[T]) -> T:
        """Draws one item, uniformly."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """Draws ``k`` different positions of ``items``, in random order."""
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(k)]
