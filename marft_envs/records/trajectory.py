"""Writes, reads and replays episode records in JSONL, and turns them into samples for fine-tuning.

One line is one episode (:class:`marft_envs.core.types.Episode`): turns, layers with the three reward channels, the D of
every round as executed, with its turn-level edges, and as asked for. Text that UTF-8 cannot hold survives, as escapes;
only an adjacent pair of surrogates comes back as the character that it stands for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from marft_envs.consent import Power, TrustError, powers, refusal
from marft_envs.core.env import FlexEnv
from marft_envs.core.partners import FlexWrapper
from marft_envs.core.plain_data import UNWRITABLE
from marft_envs.core.types import Episode, Fault, TurnRecord
from marft_envs.errors import ConfigError, DataError, MarftError
from marft_envs.records.reading import episode_of
from marft_envs.registration import make


class ReplayError(MarftError, AssertionError):
    """A replayed episode differs from its record."""


def to_dict(episode: Episode) -> dict[str, Any]:
    """Returns the episode as JSON-able data; objects that JSON cannot hold are described in their place."""
    return episode.to_dict()


def from_dict(data: Mapping[str, Any]) -> Episode:
    """Returns the episode that :func:`to_dict` wrote.

    Raises:
        DataError: A field is missing, unknown or of a wrong type, or names a turn, layer or agent that is not there.
    """
    return episode_of(data)


def write(path: str | Path, episodes: Episode | Iterable[Episode]) -> None:
    """Appends episodes to a JSONL file, one line each; a line is written whole.

    Raises:
        OSError: If the file cannot be written.
    """
    sequence = [episodes] if isinstance(episodes, Episode) else episodes
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # One write per line on a descriptor in append mode: lines of several processes do not mix.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        for episode in sequence:
            line = (episode.to_json() + "\n").encode()
            while line:
                line = line[os.write(descriptor, line) :]
    finally:
        os.close(descriptor)


def read(path: str | Path) -> Iterator[Episode]:
    """Yields the episodes of a JSONL file.

    Raises:
        DataError: If a line is no episode; the message names file and line.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                episode = from_dict(json.loads(line))
            except (ValueError, RecursionError) as error:  # DataError; no JSON; no UTF-8; nested too deep
                raise DataError(f"{path}:{number}: {error}") from error
            yield episode


def replay(episode: Episode, env: FlexEnv | None = None, *, trusted: bool = False) -> Episode:
    """Plays the recorded actions again and compares what happens.

    Args:
        episode: A finished episode that was started with a seed.
        env: Where to play; by default what :func:`rebuild` makes of the record, for as long as it takes.
        trusted: See :func:`rebuild`.

    Returns:
        The new episode.

    Raises:
        ReplayError: If transcript, visibility, rewards, D, edges or the ending differ.
        ConfigError: If the record does not say how to play it again.
    """
    with _lent(episode, env, trusted=trusted) as lent:
        for _ in replayed_turns(episode, lent.unwrapped):
            pass
        return replace(lent.unwrapped.episode, index=episode.index)


@contextmanager
def _lent(episode: Episode, env: FlexEnv | None, *, trusted: bool) -> Iterator[FlexEnv]:
    """Lends the caller's environment, or the record's own, which is closed again."""
    if env is not None:
        yield env
        return
    with closing(rebuild(episode, trusted=trusted)) as rebuilt:
        yield rebuilt


Prompt = tuple[list[dict[str, str]], list[dict[str, Any]]]
"""An agent's prompt at a turn: messages, and the tools that it could call."""


def prompts(episode: Episode, env: FlexEnv) -> list[Prompt]:
    """Plays an episode again; returns the prompt of each turn.

    Raises:
        ReplayError: If the episode cannot be reproduced, so that the prompts would be others.
    """
    base = env.unwrapped
    turns = replayed_turns(episode, base)
    return [(base.messages(turn.agent, turn.max_chars), base.tools.get(turn.agent, [])) for turn in turns]


def replayed_turns(episode: Episode, env: FlexEnv) -> Iterator[TurnRecord]:
    """Plays an episode again; yields each turn when it is about to be played, and compares at the end.

    Args:
        episode: A finished episode that was started with a seed.
        env: Where to play. Agents that a wrapper plays have their recorded words, and speak first in their layer; the
            order within a layer changes no record.

    Raises:
        ReplayError: If transcript, visibility, rewards, D, edges or the ending differ.
        ConfigError: If the record has no seed.
    """
    if episode.seed is None:
        raise ConfigError("This episode was started without a seed; only env.reset(seed=…) can be replayed.")
    base = env.unwrapped
    base.reset(seed=episode.seed, options=dict(episode.options))
    layers = groupby(episode.turns, key=lambda turn: turn.layer)
    turns = [t for _, layer in layers for t in sorted(layer, key=lambda turn: turn.agent in env.possible_agents)]
    for turn in turns:
        if turn.agent not in base.ready_agents:
            ready = ", ".join(base.ready_agents) or f"nobody ({base.episode.stop_reason})"
            raise ReplayError(f"Turn {turn.index}: recorded {turn.agent}, but ready to act: {ready}.")
        yield turn
        base.select(turn.agent)
        base.attach(turn.agent, turn.extras, turn.max_chars)
        try:
            base.step(turn.text)
        except Exception:
            # An episode that ended by an agent's text ends there again; after an infrastructure error it may not.
            if not episode.failed or turn is not turns[-1]:
                raise
    if episode.truncated:
        base.truncate(episode.stop_reason, episode.fault)
    _compare(episode, base.episode)


