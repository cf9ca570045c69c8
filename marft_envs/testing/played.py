"""Episodes that checks play, and whether two of them went alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.types import Episode
from marft_envs.records import trajectory

Build = Callable[[], FlexEnv]
Check = Callable[[Build], str | None]
"""A promise that environments keep: raises where it is broken, and may return a remark."""
Reply = Callable[[FlexEnv, str], str]
MOST_TURNS = 1000
"""An episode that is not over after so many turns counts as endless."""


class Broken(Exception):
    """An invariant does not hold."""


def sampled(seed: int) -> Reply:
    """Returns a policy that picks from the task's plausible replies, by seed, turn and agent alone."""

    def reply(env: FlexEnv, agent: str) -> str:
        candidates = env.task.sample_actions(agent) or [""]
        return str(candidates[zlib.crc32(f"{seed}/{index_of(env, agent)}/{agent}".encode()) % len(candidates)])

    return reply


def index_of(env: FlexEnv, agent: str) -> int:
    """Returns the history index that the agent's planned turn will have."""
    return len(env.view.history) + list(env.layer).index(agent)


def go_on(env: FlexEnv, reply: Reply, order: Callable[[list[str]], Iterable[str]] = list) -> Episode:
    """Plays to the end from where the environment stands; ``order`` arranges the arrival of a layer's replies."""
    while not env.done:
        replies = {agent: reply(env, agent) for agent in env.ready_agents}
        for agent in order(list(replies)):
            env.select(agent)
            env.step(replies[agent])
        if len(env.view.history) > MOST_TURNS:
            raise Broken(f"the episode is not over after {MOST_TURNS} turns; give FlexEnv max_rounds or max_turns")
    return env.episode


def play(env: FlexEnv, seed: int, reply: Reply | None = None) -> Episode:
    """Plays one episode from its seed."""
    env.reset(seed=seed)
    return go_on(env, reply or sampled(seed))


def fingerprint(episode: Episode) -> dict[str, Any]:
    """Returns everything that has to be equal when the same thing happens twice."""
    data = trajectory.to_dict(episode)
    return {name: value for name, value in data.items() if name not in ("index", "env_kwargs", "options", "seed")}


def expect_equal(one: Episode, other: Episode, what: str) -> None:
    """Raises unless both episodes went alike."""
    _expect_same(one, fingerprint(one), fingerprint(other), what)


def expect_rereadable(episode: Episode, what: str) -> Episode:
    """Returns the episode, written as JSON and read again, which has to be as it was."""
    data = trajectory.to_dict(episode)
    again = trajectory.from_dict(data)
    _expect_same(episode, data, fingerprint(again), what)
    return again


def _expect_same(one: Episode, a: dict[str, Any], b: dict[str, Any], what: str) -> None:
    for name in b:
        if a[name] != b[name]:
            raise Broken(f"{what}: {name} is {short(b[name])} instead of {short(a[name])} (seed {one.seed})")


def short(value: Any) -> str:
    """Returns a value as text for a message, cut where it is long."""
    text = ascii(value)
    return text if len(text) < 200 else text[:200] + "…"
