"""Agent turns per CPU-second of the environments alone (no model, no grading), and how long their import takes.

    python -m benchmarks envs [--turns 32000]
    python -m benchmarks envs --gate          # poll/push against the AEC loop, in pairs; exit status 1 below GATE

A chain of four agents, in which each sees all before it, over one round and over eight; resets included. An AEC row
calls ``env.last()`` (which renders the observation) and ``env.step`` for each turn and steps the dead at the end.
Time is ``time.process_time``, one thread; each figure is the best of three. A loop of plain Python, timed at the end,
makes the figures of two machines comparable.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, OrderEnforcingWrapper

from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord
from marft_envs.core.vector import VectorEnv

TEAM = tuple(AgentSpec(f"worker_{i}", f"worker{i}", "Work on the problem with the others.") for i in range(4))
REPLY = "First add the two numbers, then multiply by three: the result is 42."
SLOTS = 64


class Constant:
    """A task that costs nothing: what is measured is the environment."""

    task_id, slow = "constant", False

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.number = int(rng.integers(1000))

    def observe(self, agent: str) -> str:
        return "What is (2 + 12) * 3?"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(team_reward=1.0, success=True)

    def sample_actions(self, agent: str) -> Sequence[str]:
        return (REPLY,)

    def validate(self) -> None:
        """Nothing to prove."""


def chain(rounds: int) -> FlexEnv:
    return FlexEnv(TEAM, Constant(), Chain(), max_rounds=rounds)


def aec(env: Any, episodes: int) -> None:
    for seed in range(episodes):
        env.reset(seed=seed)
        for _ in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            env.step(None if terminated or truncated else REPLY)


def bare(rounds: int, episodes: int) -> None:
    aec(chain(rounds), episodes)


def wrapped(rounds: int, episodes: int) -> None:
    aec(OrderEnforcingWrapper(AssertOutOfBoundsWrapper(chain(rounds))), episodes)


def driven(rounds: int, episodes: int) -> None:
    env = chain(rounds)
    for seed in range(episodes):
        env.reset(seed=seed)
        while not env.done:
            env.observe(env.agent_selection)
            env.step(REPLY)


def polled(rounds: int, episodes: int, render: bool) -> None:
    vec = VectorEnv([partial(chain, rounds)] * SLOTS)
    vec.reset(range(episodes))
    while not vec.done:
        requests = vec.poll()
        if render:
            for request in requests:
                _ = request.messages
        vec.push(requests, [REPLY] * len(requests))


ROWS: dict[str, tuple[Callable[[int, int], None], int]] = {
    "bare, observe and step": (driven, 50_000),
    "bare, AEC loop with last()": (bare, 0),
    "two PettingZoo wrappers, AEC loop with last()": (wrapped, 20_000),
    f"poll/push, {SLOTS} environments": (partial(polled, render=False), 50_000),
    f"poll/push, {SLOTS} environments, messages rendered": (partial(polled, render=True), 0),
}
"""Name -> what is run, and the rate it has to reach (0: none set)."""


def rate(run: Callable[[int, int], None], rounds: int, turns: int) -> float:
    """Returns agent turns per CPU-second, the best of three."""
    episodes = max(turns // (4 * rounds), SLOTS)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        run(rounds, episodes)
        best = min(best, time.process_time() - start)
    return episodes * 4 * rounds / best


GATE = {1: 0.7, 8: 0.5}
"""Rounds -> turns a CPU-second of poll/push with 64 environments, over those of one environment's AEC loop with
``last()``, in the same run: what a change may not fall below. A quiet machine has about 1 and .75, a busy one less: 64
environments want more of its caches than one."""
PAIRS = 9


def gate() -> int:
    """Plays the same episodes both ways, in turn; returns 1 if the median ratio is below ``GATE``."""
    missed = 0
    for rounds, least in GATE.items():
        episodes = 2048 // rounds
        ratios = []
        for _ in range(PAIRS):
            spent = []
            for run in (partial(polled, render=False), bare):
                start = time.process_time()
                run(rounds, episodes)
                spent.append(time.process_time() - start)
            ratios.append(spent[1] / spent[0])
        ratios.sort()
        middle = ratios[PAIRS // 2]
        verdict = "reached" if middle >= least else "MISSED"
        missed += middle < least
        print(
            f"poll/push over the AEC loop, {rounds} round{'s' * (rounds > 1)}: {middle:.2f} "
            f"[{ratios[0]:.2f}, {ratios[-1]:.2f}], {PAIRS} pairs; at least {least}: {verdict}"
        )
    return int(missed > 0)


def loop_microseconds() -> float:
    """Returns CPU microseconds of ``sum(i * i for i in range(1000))``, the best of three: how fast this machine is."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for _ in range(500):
            sum(i * i for i in range(1000))
        best = min(best, time.process_time() - start)
    return best / 500 * 1e6


def import_seconds() -> float:
    """Returns the CPU seconds of ``import marft_envs`` in a fresh interpreter, the best of five."""
    code = "import time; start = time.process_time(); import marft_envs; print(time.process_time() - start)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=32_000, help="turns per measurement")
    parser.add_argument("--gate", action="store_true", help="compare poll/push with the AEC loop, and judge")
    args = parser.parse_args()
    if args.gate:
        sys.exit(gate())
    rates: dict[str, Any] = {
        name: {str(rounds): round(rate(run, rounds, args.turns)) for rounds in (1, 8)}
        for name, (run, _) in ROWS.items()
    }
    seconds, loop = import_seconds(), loop_microseconds()
    print(f"{'agent turns per CPU-second, chain of four':<54}{'1 round':>10}{'8 rounds':>10}{'wanted':>10}")
    for name, (_, wanted) in ROWS.items():
        one, eight = rates[name]["1"], rates[name]["8"]
        print(f"{name:<54}{one:>10,}{eight:>10,}{f'{wanted:,}' if wanted else '':>10}")
    print(f"import marft_envs: {seconds:.2f} CPU seconds (wanted: below 1)")
    print(f"this machine now: {loop:.0f} CPU microseconds for sum(i * i for i in range(1000))")


if __name__ == "__main__":
    main()
