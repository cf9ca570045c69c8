"""Keeps past states of the policies as opponents, and rates players by their games.

In an episode against the pool one agent, drawn by the episode's number, plays as it is; the others are played by one of
the past states. Their turns are in the record and are not trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from marft_algos import credit, seeds
from marft_algos.config.settings import TrainConfig
from marft_algos.models.policy import PolicySet
from marft_algos.types import Estimates, Trajectory
from marft_envs.errors import ConfigError


def past(policies: Sequence[str], size: int) -> dict[str, str]:
    """Returns the ids of the pool's members, ``<policy>-past-<k>`` -> the policy that they are a past state of."""
    return {f"{policy}-past-{k}": policy for k in range(size) for policy in policies}


class Pool:
    """Past states of the trained policies.

    Args:
        config: The run's settings: ``pool``, ``pool_every``, ``pool_share``.
        policies: The team, built with the ids of ``past`` as spare ones.

    Raises:
        ConfigError: One agent alone has nobody to play against.
    """

    def __init__(self, config: TrainConfig, policies: PolicySet) -> None:
        if len(policies.renderer.agents) < 2:
            raise ConfigError("A pool of past policies needs at least two agents. Leave out --pool.")
        self._size, self._every, self._share = config.pool, config.pool_every, config.pool_share
        self._seed, self._policies = config.seed, policies

    def assign(self, agent: str, iteration: int, episode: int) -> str:
        """Returns who plays an agent in an episode: its policy, or one of its past states."""
        policy = self._policies.renderer.policy_of(agent)
        learner, member = self.drawn(iteration, episode)
        if learner in ("", agent) or not self._policies.renderer.trains(policy):
            return policy
        return f"{policy}-past-{member}"

    def drawn(self, iteration: int, episode: int) -> tuple[str, int]:
        """Returns which agent plays as it is ("": everybody), and which past state plays the others."""
        rng = seeds.generator(seeds.opponents(self._seed, iteration, episode))
        if rng.random() >= self._share:
            return "", 0
        team = self._policies.renderer
        agents = [agent for agent in team.agents if team.trains(team.policy_of(agent))]
        return agents[int(rng.integers(len(agents)))], int(rng.integers(self._size))

    def take(self, iteration: int) -> list[str]:
        """Puts the present state in the oldest one's place every ``pool_every`` iterations; returns what changed."""
        if iteration % self._every:
            return []
        member = iteration // self._every % self._size
        changed = []
        for policy in self._policies.policies:
            copy = f"{policy}-past-{member}"
            if copy in self._policies.policies:
                self._policies.weights(copy).copy_from(self._policies.weights(policy).tensors, f"policy '{policy}'")
                changed.append(copy)
        return changed

    def results(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Returns the present state's mean return in episodes against the pool."""
        scores = []
        for trajectory in trajectories:
            if any("-past-" in t.policy for t in trajectory.transitions):
                own, learners = credit.broadcast(trajectory), {t.agent for t in trajectory.transitions if t.trainable}
                scores += [credit.agent_score(trajectory, own, agent, Estimates()) for agent in sorted(learners)]
        return {"pool/return": float(np.mean(scores)), "pool/episodes": float(len(scores))} if scores else {}


def elo(points: Mapping[tuple[str, str], tuple[float, int]], anchor: str, rounds: int = 2000) -> dict[str, float]:
    """Rates players by maximum likelihood: P(a beats b) = 1 / (1 + 10^((r_b − r_a)/400)), a draw counting half.

    Half a point is added to either side of every pairing, so that who has won every game has a finite rating.

    Args:
        points: (a, b) -> a's points against b, and how many games they played.
        anchor: Whose rating is 0.
        rounds: Steps of the fixed-point iteration (Zermelo's).

    Returns:
        Player -> rating.

    Raises:
        ConfigError: The anchor is not among the players.
    """
    names = sorted({name for pair in points for name in pair})
    if anchor not in names:
        raise ConfigError(f"'{anchor}' played no game, so ratings cannot be relative to it. Players: {names}.")
    index = {name: i for i, name in enumerate(names)}
    won, games = np.zeros(len(names)), np.zeros((len(names), len(names)))
    for (a, b), (score, n) in points.items():
        won[index[a]] += score + 0.5
        won[index[b]] += n - score + 0.5
        games[index[a], index[b]] += n + 1
        games[index[b], index[a]] += n + 1
    strength = np.ones(len(names))
    for _ in range(rounds):
        strength = won / (games / (strength[:, None] + strength[None, :])).sum(1)
        strength /= np.exp(np.log(strength).mean())
    ratings = 400 * np.log10(strength / strength[index[anchor]])
    return {name: float(ratings[i]) for name, i in index.items()}
