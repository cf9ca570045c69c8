"""Does scoring wait in the background while replies are generated?

::

    python -m benchmarks overlap [--judge 0.2] [--batch 0.1]

Poll/push with a judge that takes its time and a generator that takes its time for a batch, both by sleeping: what is
measured is the driver. Reported is the share of the wall clock in which the generator was at work, from the first
request to the last reply, beside a driver that judges after every batch before it asks again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord
from marft_envs.core.vector import VectorEnv

TEAM = (AgentSpec("coder_0", "coder", "Write."), AgentSpec("reviewer_0", "reviewer", "Review."))


class SlowJudge:
    """A task whose verdicts take ``seconds`` each, and no processor time."""

    task_id, slow = "slow", True

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Nothing to draw."""

    def observe(self, agent: str) -> str:
        return "Say anything."

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        time.sleep(self.seconds)
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(team_reward=1.0, success=True)

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ("anything",)

    def validate(self) -> None:
        """Nothing to prove."""


def busy(slots: int, episodes: int, judge: float, batch: float, largest: int, wait: bool) -> float:
    """Returns the share of the wall clock in which the generator worked; ``wait``: it waits for every verdict."""
    vec = VectorEnv([lambda: FlexEnv(TEAM, SlowJudge(judge), Chain())] * slots)
    vec.reset(range(episodes))
    pending: list[Any] = []
    worked, end = 0.0, 0.0
    start = time.perf_counter()
    while not vec.done:
        if wait or not pending:  # poll waits where nothing can be generated
            pending += vec.poll(wait=wait)
        now, pending = pending[:largest], pending[largest:]
        if now:
            began = time.perf_counter()
            time.sleep(batch)
            end = time.perf_counter()
            worked += end - began
        vec.push(now, ["anything"] * len(now))
    vec.close()
    return worked / (end - start)


def main() -> None:
    """Measures both and prints a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", type=float, default=0.2, help="seconds of a verdict")
    parser.add_argument("--batch", type=float, default=0.1, help="seconds of a generated batch")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--largest", type=int, default=8, help="replies in a batch, at most")
    parser.add_argument("--episodes", type=int, default=400)
    args = parser.parse_args()
    for name, wait in (("poll/push", False), ("waiting for verdicts", True)):
        share = busy(args.envs, args.episodes, args.judge, args.batch, args.largest, wait)
        print(f"{name:<22} generator at work {100 * share:.1f} % of the time")


if __name__ == "__main__":
    main()
