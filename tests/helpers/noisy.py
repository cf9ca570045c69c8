"""Teams whose replies have known probabilities: their chances are enumerated, and sampled through engines."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from marft_algos import seeds
from marft_algos.config.evaluation import EvalConfig
from marft_algos.engines import ScriptedEngine
from marft_algos.evaluation.play import Player
from marft_algos.models.chat import Renderer
from marft_algos.rollout.episodes import Prompts
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs import Episode, FlexEnv

Policy = Callable[[str, Sequence[Mapping[str, str]]], dict[str, float]]
"""(policy, messages) -> reply -> probability."""


def tabular(
    policy: str, messages: Sequence[Mapping[str, str]], *, seed: int = 0, peak: float = 3.0
) -> dict[str, float]:
    """Probabilities of 0, 1, 2 and 3 that depend on all that is read."""
    read = "\n".join(message["content"] for message in messages)
    rng = np.random.default_rng([seed, zlib.crc32(f"{policy}\n{read}".encode())])
    weights = np.exp(peak * rng.random(4))
    return dict(zip("0123", weights / weights.sum(), strict=True))


def player(make: Callable[[], FlexEnv], policy: Policy = tabular, seed: int = 0) -> Player:
    """What plays an environment with such a team; every agent has a policy of its own."""

    def said(request: GenerationRequest) -> str:
        table = policy(request.policy, request.messages)
        place = np.searchsorted(np.cumsum([*table.values()]), seeds.uniforms([request.seed], 1)[0, 0])
        return [*table][min(int(place), len(table) - 1)]

    team = Renderer({}, {agent: agent for agent in make().possible_agents})
    return Player(make, team, ScriptedEngine({"*": said}), SamplingParams(1), seed, 64, EvalConfig())


def failures(by: Player, n: int, episodes: int = 200) -> list[Episode]:
    """The first failures of a team."""
    played = by.play(Prompts(list(range(episodes)), [{} for _ in range(episodes)]))
    return [t.episode for t in played if t.success is False][:n]


def chance(env: FlexEnv, given: Callable[[FlexEnv, str, int], Any], policy: Policy = tabular) -> float:
    """The exact chance of success from a state on, by enumeration.

    Args:
        env: The state; it stays as it is.
        given: (state, agent, history index) -> what is said there; a table of probabilities, or None: the policy's.
        policy: Of every agent, by its name.
    """
    if env.done:
        return float(env.episode.success is True)
    agent = env.ready_agents[0]
    index = len(env.unwrapped.view.history) + list(env.unwrapped.layer).index(agent)
    said = given(env, agent, index)
    table = {said: 1.0} if isinstance(said, str) else said or policy(agent, env.unwrapped.messages(agent))
    total = 0.0
    for text, probability in table.items():
        (after,) = env.fork()
        after.select(agent)
        after.step(text)
        total += probability * chance(after, given, policy)
    return total


def before(episode: Episode, make: Callable[[], FlexEnv], layer: int) -> FlexEnv:
    """The state before a layer of a recorded episode."""
    env = make()
    env.reset(seed=episode.seed, options=dict(episode.options))
    for turn in episode.turns:
        if turn.layer < layer:
            env.select(turn.agent)
            env.step(turn.text)
    return env


def kept(episode: Episode, prompts: Mapping[int, Any], chosen: Sequence[int]) -> Callable[[FlexEnv, str, int], Any]:
    """What is said where some turns are drawn anew, and the others keep their words if they are shown the same."""
    return partial(_kept, episode, prompts, chosen)


def _kept(
    episode: Episode, prompts: Mapping[int, Any], chosen: Sequence[int], env: FlexEnv, agent: str, index: int
) -> Any:
    same = index < len(episode.turns) and prompts[index] == (agent, env.unwrapped.messages(agent))
    return episode.turns[index].text if same and index not in chosen else None
