"""Makes the page of the leaderboard: the packed results of the repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
ABOUT = """\
The entries are the packed results of this repository, `benchmarks/results/*.tar.xz`. They are the project's own runs,
and so far nobody else's. [Benchmarking](../benchmarking.md#leaderboard) says how a file of yours is shown beside them.
"""


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and content of the page."""
    from marft_algos.workbench.bench import leaderboard

    title, rest = leaderboard.markdown(leaderboard.read([RESULTS])).split("\n", 1)
    yield "leaderboard/index.md", "Leaderboard", f"{title}\n\n{ABOUT}{rest}"
