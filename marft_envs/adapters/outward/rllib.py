"""Ray RLlib: a ``MultiAgentEnv`` that shows every ready agent, so layers stay parallel.

::

    from ray import tune
    from marft_envs.adapters.outward.numeric import Numeric
    from marft_envs.adapters.outward.rllib import RLlibEnv

    tune.register_env("relay", lambda config: RLlibEnv(Numeric(marft_envs.make("relay-v0"), mask=False)))
    # PPOConfig().environment("relay").multi_agent(policies={…}, policy_mapping_fn=lambda agent, episode, **_: agent)

Text goes through it unchanged (``RLlibEnv(marft_envs.make(…))``); RLlib makes tensors of observations in front of its
modules, so a policy on text needs env-to-module connectors of its own. Needs the extra ``rllib``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.adapters.optional import require
from marft_envs.core.env import FlexEnv
from marft_envs.core.wrappers import FlexWrapper
from marft_envs.errors import ConfigError

MultiAgentEnv: Any = require("ray.rllib.env.multi_agent_env", "rllib", "2.40", "ray", "3").MultiAgentEnv


class RLlibEnv(MultiAgentEnv):
    """A team in RLlib's terms: observations are of the agents that act next, all of a layer at once.

    Rewards are PettingZoo's (see ``attribution``). An agent's rewards before its first turn come with its first reward.
    Last observations, rewards and ends go to the agents that acted in the episode; RLlib keeps no episode of others.

    Args:
        env: The environment, text or :class:`marft_envs.adapters.outward.numeric.Numeric` (``mask=False`` for
            RLlib's own modules, which know no masks).
    """

    def __init__(self, env: FlexEnv | FlexWrapper) -> None:
        super().__init__()
        self.env: Any = env
        self.possible_agents = list(env.possible_agents)
        self.agents = self.possible_agents[:]
        self.observation_spaces = {name: env.observation_space(name) for name in self.possible_agents}
        self.action_spaces = {name: env.action_space(name) for name in self.possible_agents}
        self.render_mode = env.render_mode
        self._acted: set[str] = set()
        self._ended: set[str] = set()
        self._undelivered: dict[str, float] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode."""
        self.env.reset(seed=seed, options=options)
        self.agents = self.possible_agents[:]
        self._acted, self._ended = set(), set()
        self._undelivered = dict.fromkeys(self.possible_agents, 0.0)
        return self._observed()

    def step(self, action_dict: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Takes one action of every ready agent.

        Raises:
            ConfigError: The actions are not those of the agents that were observed.
        """
        ready = self.env.ready_agents
        if set(action_dict) != set(ready):
            raise ConfigError(f"It is the turn of {ready}; got actions of {sorted(action_dict)}.")
        for name in ready:
            self.env.select(name)
            self.env.step(action_dict[name])
        self._acted.update(ready)
        for name, reward in self.env.rewards.items():
            self._undelivered[name] += reward
        present = [name for name in self.possible_agents if name in self._acted - self._ended]
        rewards = {name: self._undelivered[name] for name in present}
        self._undelivered.update(dict.fromkeys(present, 0.0))
        terminated = {name: bool(self.env.terminations[name]) for name in present}
        truncated = {name: bool(self.env.truncations[name]) for name in present}
        self._ended.update(name for name in terminated if terminated[name] or truncated[name])
        self.agents = [name for name in self.possible_agents if name not in self._ended]
        done = self.env.unwrapped.done
        cut = done and self.env.unwrapped.episode.truncated
        terminated["__all__"], truncated["__all__"] = done and not cut, cut
        ended = [name for name in rewards if name in self._ended]
        observations, infos = self._observed(ended)
        return observations, rewards, terminated, truncated, infos

    def _observed(self, ended: list[str] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        names = [*self.env.ready_agents, *(ended or [])]
        return {name: self.env.observe(name) for name in names}, {name: dict(self.env.infos[name]) for name in names}

    def render(self) -> Any:
        """Returns or prints the transcript."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()
