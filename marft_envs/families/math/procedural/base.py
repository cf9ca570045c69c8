"""What every generator shares: the registry, and the words in which its numbers are put."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from marft_envs import tables
from marft_envs.families.math.procedural.latex import Number, frac
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import ProblemWriter
from marft_envs.problems.words import filled

_TABLES: Mapping[str, Mapping[str, Any]] = tables.read(__package__, "words")
SUBJECTS = tuple(dict.fromkeys(table["subject"] for table in _TABLES.values()))

Values = Mapping[str, Number | str]
"""Name in ``words.toml`` -> what stands there; ``answer`` is the gold answer. Fractions are written as LaTeX."""
Build = Callable[[Dice], Values]


def written(generator: str, level: int, values: Values) -> tuple[str, str, str]:
    """Returns problem, worked solution and answer of a variant."""
    shown = {name: frac(value) if isinstance(value, Fraction) else value for name, value in values.items()}
    words, answer = _TABLES[generator][str(level)], shown["answer"]
    return filled(words["problem"], shown), f"{filled(words['steps'], shown)} \\boxed{{{answer}}}", str(answer)


VARIANTS: dict[tuple[str, int], ProblemWriter] = {}
"""(generator, level) -> what writes its problems, in the order in which the modules register them."""


def variant(name: str, level: int, keys: int = 2**32) -> Callable[[Build], Build]:
    """Registers a builder. Name and level are part of every id, so they never change."""

    def add(build: Build) -> Build:
        VARIANTS[name, level] = ProblemWriter(build, keys, _TABLES[name]["subject"])
        return build

    return add
