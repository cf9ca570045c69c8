"""Plays toys by what agents see."""

from __future__ import annotations

from collections.abc import Callable

from marft_envs.core.env import FlexEnv


def play(env: FlexEnv, state: str, reply: Callable[[str, str], str]) -> float:
    """Plays one state; ``reply(agent, what it sees)``; returns 1 if it was solved, else 0."""
    env.reset(seed=0, options={"task_id": state})
    while not env.done:
        agent = env.agent_selection
        env.step(reply(agent, env.messages(agent)[-1]["content"]))
    return float(bool(env.episode.success))
