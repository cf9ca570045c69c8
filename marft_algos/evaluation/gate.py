"""A release's gate: which changes are allowed, and what a comparison says to people, programs and CI."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from marft_algos.evaluation.compare import Change, is_judged, printed
from marft_algos.evaluation.options import EvalArguments
from marft_algos.runs.disk import write_whole
from marft_algos.terminal import REGRESSION, clean, say
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


def told(
    head: str, names: Sequence[str], changes: Sequence[Change], allowed: Mapping[str, str], options: EvalArguments
) -> int:
    """Says what was found, writes what CI reads; returns the exit code.

    Args:
        head: First line of the text.
        names: A and B.
        changes: Of all metrics.
        allowed: See ``gates``.
        options: ``EvalArguments``, of which ``json`` and ``junit`` count.
    """
    judged = checks(changes, allowed)
    failed = [check.change for check in judged if check.failed]
    code = REGRESSION if failed else 0
    if options.junit:
        _junit(Path(options.junit), names, judged)
    if options.json:
        rows = [asdict(check) for check in (*judged, *(Check(c, "", False) for c in changes))]
        for difference in (row["change"]["difference"] for row in rows):
            difference |= {key: None for key, value in difference.items() if value != value}  # JSON has no NaN
        of = {"gates": rows[: len(judged)], "changes": [row["change"] for row in rows[len(judged) :]]}
        say(json.dumps({"a": names[0], "b": names[1], "head": head, **of, "exit": code}))
        return code
    say(head)
    say(printed(changes))
    titles = ", ".join(change.title for change in failed)
    if allowed:
        say(f"gate:    failed: {titles}" if failed else f"gate:    passed ({len(judged)} checks)")
    else:
        say(f"worse:   {titles}" if failed else "nothing has become worse")
    return code


def _junit(path: Path, names: Sequence[str], judged: Sequence[Check]) -> None:
    """Writes a report that CI shows: one case per metric and cohort that was judged."""

    def plain(text: object) -> str:
        return clean(text, line=True)  # XML has no control characters

    wrong = sum(check.failed for check in judged)
    title = plain(f"marft eval --compare {names[0]} {names[1]}")
    suite = ET.Element("testsuite", name=title, tests=str(len(judged)), failures=str(wrong))
    for check in judged:
        of = plain(check.change.cohort or "all tasks")
        case = ET.SubElement(suite, "testcase", classname=of, name=plain(check.change.name))
        if check.failed:
            allowed = f", allowed {check.limit}" if check.limit else ""
            ET.SubElement(case, "failure", message=plain(printed([check.change]) + allowed))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")
