"""Timings of several ways to do the same work, in turn: the median of the ratios of each turn, and tables of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.runs import table


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
