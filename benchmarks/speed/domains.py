"""CPU time of a step of every domain that plays data or packages of others, of retrieval, and of the depot beside them.

    python -m benchmarks domains [--package FOLDER] [--episodes 40] [--json]

A step is ``observe`` and ``step`` with a recorded reply of the expert, parsing, calls of the world, hashes and grades
included, resets shared out. The last columns are the shares of opening worlds, calls, hashes and grades. What neither
is installed nor in FOLDER (``tests/real/run.py --cache .real --install`` makes ``.real/packages``) is left out, and
said. Time is ``time.process_time``, one thread, the best of three; a loop of plain Python, timed at the end, makes the
figures of two machines comparable.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

import marft_envs
from benchmarks.runs import table
from benchmarks.speed.envs import loop_microseconds
from marft_envs.errors import MarftError
from marft_envs.records import experts

LIMITS: dict[str, Any] = {"max_turns": 200, "max_calls": 200, "max_result_chars": 50_000}
TAU2 = ("retail", "airline", "telecom", "banking_knowledge")
DOJO = ("banking", "slack", "travel", "workspace")
ENVS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "depot": ("tools-solo-v0", {}),
    "depot, a customer": ("tools-service-v0", {}),
    "desks": ("tools-desks-v0", {}),
    "cases": ("cases-v0", {}),
    **{f"rag, {team}": (f"rag-{team}-v0", {}) for team in ("solo", "chain", "planner", "router")},
    **{f"tau2/{name}": ("tools-solo-v0", LIMITS) for name in TAU2},
    **{f"agentdojo/{name}": ("tools-solo-v0", LIMITS) for name in DOJO},
    "bfcl": ("tools-solo-v0", LIMITS),
}
PACKAGED = ("tau2", "agentdojo", "bfcl")


def made(name: str, package: str | None) -> Any:
    """An environment of the table above."""
    env_id, kwargs = ENVS[name]
    if name.startswith(PACKAGED):
        kwargs = {**kwargs, "domain": name, "domain_args": {"package": package} if package else {}}
    return marft_envs.make(env_id, **kwargs)


def measured(env: Any, episodes: int) -> dict[str, float]:
    """CPU microseconds of a step and of a reset, and what is in them."""
    replies = {seed: [turn.text for turn in experts.play(env, seed).turns] for seed in range(episodes)}
    turns, best, resets = sum(map(len, replies.values())), float("inf"), float("inf")

    def play() -> float:
        opening = 0.0
        for seed, texts in replies.items():
            start = time.process_time()
            env.reset(seed=seed)
            opening += time.process_time() - start
            for text in texts:
                env.observe(env.agent_selection)
                env.step(text)
            assert env.done
        return opening

    for _ in range(3):
        start = time.process_time()
        resets = min(resets, play())
        best = min(best, time.process_time() - start)
    task, inside = env.unwrapped.task, defaultdict[str, float](float)
    if hasattr(task, "domain"):
        with ExitStack() as stack:
            for owner, name in itertools.product((type(task.domain), type(task.live.world)), PARTS):
                if hasattr(owner, name):
                    stack.enter_context(mock.patch.object(owner, name, counted(getattr(owner, name), name, inside)))
            start = time.process_time()
            play()
            inside["all"] = time.process_time() - start
    found = {"step, µs": 1e6 * best / turns, "reset, µs": 1e6 * resets / len(replies), "turns": turns / len(replies)}
    return found | {name: inside[name] / inside["all"] for name in PARTS if inside["all"]}


PARTS = ("open", "call", "state_hash", "grade")
"""Of a domain and its world; what is spent in one while in another counts for the other, too."""


def counted(function: Any, name: str, into: defaultdict[str, float]) -> Any:
    """The function, whose CPU seconds are added up."""

    def run(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            into[name] += time.process_time() - start

    return run


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", help="folder of the packages of others, where they are not installed")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in args.envs:
        try:
            env = made(name, args.package)
        except MarftError as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            continue
        found[name] = measured(env, args.episodes)
    loop = loop_microseconds()
    if args.json:
        print(json.dumps({**found, "loop, microseconds": round(loop)}))
        return
    rows = [
        [
            name,
            f"{one['turns']:.1f}",
            f"{one['step, µs']:.0f}",
            f"{1e6 / one['step, µs']:,.0f}",
            f"{one['reset, µs']:.0f}",
        ]
        + [f"{one[part]:.2f}" if part in one else "" for part in PARTS]
        for name, one in found.items()
    ]
    print(table(["", "turns", "µs a step", "steps/s", "µs a reset", *PARTS], rows))
    print(f"this machine now: {loop:.0f} CPU microseconds for sum(i * i for i in range(1000))")


if __name__ == "__main__":
    main()