def executes(episode: Episode) -> list[Power]:
    """Returns what the record's environment would run or send, beyond what is installed here."""
    return powers({"env": episode.env_id, "env_kwargs": episode.env_kwargs})


def rebuild(episode: Episode, *, trusted: bool = False, whole: bool = False) -> FlexEnv:
    """Returns the environment that a record names, by its id and arguments; the caller closes it.

    Args:
        episode: The record, which may be anybody's.
        trusted: It may name modules to import, programs to start and addresses to send to (docs/trust.md).
        whole: With the wrappers that play or cut; without them, the record has every turn already.

    Raises:
        TrustError: It does, and is not trusted.
        ConfigError: If the record does not say how to build it.
    """
    if not trusted and (executed := executes(episode)):
        source = f"the record of {episode.task_id} in {episode.env_id}"
        raise TrustError(refusal(executed, source, "trusted=True, or env=your_environment"))
    kwargs = episode.env_kwargs
    unwritable = [name for name, value in kwargs.items() if isinstance(value, dict) and UNWRITABLE in value]
    if unwritable:
        what = ", ".join(f"{name}={kwargs[name][UNWRITABLE]}" for name in unwritable)
        raise ConfigError(f"The record cannot rebuild {what}. Next: replay(episode, env=your_environment).")
    if episode.env_id == "custom":
        raise ConfigError("The record names no registered environment. Next: replay(episode, env=your_environment).")
    env = make(episode.env_id, **kwargs)
    return env if whole else env.unwrapped


_COMPARED = (
    "task_id", "agents", "turns", "layers", "rounds", "terminated", "truncated", "success", "stop_reason", "invalid",
    "fault",
)  # fmt: skip


def _compare(recorded: Episode, again: Episode) -> None:
    """Raises at the first difference; the reward and metrics of a failed episode are set by the driver."""
    then, now = to_dict(recorded), to_dict(again)
    if recorded.fault == "text" and then["layers"] and now["layers"]:
        now["layers"][-1] |= {key: then["layers"][-1][key] for key in ("team_reward", "agent_rewards")}
    for name in _COMPARED:
        if name == "success" and recorded.failed:
            continue
        old, new = then[name], now[name]
        if old == new:
            continue
        where = name
        if isinstance(old, list) and isinstance(new, list):
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            where = f"{name}[{at}]"
            old, new = (old[at] if at < len(old) else None), (new[at] if at < len(new) else None)
        raise ReplayError(f"Replay differs in {where}: recorded {_short(old)}, got {_short(new)}.")


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 300 else text[:300] + "…"


class RecordEpisodes(FlexWrapper):
    """Appends every finished episode to a JSONL file."""

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
            write(self.path, self.env.episode)


def to_samples(episode: Episode, env: FlexEnv | None = None, *, trusted: bool = False) -> list[dict[str, Any]]:
    """Returns one row per turn for supervised or preference tuning.

    Args:
        episode: A finished episode that was started with a seed.
        env: Where to play it again to render the prompts; by default what :func:`rebuild` makes of the record.
        trusted: See :func:`rebuild`.

    Returns:
        Rows with ``messages`` (what the agent saw), ``action``, ``reward`` (the turn's own channel), ``return``
        (the team's), ``success``, ``agent``, ``role``, ``task_id``, ``seed`` and ``turn``. Rows of one ``task_id``,
        agent and turn with equal messages and different returns make preference pairs.

    Raises:
        ReplayError: If the episode cannot be reproduced, so that the prompts would be wrong.
    """
    with _lent(episode, env, trusted=trusted) as lent:
        shown = prompts(episode, lent)
    return [
        {
            "messages": shown[turn.index][0],
            "action": turn.text,
            "reward": turn.reward,
            "return": episode.team_return,
            "success": episode.success,
            "agent": turn.agent,
            "role": turn.role,
            "task_id": episode.task_id,
            "seed": episode.seed,
            "turn": turn.index,
        }
        for turn in episode.turns
    ]
