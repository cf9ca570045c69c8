"""Mathematical notation, read from ``notation.toml``: what ``canonical`` rewrites and what ``parse`` knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from marft_envs import tables

WORD = "‹"
"""Marks a word that stood in ``\\text{}``: it is no product of variables."""

_TABLE = tables.read(__package__, "notation")


def _by_word(names: Mapping[str, str]) -> dict[str, str]:
    """Each word of the values -> the name that it stands under."""
    return {word: name for name, words in names.items() for word in words.split()}


UNICODE = str.maketrans(_TABLE["characters"])
COMMANDS = _by_word(_TABLE["commands"])
LATEX: dict[str, str] = _TABLE["latex"]
CURRENCIES: dict[str, str] = _TABLE["currencies"]
UNITS: dict[str, tuple[dict[str, int], Fraction]] = {
    spelling: ({dimension: 1}, Fraction(size))
    for dimension, units in _TABLE["units"].items()
    for name, entry in units.items()
    for size, *others in [entry.split()]
    for spelling in (name, *others)
} | {
    spelling: (unit["dimensions"], Fraction(unit["size"]))
    for unit in _TABLE["derived"]
    for spelling in unit["spellings"].split()
}
"""Spelling of a unit (singular) -> its dimensions, and its size in the first unit of size 1 of that dimension."""
MULTIPLIERS: dict[str, int | Fraction] = _TABLE["multipliers"] | {
    f"{word}{end}": Fraction(1, below) for word, below in _TABLE["parts"].items() for end in ("", "s")
}
"""Words behind a number by which it is multiplied."""
MARKS = _by_word(_TABLE["marks"])
"""Words behind a number that change what it says -> one name for those that say the same."""
REWRITES = [(rule["has"], re.compile(rule["find"], re.VERBOSE), rule["put"]) for rule in _TABLE["rewrites"]]
BASES: dict[str, int] = _TABLE["bases"]
NAMED_SETS: dict[str, str] = _TABLE["named_sets"]
"""Sets and values as they are read -> names of theirs, without blanks and in small letters."""
PLURALS: dict[str, str] = _TABLE["plurals"]
COUNTERS: str = _TABLE["counters"]
FILLERS, FUNCTIONS, SYMBOLS, ACCENTS = (
    frozenset(_TABLE[name].split()) for name in ("fillers", "functions", "symbols", "accents")
)
