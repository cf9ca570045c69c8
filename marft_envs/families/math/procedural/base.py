"""What every generator shares: reproducible dice, the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import ProblemWriter

SUBJECTS = (
    "Prealgebra", "Algebra", "Intermediate Algebra", "Number Theory",
    "Counting & Probability", "Geometry", "Precalculus",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MathDraft:
    """What a generator writes; the id, subject and level are added around it."""

    problem: str
    steps: str
    """The worked solution without its last, boxed sentence."""
    answer: str

    @property
    def solution(self) -> str:
        return f"{self.steps} \\boxed{{{self.answer}}}"


Build = Callable[[Dice], MathDraft]


CELLS: dict[tuple[str, int], ProblemWriter] = {}
"""(generator, level) -> cell, in the order in which the modules register them."""


def cell(name: str, subject: str, level: int, keys: int = 2**32) -> Callable[[Build], Build]:
    """Registers a builder. Name and level are part of every id, so they never change."""

    def add(build: Build) -> Build:
        CELLS[name, level] = ProblemWriter(build, keys, subject)
        return build

    return add
