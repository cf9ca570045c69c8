"""Small environments of the kinds that others write, for the adapters' tests."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Counting(AECEnv):
    """Text in, text out: players add 1 or 2 in an order of the environment's own; who reaches five wins."""

    metadata = {"name": "counting_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents = ["ann", "bob", "cid"]
        self.render_mode = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Text(100)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Text(100)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.total = 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = str(self.rng.choice(self.agents))

    def observe(self, agent: str) -> str:
        return f"{self.total} so far"

    def step(self, action: str | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.total += 2 if action == "two" else 1
        if self.total >= 5:
            self.rewards = {name: 1.0 if name == agent else -0.5 for name in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = str(self.rng.choice(self.agents))

    def close(self) -> None:
        pass


class Choir(ParallelEnv):
    """Everybody says 0 or 1; all are paid the share that agrees. ``low`` leaves after the second round."""

    metadata = {"name": "choir_v0"}  # noqa: RUF012

    def __init__(self, rounds: int = 3) -> None:
        self.possible_agents, self.rounds, self.render_mode = ["low", "high"], rounds, None
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(10)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents, self.round = self.possible_agents[:], 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        self.round += 1
        said = list(actions.values())
        paid = dict.fromkeys(self.agents, float(len(set(said)) == 1))
        gone = {agent: self.round >= self.rounds or (agent == "low" and self.round == 2) for agent in self.agents}
        here = self.agents
        self.agents = [agent for agent in here if not gone[agent]]
        return dict.fromkeys(here, self.round), paid, gone, dict.fromkeys(here, False), {agent: {} for agent in here}

    def close(self) -> None:
        pass


class Door(gymnasium.Env[str, int]):
    """One of three doors is right; it seeds and draws from the global generators, as one should not."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        np.random.seed(seed)
        self.right, self.steps = random.randrange(3), 0
        return f"A room, number {np.random.randint(1000)}.", {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return f"Number {random.randrange(1000)}.", float(action == self.right), self.steps == 4, False, {}


class Picture(gymnasium.Env[Any, Any]):
    """An image, and a steering wheel."""

    action_space = spaces.Box(-1.0, 1.0, (2,))
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)


class AllAtOnce:
    """Several agents move at once, without PettingZoo's parallel API."""

    agents = ("a", "b")

    def reset(self) -> dict[str, int]:
        return {"a": 0, "b": 0}

    def step(self, actions: dict[str, int]) -> Any:
        return {}, {}, {}, {}


class Growing(Choir):
    """Somebody joins in mid-episode."""

    def step(self, actions: dict[str, int]) -> Any:
        found = super().step(actions)
        self.agents.append("late")
        return found


class Nameless(Choir):
    """It does not say who may ever act."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = []


class Unseeded(Choir):
    """Its first observation is another one every time."""

    count = 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        found = super().reset(seed)
        Unseeded.count += 1
        return dict.fromkeys(self.agents, Unseeded.count), found[1]


def make_counting() -> Counting:
    return Counting()
