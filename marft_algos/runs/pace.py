"""How fast an iteration of several processes was, who waited for whom, and what was lost: a line of the live panel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import mean
from typing import Any

_LOSSES = {
    "replaced": "engine/restarts",
    "redone": "engine/chunks_redone",
    "lost": "engine/chunks_lost",
    "restarts": "engine/rank_restarts",
}


def brief(line: Mapping[str, Any]) -> str:
    """Returns the pace in a line; empty where one process does everything.

    Args:
        line: Of ``metrics.jsonl``. What it lacks, or is no number, counts as 0. Shares are of the time without
            evaluations.
    """
    workers, ranks = int(_number(line, "engine/workers")), max(int(_number(line, "engine/ranks")), 1)
    if "time_update" not in line or (ranks == 1 and not workers):
        return ""
    seconds = max(_number(line, "time_total") - _number(line, "time_eval"), 1e-9)
    tokens = _number(line, "tokens_played") or _number(line, "tokens")
    words = [f"{tokens / seconds:,.0f} tokens/s"]
    if workers:
        played = sum(_number(row, "seconds") for row in _list(line, "time_players") if isinstance(row, Mapping))
        idle = max(1 - played / (workers * seconds), 0.0)
        words += [f"{workers} workers", f"learners wait {_number(line, 'time_wait') / seconds:.0%}"]
        words += [f"workers {idle:.0%}"]
    if ranks > 1:
        waits = [x for x in _list(line, "time_ranks") if isinstance(x, int | float)]
        words += [f"{ranks} ranks", f"wait for each other {mean(waits or [0.0]) / seconds:.0%}"]
    losses = {what: _number(line, key) for what, key in _LOSSES.items()}
    return " · ".join([*words, *(f"{what} {count:.0f}" for what, count in losses.items() if count)])


def _number(line: Mapping[str, Any], key: str) -> float:
    value = line.get(key, 0.0)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _list(line: Mapping[str, Any], key: str) -> list[Any]:
    value = line.get(key)
    return value if isinstance(value, list) else []
