"""What an embedded model is shown before reinforcement learning: one file per family of environments.

A recipe plays each team with scripted demonstrators in the environments themselves, so the model is shown exactly
the prompts that training will show it. ``make_embedded`` turns a recipe into a tokenizer and weights.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import marft_envs
from marft_algos.models import EMBEDDED
from marft_envs import FlexEnv

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Scene:
    """What a demonstrator knows when it is an agent's turn."""

    rng: random.Random
    agent: str
    observation: str
    """The task observation, for a math task the problem."""
    received: Sequence[str]
    """The texts that this agent sees, oldest first."""
    task: Any = None
    """The environment's task: a demonstrator may know the gold answer."""


@dataclass(frozen=True)
class Reply:
    """The model's target, and the message that the other agents receive (the same unless corrupted)."""

    shown: str | None
    """None: this turn is no example."""
    said: str


Demonstrator = Callable[[Scene], Reply]


def plain(text: str) -> Reply:
    """What is shown is what is said."""
    return Reply(text, text)


@dataclass(frozen=True)
class Format:
    """One team's format: role -> the reply expected of it."""

    episodes: int
    """How many episodes are shown."""
    roles: Mapping[str, Demonstrator]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: {"levels": [0], "split": "train"})


@dataclass(frozen=True)
class ScoreSet:
    """What the untrained model's score is measured on: one team's episodes."""

    env_id: str
    options: Sequence[Mapping[str, Any]]
    """Of each episode's reset: ``task_id``, or nothing where the environment's own draw will do."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 0
    """How often the first 200 episodes are also sampled."""


@dataclass(frozen=True)
class Recipe:
    """One embedded model: whom it is shown, and what it is measured on."""

    teams: Mapping[str, Format]
    phrases: Sequence[str]
    """What every prompt or reply holds, as one token each: a prompt is mostly fixed text, and tokens cost CPU time."""
    corpus: Callable[[], Iterator[str]]
    """Texts whose frequent pairs of bytes become tokens."""
    score_sets: Callable[[], Iterator[ScoreSet]]
    vocabulary: int = 384
    """Bytes and the merges on top of them; phrases and special tokens come in addition."""
    steps: int = 1300
    """Updates of the warm start."""
    batch: int = 64
    """Demonstrations of an update."""
    short: Sequence[int] = (52,)
    """Bounds in tokens, in ascending order: demonstrations between two of them are batched together."""
    new_tokens: int = 48
    """Most tokens of a reply when scores are taken."""
    more: Sequence[tuple[str, Format]] = ()
    """Environments that are in ``teams`` already, played in another way too."""
    tag: str = r"\[[^\]]+\]"
    """Pattern of what stands above somebody's words in a prompt; each such line becomes one token."""
    beside: str = "parsed"
    """The metric that is printed beside the scores."""


def load(name: str) -> Recipe:
    """Returns the recipe of an embedded model (``embedded``, …)."""
    recipe: Recipe = importlib.import_module(f"{__name__}.{EMBEDDED[name]}").RECIPE
    return recipe


def play(env_id: str, form: Format, rng: random.Random) -> list[tuple[Messages, str]]:
    """Plays a team's episodes by its demonstrators and returns (prompt, reply) pairs."""
    env = marft_envs.make(env_id, **form.kwargs)
    pairs: list[tuple[Messages, str]] = []
    for _ in range(form.episodes):
        env.reset(seed=rng.randrange(2**31))
        while not env.done:
            agent = env.ready_agents[0]
            reply = form.roles[env.profile(agent).role](_scene(env, agent, rng))
            if reply.shown is not None:
                pairs.append((env.messages(agent), reply.shown))
            env.select(agent)
            env.step(reply.said)
    env.close()
    return pairs


def _scene(env: FlexEnv, agent: str, rng: random.Random) -> Scene:
    received = [env.episode.turns[i].text for i in env.layer[agent].sees]
    return Scene(rng, agent, env.task.observe(agent), received, env.task)
