"""Notes which tests reach which defects: a plugin of pytest that ``python -m benchmarks mutations`` puts into a copy.

There it is a module of ``marft_envs``, and a statement in front of every place of a defect calls ``reached``: in
processes that a test starts, too.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

NOTES = Path(__file__).resolve().parent
_seen = set[tuple[int, str]]()


def reached(row: int) -> None:
    """Notes that the test that runs, or that started this process, has come to a defect's place."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (row, test) not in _seen:
        _seen.add((row, test))
        with contextlib.suppress(OSError), (NOTES / str(os.getpid())).open("a", encoding="utf-8") as file:
            file.write(f"{row}\t{test}\n")  # where a sandbox lets nothing be written, the test itself is to go on


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes how long each phase of a test took, once: not in the workers of xdist."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with (NOTES / "seconds").open("a", encoding="utf-8") as file:
            file.write(f"{report.duration}\t{report.nodeid}\n")
