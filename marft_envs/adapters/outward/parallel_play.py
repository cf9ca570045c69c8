"""PettingZoo: a parallel view of any D, one layer a step, and names in PettingZoo's own registry.

::

    from marft_envs.adapters.outward.parallel_play import LayerParallel

    env = LayerParallel(marft_envs.make("math-debate-v0"))
    observations, infos = env.reset(seed=0)          # infos[agent]["acts"]: whose action counts now
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import pettingzoo

from marft_envs import registration
from marft_envs.core.env import FlexEnv
from marft_envs.core.wrappers import FlexWrapper
from marft_envs.errors import ConfigError

NOOP = ""
"""What agents that are not on turn say; any other action of theirs is dropped just the same."""


class LayerParallel(pettingzoo.ParallelEnv[str, Any, Any]):
    """The agents of one layer act together in one step; whatever the others answer is dropped.

    ``infos[agent]["acts"]`` says whose action counts in the next step. Under ``Independent`` all agents act in every
    step, and this is what PettingZoo's own ``aec_to_parallel`` gives. Every agent observes after every step. An agent
    that is not on turn sees the task and its messages, and need not answer. A step has the rewards of its layer.

    Args:
        env: The environment, text or :class:`marft_envs.adapters.outward.numeric.Numeric`.
    """

    def __init__(self, env: FlexEnv | FlexWrapper) -> None:
        self.env: Any = env
        self.possible_agents = list(env.possible_agents)
        self.agents: list[str] = []
        self.metadata = {**env.metadata, "is_parallelizable": True}
        self.render_mode = env.render_mode
        self.observation_spaces = {name: env.observation_space(name) for name in self.possible_agents}
        self.action_spaces = {name: env.action_space(name) for name in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        """Returns the agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        """Returns the agent's action space."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts an episode."""
        self.env.reset(seed=seed, options=options)
        self.agents = self.possible_agents[:]
        return self._observed(), self._infos()

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Takes the actions of the layer.

        Raises:
            ConfigError: The episode is over, or an agent on turn has no action.
        """
        if not self.agents:
            raise ConfigError("No agent is left to act. Next: env.reset(seed=…).")
        ready = self.env.ready_agents
        if silent := [name for name in ready if name not in actions]:
            raise ConfigError(f"It is the turn of {', '.join(ready)}; got no action of {', '.join(silent)}.")
        for name in ready:
            self.env.select(name)
            self.env.step(actions[name])
        observations, infos = self._observed(), self._infos()
        rewards = {name: float(self.env.rewards.get(name, 0.0)) for name in self.agents}
        terminations = {name: bool(self.env.terminations[name]) for name in self.agents}
        truncations = {name: bool(self.env.truncations[name]) for name in self.agents}
        self.agents = [name for name in self.agents if not (terminations[name] or truncations[name])]
        return observations, rewards, terminations, truncations, infos

    def _observed(self) -> dict[str, Any]:
        return {name: self.env.observe(name) for name in self.agents}

    def _infos(self) -> dict[str, Any]:
        ready = self.env.ready_agents
        return {name: {**self.env.infos[name], "acts": name in ready} for name in self.agents}

    def state(self) -> Any:
        """Returns the global view as text."""
        return self.env.unwrapped.state()

    def render(self) -> Any:
        """Returns or prints the transcript."""
        return self.env.render()

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()


def make(env_id: str, **kwargs: Any) -> LayerParallel:
    """Builds an environment of this project and shows it in parallel."""
    return LayerParallel(registration.make(env_id, **kwargs))


def register(namespace: str = "marft") -> list[str]:
    """Puts every environment, plugins' too, into PettingZoo's registries: ``pettingzoo.make("aec", "marft/ID")``.

    Under ``marft`` each is there already, from the moment that it is registered.

    Args:
        namespace: Stands before each id; ids that have a namespace of their own keep it.

    Returns:
        The ids there, each under ``aec`` and under ``parallel``.

    Raises:
        ConfigError: PettingZoo is older than its registry.
    """
    try:
        import pettingzoo.env_registry.registration  # noqa: F401
    except ModuleNotFoundError as error:
        have = metadata.version("pettingzoo")
        raise ConfigError(
            f"pettingzoo {have} is installed; its registry came with 1.27. Type: pip install 'pettingzoo>=1.27'"
        ) from error
    return [registration.enter(spec.id, namespace) for spec in registration.list_envs()]
