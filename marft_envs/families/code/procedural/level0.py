"""Level 0, where the embedded model lives: one-line functions in a few words, an enumerable space.

Each family lists all its items, so a key is an index. Tests are picked from a pool of inputs: two public ones that
tell the item from as many others of its family as two can, then hidden ones until no other item agrees with all.
The family ``unclear`` has wordings with two or three meanings; there only the tests say which is meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marft_envs import tables
from marft_envs.families.code.problem import CodeProblem, Test
from marft_envs.families.code.procedural import level0_families
from marft_envs.families.code.procedural.base import VARIANTS, ProblemWriter, function

_TABLE = tables.read(__package__, "procedural")
FAMILIES: dict[str, Callable[[], level0_families.Items]] = {
    name: getattr(level0_families, name) for name in _TABLE["families"]
}
"""Name, which is part of ids -> what lists the family's items."""

POOLS: dict[str, list[tuple[Any, ...]]] = {args: [*map(tuple, pool)] for args, pool in _TABLE["pools"].items()}
"""Inputs that tests are picked from, by signature; one on which an item has no value is passed over."""

_HIDDEN = 6
"""Hidden tests at least; more where other items of the family would pass these."""


@cache
def family(name: str) -> tuple[level0_families.Item, ...]:
    """All items of a family; a key is an index."""
    return tuple(FAMILIES[name]())


@cache
def _outputs(name: str, args: str) -> tuple[dict[int, int], NDArray[np.int64], list[list[str]]]:
    """What every item of a signature gives on its pool.

    Returns:
        Row of each item (by its index in the family); the outputs as numbers, -1 for none, shape (items, pool); the
        outputs as literals.
    """
    indices = [i for i, item in enumerate(family(name)) if item.args == args]
    codes: dict[str, int] = {"": -1}
    texts = [[_literal(args, family(name)[i].code, values) for values in POOLS[args]] for i in indices]
    table = np.array([[codes.setdefault(text, len(codes)) for text in row] for row in texts], dtype=np.int64)
    return {index: row for row, index in enumerate(indices)}, table, texts


def _literal(args: str, code: str, values: tuple[Any, ...]) -> str:
    """The value of an item's code as a literal; "" where it has none, e.g. the largest of an empty list."""
    try:
        return repr(function(args, code)(*values))
    except (ValueError, IndexError, ZeroDivisionError):
        return ""


@cache
def _pairs(name: str, args: str) -> tuple[tuple[tuple[int, int], Counter[tuple[int, int]]], ...]:
    """Pairs of the pool's first inputs, and how many items give each pair of outputs there."""
    _, table, _ = _outputs(name, args)
    first = min(12, table.shape[1])
    return tuple(
        ((i, j), Counter(zip(table[:, i].tolist(), table[:, j].tolist(), strict=True)))
        for i, j in combinations(range(first), 2)
    )


def _pick(name: str, index: int) -> tuple[list[int], list[int]]:
    """Positions in the pool of the public and the hidden tests."""
    args = family(name)[index].args
    rows, table, _ = _outputs(name, args)
    values = table[rows[index]]
    outputs = values.tolist()
    words = family(name)[index].words
    twins = [table[row].tolist() for i, row in rows.items() if i != index and family(name)[i].words == words]
    usable = [  # first of all the tests must tell apart what has the same words
        (
            sum(twin[i] == outputs[i] and twin[j] == outputs[j] for twin in twins),
            count[outputs[i], outputs[j]],
            outputs[i] == outputs[j],
            i,
            j,
        )
        for (i, j), count in _pairs(name, args)
        if outputs[i] >= 0 and outputs[j] >= 0
    ]
    public = list(min(usable)[3:])
    left = [i for i, output in enumerate(outputs) if i not in public and output >= 0]
    same = table == values
    rivals = ~same[:, values >= 0].all(axis=1)  # items with another value somewhere: the tests must refute each
    hidden: list[int] = []
    while left and (len(hidden) < _HIDDEN or rivals.any()):
        surviving = (rivals[:, None] & same[:, left]).sum(axis=0)
        best = int(surviving.argmin())
        if len(hidden) >= _HIDDEN and surviving[best] == rivals.sum():
            break
        hidden.append(left.pop(best))
        rivals &= same[:, hidden[-1]]
    return public, sorted(hidden)


def build(name: str, key: int) -> CodeProblem:
    """The problem of one key."""
    item = family(name)[key]
    rows, _, texts = _outputs(name, item.args)
    public, hidden = _pick(name, key)
    tests = {i: Test("call", repr(list(POOLS[item.args][i])), texts[rows[key]][i]) for i in public + hidden}
    return CodeProblem(
        id=f"procedural/{name}/function/0/{key}",
        mode="function",
        prompt=f"f({item.args}): {item.words}",
        public=tuple(tests[i] for i in public),
        hidden=tuple(tests[i] for i in hidden),
        starter_code=f"def f({item.args}):",
        entry_point="f",
        solution=f"def f({item.args}):\n    return {item.code}",
        level=0,
        source="procedural",
    )


def mutants(name: str, key: int) -> list[str]:
    """Three programs of the same family, the likest by text, that fail a hidden test of this item."""
    item_of_key = family(name)[key]
    rows, table, _ = _outputs(name, item_of_key.args)
    hidden = _pick(name, key)[1]
    wrong = [
        (-SequenceMatcher(None, item_of_key.code, item.code).ratio(), index)
        for index, item in enumerate(family(name))
        if item.args == item_of_key.args and (table[rows[index], hidden] != table[rows[key], hidden]).any()
    ]
    return [f"def f({item_of_key.args}):\n    return {family(name)[index].code}" for _, index in sorted(wrong)[:3]]


for _name in FAMILIES:
    VARIANTS[_name, "function", 0] = ProblemWriter(partial(build, _name), sum(1 for _ in FAMILIES[_name]()))
