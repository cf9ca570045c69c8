"""``marft play``: an environment on the terminal, played by people, at random, or by a trained team."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np
import tyro

import marft_envs
from marft_algos.config import arguments
from marft_algos.evaluation.answers import Reply
from marft_algos.ranges import COUNT, NOT_NEGATIVE
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import clean, say
from marft_envs.errors import ConfigError, check_known


@dataclass(frozen=True)
class PlayArguments:
    r"""Shows each agent's view; you type the replies.

    Without options you are everybody. A reply is one line; \n in it is a line break.
    """

    id: Annotated[str, tyro.conf.Positional]
    """Environment."""
    agent: str = ""
    """Play this agent only; the others are played by ``--team``, or at random."""
    team: str = ""
    """Folder of a run, or team on the hub (USER/NAME), whose trained policies play (needs the train extra)."""
    random: bool = False
    """Everybody is played at random, from the task's plausible replies; asks for nothing."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Fixes the problem."""
    episodes: Annotated[int, COUNT] = 1
    """How many to play."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""


def run_play(options: PlayArguments) -> None:
    """``marft play ID``."""
    if options.random and (options.agent or options.team):
        other = "--agent" if options.agent else "--team"
        raise ConfigError(
            f"--random plays everybody at random, and {other} says who else plays. Expected one of them: leave out"
            f" --random, or {other}."
        )
    run = RunFolder.find(options.team) if options.team else None
    trained = paths.of_run(run) if run is not None else None
    kwargs = options.env_kwargs
    if trained is not None and trained.env == options.id:  # its problems, and its agents' profiles
        kwargs = arguments.over(trained.env_kwargs, kwargs, preset=False)
    env = marft_envs.make(options.id, **kwargs)
    names = env.unwrapped.possible_agents
    check_known(filter(None, [options.agent]), names, f"There is no agent '{{}}' in {options.id}.")
    rng = np.random.default_rng(options.seed)

    def at_random(agent: str, messages: Sequence[Mapping[str, str]]) -> str:
        plausible = env.unwrapped.task.sample_actions(agent)
        return str(plausible[int(rng.integers(len(plausible)))])

    others: Reply = at_random
    start: dict[str, Any] = {}
    if run is not None:
        from marft_algos.training.team import load_team

        team = load_team(run, env=env)
        start, others = team.options, partial(team.reply, env=env)
    alone = not (options.agent or options.team or options.random)
    people = set() if options.random else {options.agent} if options.agent else set(names) if alone else set()
    score = 0.0
    with closing(env):  # also where a person stops
        for episode in range(options.episodes):
            score += _episode(env, options.seed + episode, start, people, others)
    if options.episodes > 1:
        say(f"\nmean score of {options.episodes} episodes: {score / options.episodes:.3f}")


def _episode(env: Any, seed: int, start: dict[str, Any], people: set[str], others: Reply) -> float:
    """Plays one episode; returns its score."""
    base = env.unwrapped
    env.reset(seed=seed, options=start)
    task = clean(base.task.task_id, line=True)
    say(f"── {arguments.task(base.env_id, base.env_kwargs)} · seed {seed} · task {task} ──")
    while not base.done:
        for agent in base.ready_agents:
            messages = base.messages(agent)
            if agent in people:
                _show(agent, messages)
                text = _ask(agent)
            else:
                said = others(agent, messages)
                text = said if isinstance(said, str) else said.text
                say(f"[{agent}] {text}")
            base.select(agent)
            env.step(text)
    episode = base.episode
    for record in episode.rounds:
        say(f"round {record.index + 1}: {_who_saw_whom(record.D, base.possible_agents)}")
    facts = "".join(f", {key} {value}" for key, value in episode.info.items() if isinstance(value, str | float | int))
    facts = clean(facts, line=True)
    say(f"score {episode.team_return:g}, success {episode.success}, ended by {episode.stop_reason}{facts}")
    return float(episode.team_return)


def _who_saw_whom(d: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """Writes the executed D in words: ``D[i][j] = 1`` when j saw i."""
    sights = [(name, [names[i] for i in range(len(names)) if d[i][j]]) for j, name in enumerate(names)]
    return "; ".join(f"{name} saw {', '.join(seen)}" for name, seen in sights if seen) or "nobody saw anybody"


def _show(agent: str, messages: Sequence[Mapping[str, str]]) -> None:
    say(f"\n{agent} sees:")
    for message in messages:
        say("\n".join(f"  {line}" for line in f"<{message['role']}>\n{message['content']}".splitlines()))


def _ask(agent: str) -> str:
    say(f"{agent}> ", end="")
    if not (line := sys.stdin.readline()):
        raise ConfigError("The input has ended before the episode. To play without typing: marft play ID --random")
    return line.rstrip("\n").replace("\\n", "\n")
