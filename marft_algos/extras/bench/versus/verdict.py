"""From paired outcomes to words: is the team needed, does D matter? numpy only.

A comparison has a difference Δ, team minus rival, with its two-level 95 % interval [low, high], and a margin δ: the
smallest gain that is worth a team. It says

* ``ahead``: low > 0 and high ≥ δ. The team is better, and the gain may be worth it.
* ``level``: high < δ. The team is not better by as much as δ (it may be behind).
* ``open``: anything else, and where there is no interval.

``ahead`` is wrong with 2.5 % at most where Δ ≤ 0, ``level`` with 2.5 % at most where Δ ≥ δ: each is one end of a 95 %
interval. The verdict *team needed* takes ``ahead`` under all budgets at once, so that its error is no larger than that
of one (an intersection-union test: Berger, Technometrics 24, 1982); no correction for three looks is due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from marft_algos.extras.bench import statistics
from marft_algos.extras.bench.statistics import Outcomes
from marft_algos.runs.intervals import Interval

Word = Literal["ahead", "level", "open"]
Unit = Literal["sampled", "processed", "latency"]
UNITS: tuple[Unit, ...] = ("sampled", "processed", "latency")
Needed = Literal["team needed", "no team needed", "too costly", "no significant difference"]
Matters = Literal["D matters", "D does not matter", "no significant difference by D", "not asked"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What paired outcomes say of a team and a rival."""

    word: Word
    difference: Interval | None
    """Team minus rival."""
    why: str = ""
    """Why it is open, where it is not the interval."""


def compare(gaps: Outcomes | None, margin: float, unequal: str = "") -> Comparison:
    """Compares on the seeds and problems that both have.

    Args:
        gaps: Team minus rival [S, P]; None: nothing is paired.
        margin: The smallest gain that is worth a team.
        unequal: Why their budgets were not equal; empty: they were.
    """
    if gaps is None:
        return Comparison("open", None, "nothing to compare: no seed of both has finished")
    difference = statistics.estimate([gaps], difference=True)
    if unequal:
        return Comparison("open", difference, unequal)
    if math.isnan(difference.low):
        return Comparison("open", difference, f"no interval from {len(gaps)} of {statistics.MIN_SEEDS} seeds")
    return Comparison(word(difference, margin), difference)


def word(difference: Interval, margin: float) -> Word:
    """Says in one word where the interval lies; see the head of this file."""
    if difference.high < margin:
        return "level"
    return "ahead" if difference.low > 0 else "open"


def needed(comparisons: Mapping[Unit, Comparison]) -> tuple[Needed, str]:
    """Says whether the team is needed, and the reason in a sentence."""
    words = {unit: comparison.word for unit, comparison in comparisons.items()}
    ahead = [unit for unit in words if words[unit] == "ahead"]
    level = [unit for unit in words if words[unit] == "level"]
    if len(ahead) == len(words):
        return "team needed", "It is ahead of the best single agent under every budget of training."
    if words["sampled"] == "level":
        beside = f", though ahead at equal {_listed(ahead)}" if ahead else ""
        return "no team needed", f"At equal sampled tokens a single agent does as well{beside}."
    if words["sampled"] == "ahead" and level:
        return (
            "too costly",
            f"It is ahead at equal sampled tokens, and not at equal {_listed(level)}: it costs more of it.",
        )
    undecided = [unit for unit in words if words[unit] == "open"]
    return "no significant difference", f"The comparison at equal {_listed(undecided)} is open."


def matters(retrained: Comparison | None) -> Matters:
    """Says whether D matters, from the team and the one that was trained without D."""
    if retrained is None:
        return "not asked"
    if retrained.word == "open":
        return "no significant difference by D"
    return "D matters" if retrained.word == "ahead" else "D does not matter"


_NAMES = {"sampled": "sampled tokens", "processed": "processed tokens", "latency": "latency in training"}


def _listed(units: Sequence[Unit]) -> str:
    return " and ".join(_NAMES[unit] for unit in units)
