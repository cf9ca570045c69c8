"""Programming problems made from nothing: generators in function and stdio mode, levels 0 to 4.

Every problem is a pure function of its id, ``procedural/<generator>/<mode>/<level>/<key>``. Expected values come from
reference functions written apart from the gold programs. Train and test are disjoint by content: the SHA-256 of the
task's text decides (a quarter is test), so a task is in one split in both modes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from marft_envs.errors import DataError
from marft_envs.families.code.problem import CodeProblem, Mode
from marft_envs.families.code.procedural import (  # noqa: F401  (importing a module registers its generators)
    level0,
    numbers,
    search,
    sequences,
    simulation,
    strings,
)
from marft_envs.families.code.procedural.base import VARIANTS, Dice, Draft, program, split_of, write
from marft_envs.problems.generators import Generators, distinct

__all__ = ["GENERATORS", "enumerate_level0", "from_id", "generate", "listed", "mutants", "split_of", "variants"]

LISTED = 120
"""Distinct tasks that are listed of a variant above level 0, both splits together."""
_ATTEMPTS = 20
"""Keys tried for one new problem before a variant counts as exhausted."""


def _draft(generator: str, level: int, key: int) -> Draft:
    """A key names the same task in both modes."""
    variant = next(c for (name, _, at), c in VARIANTS.items() if (name, at) == (generator, level))
    return variant.build(Dice(f"code/{generator}/{level}", key), level)


def build(generator: str, mode: Mode, level: int, key: int) -> CodeProblem:
    """The problem of one key. Same arguments, same problem, in every process."""
    if level == 0:
        return level0.build(generator, key)
    draft = _draft(generator, level, key)
    return write(draft, mode, f"procedural/{generator}/{mode}/{level}/{key}", level, draft.results())


def mutants(problem: CodeProblem) -> list[str]:
    """Wrong programs for a procedural problem, close to its gold: each scores below 1.

    At least three: off by one, a wrong operator, an edge case ignored. Level 0 has its own: another constant or
    operator, or a part left out.

    Raises:
        DataError: the problem is not procedural.
    """
    name, mode, level, key = SET.parse(problem.id)
    if level == 0:
        return level0.mutants(name, key)
    draft = _draft(name, level, key)
    for old, new in draft.wrong:
        if old not in draft.body or old == new:
            raise DataError(f"'{problem.id}': its gold has no {old!r} to make a wrong program from.")
    return [program(draft, mode, draft.body.replace(old, new, 1)) for old, new in draft.wrong]


@lru_cache(maxsize=16)  # level 0 has 15 variants
def listed(generator: str, mode: Mode, level: int) -> tuple[CodeProblem, ...]:
    """The first distinct tasks of a variant in key order: ``LISTED``, or all where a key is an index."""
    keys = VARIANTS[generator, mode, level].keys
    if keys < 2**16:
        return tuple(build(generator, mode, level, key) for key in range(keys))
    return tuple(
        write(draft, mode, f"procedural/{generator}/{mode}/{level}/{key}", level, results)
        for key, draft, results in _distinct(generator, level)
    )


@lru_cache(maxsize=1)
def _distinct(generator: str, level: int) -> list[tuple[int, Draft, list[tuple[tuple[Any, ...], Any]]]]:
    """Keys, drafts and results of the listed tasks; the same for both modes."""
    first = distinct(lambda key: (key, _draft(generator, level, key)), lambda new: new[1].task, LISTED, _ATTEMPTS)
    return [(key, draft, draft.results()) for key, draft in first]


SET = Generators(
    VARIANTS,
    build,
    listed,
    split_of,
    ("mode", lambda variant: variant[1]),
    "procedural/<generator>/<mode>/<level>/<key>, e.g. procedural/linear/function/0/7",
    whole=(None, "all"),
)
GENERATORS = SET.names
"""Names of all generators."""
variants, generate, from_id, enumerate_level0 = SET.variants, SET.generate, SET.from_id, SET.level0
