"""What every generator shares: reproducible dice, the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft_envs.dice import Dice

SUBJECTS = (
    "Prealgebra", "Algebra", "Intermediate Algebra", "Number Theory",
    "Counting & Probability", "Geometry", "Precalculus",
)  # fmt: skip


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
