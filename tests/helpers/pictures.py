"""Curves of runs, drawn where a test is about them: they take longer than the trainings of most tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft_algos.runs import plots, report

DRAWN = {(plots, "write_png"): plots.write_png, (report, "_curves"): report._curves}


def _empty(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    if plots.diagrams(metrics):
        path.touch()


def _told(metrics: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(plots.diagrams(metrics))} diagrams are not drawn: the test lacks @pytest.mark.pictures"


PLAIN = {(plots, "write_png"): _empty, (report, "_curves"): _told}


def draw(wanted: bool) -> None:
    """Has runs of this process end with curves, or without."""
    for (module, name), function in (DRAWN if wanted else PLAIN).items():
        setattr(module, name, function)
