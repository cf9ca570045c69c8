"""Is a benchmark still what it was? New runs against stored ones, on the same problems."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.workbench.bench import statistics
from marft_algos.workbench.bench.folder import BenchFolder
from marft_algos.workbench.bench.tables import alike, complete, label, outcomes, points
from marft_envs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PackCheck:
    """What a check found."""

    lines: list[str]
    departed: list[str]
    """Rows whose interval excludes the new runs, or that are no longer there, or cannot be compared for outages."""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier benchmark: of its folder, or of its results.jsonl.

    Raises:
        ConfigError: Neither.
    """
    if path.is_dir():
        return BenchFolder(path).rows()
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read '{path}': {error}. Expected a benchmark's folder or results.jsonl.") from error


def compare(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]) -> PackCheck:
    """Compares every row that the baseline has finished; what only the new benchmark has is not looked at.

    Raises:
        ConfigError: The two have nothing in common, or were scored on other problems.
    """
    groups: dict[tuple[str, str], tuple[list[Any], list[Any]]] = {}
    for side, rows in enumerate((new, old)):
        for row in rows:
            if row["status"] == "done" and not row["hidden"]:
                groups.setdefault((row["env"], label(row)), ([], []))[side].append(row)
    lines, departed = [], []
    for (env, name), (ours, theirs) in groups.items():
        if not theirs:
            continue
        title = f"{name} · {env}"
        if not ours:
            lines.append(f"{title}: not there any more")
            departed.append(title)
            continue
        if not alike([*ours, *theirs]):
            raise ConfigError(f"{title}: the baseline was scored on other problems; nothing can be compared.")
        kept = complete(outcomes(ours)[1], outcomes(theirs)[1])
        if not kept[0].size:
            lines.append(f"{title}: no problem that outages have left to all runs, nothing can be compared")
            departed.append(title)
            continue
        change = statistics.departure(*kept)
        if math.isnan(change.low):
            lines.append(f"{title}: {points(change, signed=True)}, no interval: the baseline has too few seeds")
            continue
        out = change.low > 0 or change.high < 0
        verdict = ("better" if change.mean > 0 else "worse") if out else "as before"
        lines.append(f"{title}: {points(change, signed=True)}, {verdict}")
        departed += [title] if out else []
    if not lines:
        raise ConfigError("The baseline and this benchmark have no finished row in common.")
    return PackCheck(lines, departed)
