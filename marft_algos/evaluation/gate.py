"""A release's gate: which changes are allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft_algos.evaluation.changes import Change, is_judged
from marft_envs.errors import ConfigError, did_you_mean

POINT = 0.01
"""Of a score."""
_SIGNED = re.compile(r"[+-](\d+\.?\d*|\.\d+)")


@dataclass(frozen=True, slots=True)
class Check:
    """One change that a gate allows or not."""

    change: Change
    limit: str
    """As typed; empty: nothing that has become worse beyond its interval is allowed."""
    failed: bool


def gates(written: Mapping[str, str], fail_if_worse: float | None) -> dict[str, str]:
    """Returns metric -> the change that is allowed, with its sign: by how much it may fall (-) or rise (+).

    Raises:
        ConfigError: One has no sign, or is no number.
    """
    found = {} if fail_if_worse is None else {"score": f"-{fail_if_worse * POINT:g}"}
    for metric, text in written.items():
        if not _SIGNED.fullmatch(text):
            raise ConfigError(
                f"--gate {metric}={text}: expected a number with its sign, by how much the mean may change: -0.02 (may"
                " fall by 0.02) or +0 (may not rise)."
            )
        found[metric.removeprefix("task/")] = text
    return found


def checks(changes: Sequence[Change], allowed: Mapping[str, str]) -> list[Check]:
    """Judges changes: by the means of their differences where gates are given, else by the verdicts.

    A cohort of one problem passes every gate: the whole it belongs to does not have to.

    Raises:
        ConfigError: A gate names no metric of these evaluations.
    """
    if not allowed:
        return [Check(c, "", c.verdict == "worse") for c in changes if is_judged(c.name)]
    known = {c.name.removeprefix("task/") for c in changes}
    if unknown := [metric for metric in allowed if metric not in known]:
        raise ConfigError(f"--gate {unknown[0]}: there is no such metric. {did_you_mean(unknown[0], sorted(known))}")
    found = []
    for c in changes:
        if limit := allowed.get(c.name.removeprefix("task/"), ""):
            beyond = float(f"{limit[0]}1") * c.difference.mean - float(limit[1:]) > 1e-9  # not by rounding
            found.append(Check(c, limit, beyond and not (c.cohort and c.difference.n < 2)))
    return found
