"""Problems made from nothing: generators over the seven MATH subjects and levels 0 to 5.

Every problem is a pure function of its id, ``procedural/<generator>/<level>/<key>``. Train and test are
disjoint by content: the SHA-256 of the problem text decides (a quarter is test).
"""

from __future__ import annotations

from functools import partial

from marft_envs.families.math.problem import MathProblem
from marft_envs.families.math.procedural import (  # noqa: F401  (importing a module registers its generators)
    algebra,
    counting,
    geometry,
    intermediate,
    number_theory,
    prealgebra,
    precalculus,
    two_step,
)
from marft_envs.families.math.procedural.base import SUBJECTS, VARIANTS, written
from marft_envs.problems.dice import Dice
from marft_envs.problems.generators import Generators, distinct, split_of

__all__ = ["GENERATORS", "SUBJECTS", "enumerate_level0", "from_id", "generate", "listed", "split_of", "variants"]

LISTED = 600
"""Distinct problems that are listed of a variant, both splits together."""
_ATTEMPTS = 50
"""Keys tried for one new problem before a variant counts as exhausted."""


def build(generator: str, level: int, key: int) -> MathProblem:
    """The problem of one key. Same arguments, same problem, in every process."""
    variant = VARIANTS[generator, level]
    texts = written(generator, level, variant.build(Dice(f"{generator}/{level}", key)))
    return MathProblem(f"procedural/{generator}/{level}/{key}", *texts, variant.subject, level, "procedural")


def listed(generator: str, level: int) -> tuple[MathProblem, ...]:
    """The first distinct problems of a variant in key order: ``LISTED``, or all where a key is an index."""
    write = partial(build, generator, level)
    keys = VARIANTS[generator, level].keys
    return tuple(map(write, range(keys)) if keys < 2**16 else distinct(write, lambda p: p.problem, LISTED, _ATTEMPTS))


SET = Generators(
    VARIANTS,
    build,
    listed,
    lambda problem: split_of(problem.problem),
    ("subject", lambda variant: VARIANTS[variant].subject),
    "procedural/<generator>/<level>/<key>, e.g. procedural/two_step/0/7",
)
GENERATORS = SET.names
"""Names of all generators."""
variants, generate, from_id, enumerate_level0 = SET.variants, SET.generate, SET.from_id, SET.level0
