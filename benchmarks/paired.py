"""Timing on a noisy machine: several ways to do the same work, in turn, and the median of the ratios of each turn."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.runs import table

REPEATS = 5


def in_turn(runs: Mapping[str, Callable[[], Any]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Returns each run's CPU seconds, repetition by repetition, after one of each that does not count."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    return seconds


def ratios(seconds: Mapping[str, list[float]], slow: str, fast: str) -> dict[str, float]:
    """How many times ``fast`` is faster: median, least and greatest of the repetitions' ratios."""
    quotients = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
    return {"ratio": statistics.median(quotients), "least": min(quotients), "greatest": max(quotients)}


def show(ratio: Mapping[str, float]) -> str:
    """``2.31 [2.20, 2.45]``."""
    return f"{ratio['ratio']:.2f} [{ratio['least']:.2f}, {ratio['greatest']:.2f}]"


def publish(name: str, rows: list[dict[str, Any]], columns: list[str], out: Path) -> None:
    """Prints a table of the rows, and writes them as ``<out>/<name>.json``."""
    out.mkdir(parents=True, exist_ok=True)
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
    (out / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(table(columns, [[_cell(row.get(column, "")) for column in columns] for row in rows]), flush=True)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return show(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
