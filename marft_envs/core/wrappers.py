"""Wraps a :class:`FlexEnv` in the usual additions, as PettingZoo wrappers.

PettingZoo's ``BaseWrapper`` passes every public name that a wrapper lacks to what it wraps. Whatever leads to a step,
an end or a copy is therefore overridden here, so that drivers (``ready_agents``, ``select``, ``step``) and the AEC loop
go through the wrapper alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, cast

from pettingzoo.utils.wrappers import BaseWrapper

from marft_envs.core import observation as obs_mod
from marft_envs.core.env import FlexEnv
from marft_envs.core.faults import show
from marft_envs.core.types import Fault
from marft_envs.errors import ConfigError, MarftError, WorkerError, did_you_mean
from marft_envs.records import experts, trajectory
from marft_envs.registry import import_for

Partner = str | Callable[[list[dict[str, str]]], str] | Callable[[FlexEnv, str], str]
"""A fixed reply, a function from chat messages to a reply, or :func:`marft_envs.records.experts.reply`."""


class PartnerError(WorkerError):
    """A fixed partner failed: an outage, as with any reply that did not come."""

    fault = "engine"


class FlexWrapper(BaseWrapper):
    """Base of the wrappers here: copies keep their wrapper, and pickling works."""

    env: FlexEnv

    def fork(self, n: int = 1) -> list[Self]:
        """Returns n deep copies at this very state, wrapper included."""
        return [copy.deepcopy(self) for _ in range(n)]


class TurnLimit(FlexWrapper):
    """Truncates the episode when its next layer would take it beyond ``max_turns``; the limit itself pays nothing.

    ``FlexEnv(max_turns=…)`` is the limit that belongs to the task: it ends the episode with a score. Under
    :class:`FixedPartners` this wrapper goes inside, so that it counts the partners' turns as they come.
    """

    def __init__(self, env: FlexEnv, max_turns: int) -> None:
        super().__init__(env)
        if max_turns < 1:
            raise ConfigError(f"TurnLimit(max_turns=…) must be at least 1; got {max_turns}.")
        self.max_turns = max_turns

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode."""
        super().reset(seed=seed, options=options)
        first = len(self.env.layer)
        if first > self.max_turns:
            raise ConfigError(f"TurnLimit({self.max_turns}) leaves no room for the first layer, in which {first} act.")

    def step(self, action: str | None) -> None:
        """Steps, then minds the limit."""
        super().step(action)
        if not self.env.done and len(self.env.view.history) + len(self.env.layer) > self.max_turns:
            self.env.truncate("turn_limit")


class RecordEpisodes(FlexWrapper):
    """Appends every finished episode to a JSONL file (see :mod:`marft_envs.records.trajectory`)."""

    def __init__(self, env: FlexEnv, path: str | Path) -> None:
        super().__init__(env)
        self.path = Path(path)
        self.recorded = False
        """Whether the current episode has been written."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts an episode."""
        super().reset(seed=seed, options=options)
        self.recorded = False
        self._record()

    def step(self, action: str | None) -> None:
        """Steps, and writes the episode when that ended it."""
        super().step(action)
        self._record()

    def truncate(self, reason: str, fault: Fault = "") -> None:
        """Truncates the episode and writes it."""
        self.env.truncate(reason, fault)
        self._record()

    def _record(self) -> None:
        if self.env.done and not self.recorded:
            self.recorded = True
            trajectory.write(self.path, self.env.episode)


class PromptObservation(FlexWrapper):
    """Observations are one prompt each, ``{"prompt": …, "turn": …}``, whatever the environment's own setting.

    Args:
        env: The environment.
        render: From chat messages to the prompt; default: the contents, an empty line between them.
    """

    def __init__(self, env: FlexEnv, render: Callable[[list[dict[str, str]]], str] | None = None) -> None:
        super().__init__(env)
        self._render = render
        self.observation_spaces = {name: obs_mod.space("prompt") for name in env.possible_agents}

    def observation_space(self, agent: str) -> Any:
        """Returns the agent's observation space."""
        return self.observation_spaces[agent]

    def observe(self, agent: str) -> dict[str, Any]:
        """Returns the prompt of the agent."""
        messages = self.env.messages(agent)
        if self._render is not None:
            prompt = self._render(messages)
        else:
            prompt = "\n\n".join(message["content"] for message in messages if message["content"])
        return {"prompt": prompt, "turn": len(self.env.view.history)}


class FixedPartners(FlexWrapper):
    """Some agents are played by fixed texts or functions; the rest act. What the partners say is recorded as ever.

    ``marft_envs.make(id, partners={"user_0": "expert"})`` does the same with what can be said in a file: ``expert``,
    or ``module:function``.

    Args:
        env: The environment.
        partners: Agent name -> a reply, a function from chat messages to a reply, or ``experts.reply``, with which the
            task's expert speaks. A function that fails, or gives no text, is an outage.

    Raises:
        ConfigError: If a name is unknown, or nobody is left to act.
    """

    def __init__(self, env: FlexEnv, partners: Mapping[str, Partner]) -> None:
        super().__init__(env)
        for name in partners:
            if name not in env.possible_agents:
                raise ConfigError(f"There is no agent '{name}' to play. {did_you_mean(name, env.possible_agents)}")
        self.partners = dict(partners)
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
        """Returns what the free agents were paid by their last step and the partners' that followed."""
        return {name: self._paid[name] for name in self.agents}

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
        self._paid = dict(self.env.rewards)
        self._play()

    def step(self, action: str | None) -> None:
        """Steps, and plays the partners up to the next free agent."""
        self._paid = dict.fromkeys(self.env.possible_agents, 0.0)
        self._step(action)
        self._play()

    def _step(self, action: str | None) -> None:
        self.env.step(action)
        for name, reward in self.env.rewards.items():
            self._paid[name] += reward

    def _play(self) -> None:
        env = self.env
        while env.agents:
            agent = env.agent_selection
            if agent in self.partners and (env.terminations[agent] or env.truncations[agent]):
                self._step(None)
                continue
            waiting = [name for name in env.ready_agents if name in self.partners]
            if not waiting:
                return
            env.select(waiting[0])
            self._step(self._reply(waiting[0]))

    def _reply(self, agent: str) -> str:
        partner: Any = self.partners[agent]
        if isinstance(partner, str):
            return partner
        try:
            text = partner(self.env, agent) if partner is experts.reply else partner(self.env.messages(agent))
        except MarftError:
            raise
        except Exception as error:
            show(error, f"the code that plays {agent}")
            raise PartnerError(f"Who plays {agent} failed: {type(error).__name__}: {error}") from error
        if not isinstance(text, str):
            raise PartnerError(f"Who plays {agent} answered {type(text).__name__}; expected a text.")
        return text


def partnered(env: FlexEnv, partners: Mapping[str, str]) -> FixedPartners:
    """Returns the environment with partners as ``make`` is told of them: ``expert``, or ``module:function``.

    Raises:
        ConfigError: It is neither, or the function is not there.
    """
    said = {name: _named(str(partner)) for name, partner in dict(partners).items()}
    return FixedPartners(env, said)


def _named(partner: str) -> Partner:
    if partner == "expert":
        return experts.reply
    module, colon, name = partner.partition(":")
    function = getattr(import_for(partner, module), name, None) if colon else None
    if not callable(function):
        raise ConfigError(
            f"Nobody is played by '{partner}'. Expected 'expert', or module:function of a function from chat messages"
            " to a reply. For a model, leave the agent out here, and give it an engine: --engines AGENT={…}."
        )
    return cast("Partner", function)
