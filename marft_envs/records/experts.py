"""Demonstrations: episodes in which a task's own expert, who knows the gold answer, plays every role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import expert_of
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError
from marft_envs.records.trajectory import Prompt, prompts


def play(env: FlexEnv, seed: int | None = 0, options: Mapping[str, Any] | None = None) -> Episode:
    """Plays one episode with the task's expert in every role; every agent reads its observation first.

    Args:
        env: An environment whose task has an ``expert`` (:class:`marft_envs.core.types.TaskDefaults`).
        seed: Of the environment's reset.
        options: Of the environment's reset.

    Raises:
        ConfigError: The task has no expert.
        UnsolvedError: It does not know this problem's solution.
    """
    return demonstrate(env, seed, options)[0]


def demonstrate(
    env: FlexEnv, seed: int | None = 0, options: Mapping[str, Any] | None = None
) -> tuple[Episode, list[Prompt]]:
    """Plays one episode as ``play`` does; returns the prompt of each turn, too."""
    base, expert = env.unwrapped, expert_of(env)
    env.reset(seed=seed, options=dict(options or {}))
    shown: list[Prompt] = []
    while not env.done:
        ready = list(env.ready_agents)
        shown += [(base.messages(agent), base.tools.get(agent, [])) for agent in ready]
        turn(env, {agent: expert(agent) for agent in ready})
    if len(shown) < len(env.episode.turns):  # fixed partners have spoken
        shown = prompts(env.episode, base)
    return env.episode, shown


def few_shot(env: FlexEnv, n: int, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Returns profiles with worked examples: every agent's prompts and replies in episodes of the expert.

    The dialogue of an agent that speaks several times in an episode is several examples, in order. Take an environment
    of the training split, and give the profiles to the one that is played (``profiles=``, or in a JSON file).

    Args:
        env: An environment whose task has an ``expert``.
        n: Episodes.
        seed: Of the first; the others follow.

    Raises:
        ConfigError: The task has no expert, ``n`` is not positive, or an episode of the expert fails.
        UnsolvedError: The expert does not know a problem's solution.
    """
    if n < 1:
        raise ConfigError(f"{n} worked examples make no profile. Expected 1 or more.")
    team = env.unwrapped.team
    examples: dict[str, list[dict[str, str]]] = {agent.name: [] for agent in team}
    for number in range(seed, seed + n):
        episode, shown = demonstrate(env, number)
        if not episode.success:
            raise ConfigError(
                f"The expert of {env.unwrapped.env_id} fails with seed {number}, which is no example. Try another."
            )
        # The prompt of an agent's last turn contains its whole dialogue.
        last = {turn.agent: (messages, turn.text) for turn, (messages, _) in zip(episode.turns, shown, strict=True)}
        for agent in team:
            if agent.name in last:
                messages, text = last[agent.name]
                dialogue = [message["content"] for message in messages if message["role"] != "system"]
                new = [*dialogue[2 * len(agent.examples) :], text]
                examples[agent.name] += [
                    {"user": user, "assistant": reply} for user, reply in zip(new[::2], new[1::2], strict=True)
                ]
    return {agent.name: {"prompt": agent.prompt, "examples": examples[agent.name]} for agent in team}


def turn(env: FlexEnv, texts: Mapping[str, str]) -> None:
    """Plays texts of ready agents; the observation of each is rendered before, though nobody here reads it.

    A script that only acts would play on in an environment that no agent can read.
    """
    for agent in texts:
        env.observe(agent)
    for agent, text in texts.items():
        env.select(agent)
        env.step(text)
