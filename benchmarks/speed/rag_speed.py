"""CPU time of retrieval: a search in 100,000 passages, an index built and opened, a step of the environments.

    python -m benchmarks rag_speed [--json] [--passages 100000] [--episodes 200]

Passages have 100 words each, drawn from 200,000 by Zipf's law, as have queries, of ten words: so most queries hold
words that half of the passages have. Searches open the index anew, memory-mapped, as worker processes do. A step of an
environment is ``observe`` and ``step`` with a recorded reply, searches included; resets are shared out (the depot's:
``python -m benchmarks depot``). Time is
``time.process_time``, one thread; the best of three, and of queries the median and the slowest of 200.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import marft_envs
from benchmarks.speed.envs import loop_microseconds
from marft_envs.families.rag.index import Index, Passage
from marft_envs.records import experts

VOCABULARY, LENGTH, QUERY, QUERIES = 200_000, 100, 10, 200


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    out = do()
    return time.process_time() - start, out


def passages(n: int, rng: np.random.Generator) -> Iterator[Passage]:
    for number in range(n):
        yield Passage(str(number), "", " ".join(f"w{word}" for word in zipf(rng, LENGTH)))


def zipf(rng: np.random.Generator, n: int) -> Any:
    return np.minimum(VOCABULARY ** rng.random(n), VOCABULARY - 1).astype(int)


def searches(n: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    corpus = list(passages(n, rng))
    with tempfile.TemporaryDirectory() as folder:
        built, _ = timed(lambda: Index.at(Path(folder, "index"), "x", lambda: corpus))
        opened, index = timed(lambda: Index.at(Path(folder, "index"), "x", lambda: corpus))
        size = sum(file.stat().st_size for file in Path(folder, "index").iterdir())
        queries = [" ".join(f"w{word}" for word in zipf(rng, QUERY)) for _ in range(QUERIES)]
        times = [min(timed(partial(index.search, query, 5))[0] for _ in range(3)) for query in queries]
    return {
        "index built, s": built,
        "index opened, ms": 1e3 * opened,
        "index, MB": size / 1e6,
        "search, median, ms": 1e3 * float(np.median(times)),
        "search, slowest, ms": 1e3 * max(times),
    }


def steps(env_id: str, episodes: int) -> float:
    """CPU microseconds of ``observe`` and ``step`` with a recorded reply of the expert."""
    env = marft_envs.make(env_id)
    replies = [[turn.text for turn in experts.play(env, seed).turns] for seed in range(episodes)]

    def play() -> None:
        for seed, texts in enumerate(replies):
            env.reset(seed=seed)
            for text in texts:
                env.observe(env.agent_selection)
                env.step(text)
            assert env.done

    return 1e6 * min(timed(play)[0] for _ in range(3)) / sum(map(len, replies))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = searches(args.passages)
    for name in ("solo", "chain", "planner", "router"):
        figures[f"step, rag-{name}-v0, µs"] = steps(f"rag-{name}-v0", args.episodes)
    figures["plain loop, µs"] = loop_microseconds()
    print(
        json.dumps(figures) if args.json else "\n".join(f"{name:28} {value:10.2f}" for name, value in figures.items())
    )


if __name__ == "__main__":
    main()
