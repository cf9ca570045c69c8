"""Partners: agents that fixed texts, functions or the task's own expert play inside the environment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

from pettingzoo.utils.wrappers import BaseWrapper

from marft_envs.core.env import FlexEnv
from marft_envs.core.faults import show
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError, MarftError, WorkerError, check_known

Partner = str | Callable[[list[dict[str, str]]], str] | Callable[[FlexEnv, str], str]
"""A fixed reply, a function from chat messages to a reply, or :func:`expert`."""


class PartnerError(WorkerError):
    """A fixed partner failed: an infrastructure error, as is any missing reply."""

    fault = "engine"


class FlexWrapper(BaseWrapper):
    """Base of the wrappers here: copies keep their wrapper, and pickling works."""

    env: FlexEnv

    def fork(self, n: int = 1) -> list[Self]:
        """Returns n deep copies at this very state, wrapper included."""
        return [copy.deepcopy(self) for _ in range(n)]


def expert_of(env: FlexEnv) -> Callable[[str], str]:
    """Returns the expert of an environment's task: what it says now in an agent's place.

    Raises:
        ConfigError: The task has none.
    """
    base = env.unwrapped
    found: Callable[[str], str] | None = optional(base.task, "expert")
    if found is None:
        raise ConfigError(
            f"The task of {base.env_id} has no expert, and so no demonstrations. Give the task a method"
            " expert(agent), which returns what an expert says now, or use recorded episodes (a JSONL file, a run)."
        )
    return found


def expert(env: FlexEnv, agent: str) -> str:
    """Returns what the task's expert says now as an agent: a partner."""
    return expert_of(env)(agent)


class FixedPartners(FlexWrapper):
    """Some agents are played by fixed texts or functions; the rest act. What the partners say is recorded as ever.

    ``marft_envs.make(id, partners={"user_0": "expert"})`` does the same with what can be said in a file: ``expert``,
    or ``module:function``.

    Args:
        env: The environment.
        partners: Agent name -> a reply, a function from chat messages to a reply, or ``expert`` or ``"expert"``,
            with which the task's expert speaks. A function that fails, or gives no text, is an infrastructure error.

    Raises:
        ConfigError: If a name is unknown, or no agent is left to act.
    """

    def __init__(self, env: FlexEnv, partners: Mapping[str, Partner]) -> None:
        super().__init__(env)
        check_known(partners, env.possible_agents, "There is no agent '{}' to play.")
        self.partners = {name: expert if who == "expert" else who for name, who in partners.items()}
        self.all_rewards = dict.fromkeys(env.possible_agents, 0.0)
        """Each agent's rewards, partners' too, of the last step and the partners' steps that followed."""
        self.possible_agents = [name for name in env.possible_agents if name not in partners]
        if not self.possible_agents:
            raise ConfigError("FixedPartners must leave at least one agent to act.")

    @property
    def agents(self) -> list[str]:
        """Returns the free agents still in the episode."""
        return [name for name in self.env.agents if name not in self.partners]

    def _free(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in self.partners}

    @property
    def rewards(self) -> dict[str, float]:
        """Returns the free agents' rewards of their last step and the partners' steps that followed."""
        return {name: self.all_rewards[name] for name in self.agents}

    @property
    def terminations(self) -> dict[str, bool]:
        """Returns terminations of the free agents."""
        return self._free(self.env.terminations)

    @property
    def truncations(self) -> dict[str, bool]:
        """Returns truncations of the free agents."""
        return self._free(self.env.truncations)

    @property
    def infos(self) -> dict[str, dict[str, Any]]:
        """Returns infos of the free agents."""
        return self._free(self.env.infos)

    @property
    def ready_agents(self) -> list[str]:
        """Returns the free agents of the current layer that have not acted."""
        return [name for name in self.env.ready_agents if name not in self.partners]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode, and plays the partners up to the first free agent."""
        super().reset(seed=seed, options=options)
        self.all_rewards = dict(self.env.rewards)
        self._play()

    def step(self, action: str | None) -> None:
        """Steps, and plays the partners up to the next free agent."""
        self.all_rewards = dict.fromkeys(self.env.possible_agents, 0.0)
        self._step(action)
        self._play()

    def _step(self, action: str | None) -> None:
        self.env.step(action)
        for name, reward in self.env.rewards.items():
            self.all_rewards[name] += reward

    def _play(self) -> None:
        env = self.env
        while env.agents:
            agent = env.agent_selection
            if agent in self.partners and (env.terminations[agent] or env.truncations[agent]):
                self._step(None)
                continue
            if not (waiting := [name for name in env.ready_agents if name in self.partners]):
                return
            env.select(waiting[0])
            self._step(self._reply(waiting[0]))

    def _reply(self, agent: str) -> str:
        partner: Any = self.partners[agent]
        if isinstance(partner, str):
            return partner
        try:
            text = partner(self.env, agent) if partner is expert else partner(self.env.messages(agent))
        except MarftError:
            raise
        except Exception as error:
            show(error, f"the code that plays {agent}")
            raise PartnerError(f"The partner of {agent} failed: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise PartnerError(f"The partner of {agent} answered {type(text).__name__}; expected a text.")
        return text
