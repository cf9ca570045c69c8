"""Wraps a :class:`FlexEnv` in the usual additions, as PettingZoo wrappers.

PettingZoo's ``BaseWrapper`` passes every public name that a wrapper lacks to what it wraps. Whatever leads to a step,
an end or a copy is therefore overridden here, so that drivers (``ready_agents``, ``select``, ``step``) and the AEC loop
go through the wrapper alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marft_envs.core import observation as obs_mod
from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import FlexWrapper
from marft_envs.errors import ConfigError


class TurnLimit(FlexWrapper):
    """Truncates the episode when its next layer would take it beyond ``max_turns``; the limit has no reward.

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
        contents = (message["content"] for message in messages if message["content"])
        prompt = "\n\n".join(contents) if self._render is None else self._render(messages)
        return {"prompt": prompt, "turn": len(self.env.view.history)}
