"""``marft distill``: what a team said as one agent's replies, which ``marft sft`` teaches a single agent."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

import marft_envs
from marft_algos.config import arguments
from marft_algos.terminal import say
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError, DataError
from marft_envs.records import trajectory


@dataclass(frozen=True)
class DistillArguments:
    """Turns a team's successful episodes into those of one agent, as far as one agent can say the same."""

    source: Annotated[str, tyro.conf.Positional]
    """Folder of a run that recorded episodes, or a JSONL file of them."""
    into: str
    """Environment of one agent with the same problems."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of that environment; the same problems as the team's (levels, split, data) must be there."""
    out: str = ""
    """JSONL file to write; by default single.jsonl in the run's folder, or beside the file. It must not be there."""


def into_single(episode: Episode, env: FlexEnv) -> Episode:
    """Plays a team's episode again as one agent: what the team said between two results is one reply.

    An episode of a single agent stays what it is, to the letter.

    Args:
        episode: Of a team.
        env: Has one agent and the episode's problem.

    Returns:
        The single agent's episode; one that has not come to an end is truncated.

    Raises:
        ConfigError: There are several agents.
    """
    if len(env.possible_agents) != 1:
        raise ConfigError(
            f"{env.unwrapped.env_id} has {len(env.possible_agents)} agents; a team is distilled into one. Next: the"
            " family's environment with one, as a rule its id with solo."
        )
    env.reset(seed=episode.seed, options={**episode.options, "task_id": episode.task_id})
    said: list[str] = []
    turns = [turn for turn in episode.turns if turn.agent not in episode.judges]
    rounds = env.unwrapped.rules.max_rounds > 1
    alone = len({turn.agent for turn in turns}) == 1
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        said.append(turn.text if alone else turn.spoken.strip())
        ends = following is None or (rounds and following.round > turn.round)
        if (turn.result or ends) and not env.done:
            env.step("\n".join(filter(None, said)))
            said = []
    env.unwrapped.truncate("the team had no more words")
    return env.unwrapped.episode


def run_distill(options: DistillArguments) -> None:
    """``marft distill SOURCE --into ID``."""
    from marft_algos.rollout.demonstrations import recorded

    source = Path(options.source)
    out = Path(options.out) if options.out else (source if source.is_dir() else source.parent) / "single.jsonl"
    team = [episode for _, episode in recorded(options.source) if episode.success and not episode.failed]
    if out.exists():
        raise ConfigError(f"{out} is there already. Next: another name (--out FILE), or remove it.")
    if not team:
        raise DataError(f"No episode at '{options.source}' succeeded: there is nothing to distil.")
    single: list[Episode] = []
    why: Counter[str] = Counter()
    with closing(marft_envs.make(options.into, **options.env_kwargs)) as env:
        for episode in team:
            try:
                alone = into_single(episode, env)
            except DataError as error:
                why[f"problem not there ({str(error).splitlines()[0]:.60})"] += 1
                continue
            if alone.success and not alone.failed:
                single.append(alone)
            else:
                why[alone.stop_reason if alone.truncated else "the answer does not count"] += 1
    if single:
        trajectory.write(out, single)
    say(f"team:    {len(team)} episodes that succeeded, {_words(team):.1f} words each")
    say(
        f"single:  {len(single)} of them fit into one agent ({len(single) / len(team):.0%}), {_words(single):.1f} words"
    )
    for reason, count in why.most_common():
        say(f"left out: {count} ({reason})")
    if not single:
        raise DataError(f"None of the {len(team)} episodes fits into one agent of {options.into}; nothing was written.")
    say(f"next:    {arguments.typed('sft', '--env', options.into, '--demonstrations', out)}")


def _words(episodes: list[Episode]) -> float:
    return sum(len(turn.text.split()) for e in episodes for turn in e.turns) / max(len(episodes), 1)
