"""A gate for releases: is B shown to be no worse than a margin, shown to be worse, or neither?

Each metric that was asked for, of all tasks and of every cohort that was asked for, is a check:

* ``passed``: that B is worse by the margin or more is rejected, one-sided at 5 %. This comes first: a loss that is
  shown, and shown to be smaller than the margin, passes.
* ``failed``: else, that B is no worse at all is rejected, one-sided at 5 % for all checks together (Holm; a column
  under two names counts once).
* ``undecided``: neither.

The gate fails if a check fails, and passes if all pass. So an equal team fails in at most 5 % of the comparisons. A
team that is worse by a margin passes in at most 5 %, too: an intersection-union test (Berger, Technometrics 24, 1982),
which needs no correction for the number of checks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marft_algos.evaluation.changes import PRIMARY, Change, unit
from marft_algos.evaluation.differences import ALPHA, PairedDifference, Values, holm, passing, resolution
from marft_envs.errors import ConfigError, check_known

Outcome = Literal["passed", "failed", "undecided"]
POINT = 0.01
"""Of a score."""
_SIGNED = re.compile(r"[+-](\d+\.?\d*|\.\d+)")
_ALIKE = (0.0, 0.5, 0.8)
"""Correlations of A and B at which a plan states the power."""
_POWER = ["n", "r", "shows", "passes"]
"""Problems, the correlation of A and B, the loss shown in 80 % of comparisons, and how often an equal team passes."""


@dataclass(frozen=True, slots=True)
class Check:
    """One metric of a gate, of all tasks or of a cohort."""

    change: Change
    limit: str
    """The margin with the sign of what is worse, as typed: ``-0.02``; empty: none, so it cannot pass."""
    outcome: Outcome
    p_worse: float
    """Of the hypothesis that B is no worse, adjusted for all checks."""
    p_margin: float
    """Of the hypothesis that B is worse by the margin or more."""

    @property
    def bound(self) -> float:
        """Returns how bad B - A may be: its one-sided 95 % bound; NaN: there is none."""
        paired, rises = self.change.paired, self.limit.startswith("+")
        return -paired.reversed().lower() if rises else paired.lower()

    def row(self) -> list[str]:
        """Returns it as a row of a table."""
        paired, (word, scale, digits) = self.change.paired, unit(self.change.name)
        bound = "none" if math.isnan(self.bound) else f"{scale * self.bound:+.{digits}f}"
        margin = f"{scale * float(self.limit):+g}" if self.limit else "none"
        row = [self.change.title, f"{scale * paired.mean:+.{digits}f}{word}", bound, margin, self.outcome]
        return [*row, *_power(paired.n, paired.correlation, paired.error, abs(float(self.limit or 0)), scale, digits)]


def _power(n: int, alike: float, error: float, margin: float, scale: int, digits: int) -> list[str]:
    """Returns what a comparison can show, in the columns ``_POWER``."""
    known = not math.isnan(error)
    shown = f"{scale * resolution(error):.{digits}f}" if known else "none"
    passes = f"{100 * passing(margin, error):.0f} %" if known and margin else "0 %"
    return [str(n), "unknown" if math.isnan(alike) else f"{alike:.2f}", shown, passes]


def gates(written: Mapping[str, str], margin: float | None) -> dict[str, str]:
    """Returns metric -> its margin, with the sign of what is worse.

    Args:
        written: As typed with ``--gate``.
        margin: Of the score, in percentage points.

    Raises:
        ConfigError: One has no sign, is no number, or is the second of a metric.
    """
    found = {} if margin is None else {PRIMARY: f"-{margin * POINT:g}"}
    for metric, text in written.items():
        if not _SIGNED.fullmatch(text):
            raise ConfigError(
                f"--gate {metric}={text}: expected a margin with the sign of what is worse: -0.02 (a fall by 0.02 is"
                " too much) or +0.02 (a rise is)."
            )
        if (name := metric.removeprefix("task/")) in found:
            raise ConfigError(
                f"--gate {metric}={text}: {name} has another margin. Expected one: leave one of them out."
            )
        found[name] = text
    return found


def checks(changes: Sequence[Change], allowed: Mapping[str, str], *, cohorts: bool = False) -> list[Check]:
    """Judges the changes that gates name; without a gate the score, which may fail and cannot pass.

    Args:
        changes: All that are known.
        allowed: Metric -> its margin, as ``gates`` returns them.
        cohorts: Judge the cohorts as well, which were asked for.

    Raises:
        ConfigError: A gate names no metric of both.
    """
    known = {c.name.removeprefix("task/"): "" for c in changes}
    hint = {"cost": "What both cost is not known: give both --price IN,OUT."}
    check_known(allowed, known, "--gate {}: there is no such metric of both.", hint=lambda name: hint.get(name, ""))
    limits = allowed or {PRIMARY: ""}
    asked = [c for c in changes if c.name.removeprefix("task/") in limits and (cohorts or not c.cohort)]
    toward = [(c, limits[c.name.removeprefix("task/")]) for c in asked]
    better = [c.paired.reversed() if limit.startswith("+") else c.paired for c, limit in toward]
    worse = holm({d: d.reversed().p_above(0.0) for d in better})
    return [_check(c, limit, d, worse[d]) for (c, limit), d in zip(toward, better, strict=True)]


def _check(change: Change, limit: str, better: PairedDifference, p_worse: float) -> Check:
    p_margin = better.p_above(-abs(float(limit))) if limit else 1.0
    outcome: Outcome = "passed" if p_margin <= ALPHA else "failed" if p_worse <= ALPHA else "undecided"
    return Check(change, limit, outcome, p_worse, p_margin)


def outcome(judged: Sequence[Check]) -> Outcome:
    """Returns what a gate of these checks comes to."""
    found = {check.outcome for check in judged}
    return "failed" if "failed" in found else "passed" if found == {"passed"} else "undecided"


def table(judged: Sequence[Check]) -> list[list[str]]:
    """Returns a row per check, with what a comparison of so many tasks can show, below their titles."""
    return [["gate", "B - A", "at worst", "margin", "outcome", *_POWER], *(check.row() for check in judged)]


def power(scores: Values, margin: float) -> list[list[str]]:
    """Returns what a comparison with a team that has not played can show, by the scores of A on each task."""
    means, size = np.array([np.mean(episodes) for episodes in scores]), np.mean([len(each) for each in scores])
    n, variance = len(means), float(means.var())
    errors = {alike: math.sqrt(2 * (1 - alike) * n * variance + 2 / size**2) / (n + 2) for alike in _ALIKE}
    return [_POWER, *(_power(n, alike, error, margin * POINT, 100, 1) for alike, error in errors.items())]
