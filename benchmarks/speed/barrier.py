"""How much of the time an engine of servers is at work, when every episode goes on by itself and when all wait for all.

    python -m benchmarks barrier [--episodes 512] [--slots 64] [--turns 20] [--mean 0.1] [--sigma 1.0] [--seed 0]

The engine sleeps: the latency of a reply is log-normal (mean ``--mean`` seconds, ``--sigma`` of its logarithm) and
hangs on the request's seed, so both ways of collecting wait for the same replies. Busy is the sum of all latencies over
slots times wall-clock seconds: 1 means that every slot waits for a reply at all times, the last episodes' included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from marft_algos.engines import ScriptedEngine
from marft_algos.rollout.collector import Collector
from marft_algos.types import Generation, GenerationRequest, SamplingParams
from marft_envs import AgentSpec, FlexEnv, Outcome, TurnRecord
from marft_envs.core.vector import VectorEnv


class Talk:
    """A task of one agent that is over after so many rounds."""

    slow, task_id = False, "talk"

    def reset(self, rng: np.random.Generator, options: object) -> None:
        """Nothing to draw."""

    def observe(self, agent: str) -> str:
        return "Go on."

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome(team_reward=1.0)

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ["Yes."]

    def validate(self) -> None:
        """Nothing to prove."""


class Servers(ScriptedEngine):
    """Replies that take their time, as many at once as there are slots."""

    def __init__(self, slots: int, mean: float, sigma: float, one_by_one: bool) -> None:
        super().__init__({"*": "Yes."})
        self.one_by_one = one_by_one
        self._pool = ThreadPoolExecutor(slots)
        self._mean, self._sigma = mean, sigma
        self.latencies: list[float] = []

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        return list(self._pool.map(self._one, requests))

    def _one(self, request: GenerationRequest) -> Generation:
        drawn = np.random.default_rng(request.seed).normal(-(self._sigma**2) / 2, self._sigma)
        latency = self._mean * float(np.exp(drawn))
        time.sleep(latency)
        self.latencies.append(latency)
        return self._answer(request)


def busy(args: argparse.Namespace, one_by_one: bool) -> tuple[float, float]:
    """Share of slot time spent waiting for replies, and wall-clock seconds."""

    def make() -> FlexEnv:
        return FlexEnv([AgentSpec("agent_0", "agent")], Talk(), "independent", max_rounds=args.turns)

    engine = Servers(args.slots, args.mean, args.sigma, one_by_one)
    collector = Collector(VectorEnv([make] * args.slots), None, engine, SamplingParams(), seed=args.seed)
    started = time.monotonic()
    played = collector.collect(range(args.episodes))
    seconds = time.monotonic() - started
    assert len(engine.latencies) == args.episodes * args.turns == sum(len(d.transitions) for d in played)
    return sum(engine.latencies) / (args.slots * seconds), seconds


def main() -> None:
    """Prints both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("episodes", 512), ("slots", 64), ("turns", 20), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, seconds in (("mean", 0.1), ("sigma", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=seconds)
    args = parser.parse_args()
    together, slow = busy(args, False)
    apart, fast = busy(args, True)
    print(f"all wait for all:          busy {together:.1%}, {slow:.1f} s")
    print(f"each episode by itself:    busy {apart:.1%}, {fast:.1f} s, {slow / fast:.2f} times as fast")


if __name__ == "__main__":
    main()
