"""A task that does what a test tells it to, and small teams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord

Say = Callable[[Sequence[TurnRecord]], Outcome]


class PlainTask:
    """Draws a number; ``layer`` and ``round`` answer for it (default: nothing)."""

    def __init__(self, layer: Say | None = None, round: Say | None = None, slow: bool = False) -> None:
        self.layer, self.round, self.slow = layer, round, slow
        self.task_id, self.number = "", 0

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.number = int(options["task_id"]) if "task_id" in options else int(rng.integers(1000))
        self.task_id = str(self.number)

    def observe(self, agent: str) -> str:
        return f"The number is {self.number}."

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return self.layer(turns) if self.layer else Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        return self.round(turns) if self.round else Outcome()

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ("yes", "no", f"it is {self.number}")

    def validate(self) -> None:
        """Nothing to prove."""


def team(n: int) -> list[AgentSpec]:
    return [AgentSpec(f"{chr(97 + i)}_0", chr(97 + i), f"You are {chr(97 + i)}.") for i in range(n)]


def flex(n: int = 3, dependency: Any = None, task: Any = None, **kwargs: Any) -> FlexEnv:
    return FlexEnv(team(n), task or PlainTask(), Chain() if dependency is None else dependency, **kwargs)


def play(env: FlexEnv, seed: int = 0, say: Callable[[FlexEnv, str], str] | None = None) -> FlexEnv:
    """Plays to the end; each agent says its name and turn by default. Returns the environment."""
    env.reset(seed=seed)
    while not env.done:
        start = len(env.view.history)
        for offset, agent in enumerate(env.ready_agents):
            env.select(agent)
            env.step(say(env, agent) if say else f"{agent} says {start + offset}")
    return env


def order(env: FlexEnv) -> list[str]:
    """Who acted, by first letters, one word per layer."""
    turns = env.episode.turns
    return ["".join(turns[i].agent[0] for i in layer.turns) for layer in env.episode.layers]
