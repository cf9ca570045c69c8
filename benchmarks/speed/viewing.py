"""The viewer on many episodes: CPU seconds of the index, of lists and of searches, and the memory that it keeps.

    python -m benchmarks viewing [--episodes 100000] [--run RUN]

The episodes are those of a run's evaluations (``--run``), repeated; without one, made-up ones of two turns and 1.8 kB.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marft_algos.extras.view.index import EpisodeIndex, Filter, Page

SAID = "the sum of the first two is 16, and 16 times 9 is 144, so the answer is \\boxed{144}. "


def made_up(number: int) -> str:
    """A line as long as one of the quickstart's."""
    turn = {"round": 0, "role": "solver", "reward": 0.0, "extras": {"observation": f"Compute {number}+11. " * 12}}
    turns = [{**turn, "index": i, "agent": f"agent_{i}", "layer": i, "sees": [], "text": SAID * 5} for i in range(2)]
    layers = [{"index": i, "round": 0, "turns": [i], "team_reward": float(i * number % 2)} for i in range(2)]
    record = {"env_id": "made", "seed": number, "task_id": f"made/{number}", "agents": [], "turns": turns}
    record |= {"layers": layers, "rounds": [], "success": number % 2 == 0}
    if number % 10_000 == 9_999:
        turns[1]["text"] = "a needle"
    return json.dumps(record) + "\n"


def write(path: Path, episodes: int, run: str) -> None:
    """Writes so many lines."""
    lines = [line for file in sorted(Path(run).glob("episodes/eval-*.jsonl")) for line in file.open()] if run else []
    with path.open("w", encoding="utf-8") as file:
        for number in range(episodes):
            file.write(lines[number % len(lines)] if lines else made_up(number))


def timed(name: str, work: Callable[[], Any]) -> Any:
    """Prints the CPU seconds of a piece of work; returns what it returns."""
    started = time.process_time()
    done = work()
    print(f"{name:<52} {time.process_time() - started:8.3f} s")
    return done


def searched(index: EpisodeIndex, wanted: Filter) -> int:
    """Goes through all pages of a search; returns how many were found."""
    after: int | None = 0
    found = 0
    while after is not None:
        page: Page = index.page(wanted, after, 50, 60.0)
        found, after = found + len(page.entries), page.next
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--run", default="", help="a run whose evaluations are repeated")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        write(path, args.episodes, args.run)
        print(f"{args.episodes:,} episodes, {path.stat().st_size / 1e6:.0f} MB")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        index = EpisodeIndex(path)
        timed("index, once", lambda: index.refresh(3600))
        kept = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        timed("index again, nothing new", index.refresh)
        timed("a page of 50, and its lines", lambda: [index.data(e) for e in index.page(Filter()).entries])
        timed("a page of 50 of one outcome, the best first", lambda: index.page(Filter(outcome="solved", order="best")))
        for text in ("needle", "nowhere", "sum"):
            words = f"first page of a search for '{text}'"
            timed(words, lambda text=text: index.page(Filter(text=text), 0, 50, 3600))  # type: ignore[misc]
        found = timed("all of a search for 'needle'", lambda: searched(index, Filter(text="needle")))
        print(f"'needle' is in {found}; the index keeps {kept / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
