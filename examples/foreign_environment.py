"""Somebody else's environment: a PettingZoo one with numbers in and out, put into words, checked, then trained.

Run it: ``python examples/foreign_environment.py``. ``Meeting`` stands for any environment that knows nothing of
language models. To train on it takes what ``wrapped`` does, and a registration if it is to have an id.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marft_envs
from marft_envs.adapters.inward import compliance, parallel
from marft_envs.adapters.inward.codecs import Discrete


class Meeting(ParallelEnv):
    """Two walkers on five fields take a step at a time, at most three; where they meet, each has a reward of 1."""

    metadata = {"name": "meeting_v0"}  # noqa: RUF012
    possible_agents = ("ann", "bob")

    def observation_space(self, agent):
        return spaces.MultiDiscrete([5, 5])

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        first, second = np.random.default_rng(seed).permutation(5)[:2]
        self.agents, self.at, self.steps = list(self.possible_agents), {"ann": int(first), "bob": int(second)}, 0
        return self.seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.at = {agent: min(max(at + actions[agent] - 1, 0), 4) for agent, at in self.at.items()}
        self.steps += 1
        met, seen, team = len(set(self.at.values())) == 1, self.seen(), self.agents
        self.agents = [] if met or self.steps == 3 else team
        given = (met, met, self.steps == 3, {})  # reward, termination, truncation, info
        return (seen, *({agent: type(value)(value) for agent in team} for value in given))

    def seen(self):
        return {a: np.array([self.at[a], self.at[b]]) for a, b in (("ann", "bob"), ("bob", "ann"))}


def words(at):  # at the module's level, so that the environment can be pickled
    return f"you {at[0]}, other {at[1]}"


def wrapped(**flex):
    codec = Discrete(3, show=words)
    profile = "Meet. 0 goes down, 1 stays, 2 goes up."
    return parallel.wrap(Meeting(), codec, profiles=profile, cooperative=True, illegal="random", **flex)


marft_envs.register("meeting-v0", wrapped, summary="example: a PettingZoo environment of others")

if __name__ == "__main__":
    import sys

    import marft_algos

    print(compliance.report(Meeting()))
    print(marft_envs.check_env("meeting-v0"))
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    run = marft_algos.train("toy", env="meeting-v0", env_kwargs={}, iterations=iterations, eval_episodes=200)
    print(f"return {run.metrics()[0]['eval/success']:.2f} -> {run.metrics()[-1]['eval/success']:.2f}")
    print(f"report: {run.report_file}")
