"""What every generator shares: reproducible dice, the registry, the split rule."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SUBJECTS = (
    "Prealgebra", "Algebra", "Intermediate Algebra", "Number Theory",
    "Counting & Probability", "Geometry", "Precalculus",
)  # fmt: skip


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
        """Uniform integer in ``[0, n)`` (the modulo bias is below n / 2**64)."""
        if not self._words:
            block = hashlib.sha256(self._seed + str(self._blocks).encode()).digest()
            self._blocks += 1
            self._words.extend(struct.unpack("<4Q", block))
        return self._words.pop() % n

    def integer(self, low: int, high: int) -> int:
        """Uniform integer in ``[low, high]``, both ends included."""
        return low + self.below(high - low + 1)

    def nonzero(self, low: int, high: int) -> int:
        """Uniform non-zero integer in ``[low, high]``, where ``low < 0 < high``."""
        value = self.integer(low, high - 1)
        return value if value < 0 else value + 1

    def choice(self, items: Sequence[T]) -> T:
        """One item, uniformly."""
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], k: int) -> list[T]:
        """``k`` different positions of ``items``, in random order."""
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(k)]


@dataclass(frozen=True, slots=True)
class Draft:
    """What a generator writes; the id, subject and level are added around it."""

    problem: str
    steps: str
    """The worked solution without its last, boxed sentence."""
    answer: str

    @property
    def solution(self) -> str:
        return f"{self.steps} \\boxed{{{self.answer}}}"


Build = Callable[[Dice], Draft]


@dataclass(frozen=True, slots=True)
class Cell:
    """One generator at one level: ``build`` is pure, so a key names a problem for ever."""

    generator: str
    subject: str
    level: int
    build: Build
    keys: int
    """Keys run from 0 to ``keys - 1``; a small number means that a key is an index into all the problems."""


CELLS: dict[tuple[str, int], Cell] = {}
"""(generator, level) -> cell, in the order in which the modules register them."""


def cell(name: str, subject: str, level: int, keys: int = 2**32) -> Callable[[Build], Build]:
    """Registers a builder. Name and level are part of every id, so they never change."""

    def add(build: Build) -> Build:
        CELLS[name, level] = Cell(name, subject, level, build, keys)
        return build

    return add


def split_of(problem: str) -> str:
    """``"test"`` for a quarter of all problem texts, else ``"train"``: by content, so none is in both."""
    return "test" if hashlib.sha256(problem.encode()).digest()[0] % 4 == 0 else "train"
