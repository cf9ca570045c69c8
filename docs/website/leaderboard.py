"""Makes the page of the leaderboard: the packed results of the repository, checked and ranked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("benchmarks/results")
"""Named as in the commands on the page."""
ABOUT = """\
The entries are the packed results of this repository, `benchmarks/results/*.tar.xz`. They are the project's own runs,
and so far nobody else's. [Benchmarking](../benchmarking.md#leaderboard) says how a file of yours is checked and ranked.
"""


def pages() -> Iterator[tuple[str, str, str]]:
    """Yields source address, title and content of the page."""
    from marft_algos.workbench.bench import board, leaderboard

    here = Path.cwd()
    os.chdir(ROOT)  # so that the commands on the page name files as they are typed there
    try:
        evidence = leaderboard.read([RESULTS])
    finally:
        os.chdir(here)
    text = board.markdown(board.blocks(evidence, leaderboard.rank(evidence)))
    title, rest = text.split("\n", 1)
    yield "leaderboard/index.md", "Leaderboard", f"{title}\n\n{ABOUT}{rest}"
