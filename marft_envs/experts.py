"""Demonstrations: episodes in which a task's own expert, who knows the gold answer, plays every role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.core import FlexEnv
from marft_envs.errors import ConfigError
from marft_envs.trajectory import Told
from marft_envs.types import Episode, optional


def play(env: FlexEnv, seed: int | None = 0, options: Mapping[str, Any] | None = None) -> Episode:
    """Plays one episode with the task's expert in every role; every agent reads its observation first.

    Args:
        env: An environment whose task has an ``expert`` (:class:`marft_envs.types.TaskDefaults`).
        seed: Of the environment's reset.
        options: Of the environment's reset.

    Raises:
        ConfigError: The task has no expert.
        UnsolvedError: It does not know this problem's solution.
    """
    return demonstrate(env, seed, options)[0]


def demonstrate(
    env: FlexEnv, seed: int | None = 0, options: Mapping[str, Any] | None = None
) -> tuple[Episode, list[Told]]:
    """Plays one episode as ``play`` does; returns what each turn's agent was told, too."""
    base = env.unwrapped
    expert = optional(base.task, "expert")
    if expert is None:
        raise ConfigError(
            f"The task of {base.env_id} has no expert, so nobody demonstrates it. Give the task a method"
            " expert(agent), which returns what an expert says now, or use recorded episodes (a JSONL file, a run)."
        )
    env.reset(seed=seed, options=dict(options or {}))
    heard: list[Told] = []
    while not env.done:
        ready = list(env.ready_agents)
        heard += [(base.messages(agent), base.tools.get(agent, [])) for agent in ready]
        turn(env, {agent: expert(agent) for agent in ready})
    return env.episode, heard


def turn(env: FlexEnv, texts: Mapping[str, str]) -> None:
    """Plays texts of ready agents; the observation of each is rendered before, though nobody here reads it.

    A script that only acts would play on in an environment that no agent can read.
    """
    for agent in texts:
        env.observe(agent)
    for agent, text in texts.items():
        env.select(agent)
        env.step(text)
