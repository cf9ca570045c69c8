r"""Gymnasium: one agent of a team learns, its partners are fixed policies.

::

    from marft_envs.adapters.outward import gymnasium_env

    env = gymnasium_env.make("math-dual-v0", agent="actor_0", partners={"reasoner_0": "Let me add."})
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(r"\boxed{3}")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from marft_envs import registration
from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import FixedPartners, Partner
from marft_envs.errors import ConfigError, check_known

IDLE_EPISODES = 100
"""Episodes in a row in which the learner may stay without a turn before that is taken for a mistake."""


class SingleAgentEnv(gymnasium.Env[Any, Any]):
    """A team seen by one of its agents: partners' turns pass between two of its own.

    A step's reward is the sum of the learner's PettingZoo rewards from its action to its next turn or the end. Rewards
    before its first turn come with its first step, so that returns agree. A Gymnasium episode has at least one step, so
    ``reset`` goes on to the next episode when one ends before the learner had a turn (``info["skipped"]``).

    Args:
        env: The team's environment; its ``observation`` setting is what the learner sees.
        agent: Who learns.
        partners: For each other agent a fixed reply, or a function from chat messages to a reply.

    Raises:
        ConfigError: An agent is unknown, or somebody is neither learner nor partner.
    """

    def __init__(self, env: FlexEnv, agent: str, partners: Mapping[str, Partner] | None = None) -> None:
        partners = dict(partners or {})
        check_known([agent], env.possible_agents, "There is no agent '{}' to learn.")
        if agent in partners:
            raise ConfigError(f"'{agent}' learns; it cannot be a partner too. Leave it out of partners.")
        if idle := [name for name in env.possible_agents if name != agent and name not in partners]:
            raise ConfigError(f"{', '.join(idle)}: no partner. Expected partners={{'{idle[0]}': reply or function}}.")
        self.env = FixedPartners(env, partners) if partners else env
        self.agent = agent
        self.observation_space = env.observation_space(agent)
        self.action_space = env.action_space(agent)
        self.metadata = {"render_modes": list(env.metadata["render_modes"])}
        self.render_mode = env.render_mode
        self._early = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode in which the learner has a turn."""
        super().reset(seed=seed)
        self.env.reset(seed=seed, options=options)
        skipped = 0
        while self.env.done:
            skipped += 1
            if skipped > IDLE_EPISODES:
                raise ConfigError(
                    f"'{self.agent}' had no turn in {IDLE_EPISODES} episodes in a row. Expected partners, or a D, "
                    "that let it act."
                )
            self.env.reset(options=options)
        self._early = self.env.rewards[self.agent]
        return self.env.observe(self.agent), {**self.env.infos[self.agent], "skipped": skipped}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Says ``action``, and lets the partners speak up to the learner's next turn or the end."""
        if self.env.done:
            raise ConfigError("The episode is over. Next: env.reset().")
        self.env.select(self.agent)
        self.env.step(action)
        team = self.env.unwrapped
        reward = self._early + float(self.env.rewards.get(self.agent, 0.0))
        self._early = 0.0
        ended = team.done or team.terminations[self.agent]
        truncated = bool(team.truncations.get(self.agent, False))
        info = dict(team.infos.get(self.agent, {}))
        return self.env.observe(self.agent), reward, ended and not truncated, truncated, info

    def render(self) -> Any:
        """Returns or prints the transcript."""
        return self.env.render()

    def close(self) -> None:
        """Closes the team's environment."""
        self.env.close()


def make(env_id: str, agent: str = "", partners: Mapping[str, Partner] | None = None, **kwargs: Any) -> SingleAgentEnv:
    """Builds an environment of this project and shows one agent's side of it.

    ``gymnasium.make("marft/math-dual-v0", agent=…, partners=…)`` does the same, once ``marft_envs`` is imported.

    Args:
        env_id: An id of ``marft_envs``.
        agent: Who learns; empty: the only one who is no partner.
        partners: See :class:`SingleAgentEnv`.
        **kwargs: Settings of the environment.
    """
    env = registration.make(env_id, **kwargs)
    free = [name for name in env.possible_agents if name not in (partners or {})]
    if not agent and len(free) != 1:
        raise ConfigError(
            f"'{env_id}' has several agents, and no learner is named. Expected agent='{env.possible_agents[-1]}', and"
            " partners={AGENT: reply or function} for all others."
        )
    return SingleAgentEnv(env, agent or free[0], partners)
