"""Replies of served teams, as evaluations: of the one that answers, and of its shadow, whose replies go to no user.

A shadow plays every request once it has been answered, one after another, in a thread of its own. Nobody knows the
answers to what users ask, so neither has a score. What is compared is whether the answers are the same, how long they
took, and what agents did.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from marft_algos.config.evaluation import EvalConfig
from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation import records
from marft_algos.evaluation.answers import Words
from marft_algos.evaluation.resumable import ResumableEvaluation, seated
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say
from marft_algos.types import Trajectory
from marft_envs.core.types import Episode
from marft_envs.errors import ConfigError

WAITING = 256
"""Requests that may wait for the shadow; those beyond are not played by it, and are counted as lost."""


class Record:
    """A folder in which a team's answers are kept as ``marft eval --engines`` keeps episodes; it goes on over restarts.

    Args:
        root: The folder.
        run: The team's.
        settings: The run's.

    Raises:
        ConfigError: It holds something else, or another team's answers.
    """

    def __init__(self, root: Path, run: RunFolder, settings: TrainConfig) -> None:
        config = EvalConfig(settings.env, settings.env_kwargs, engines=str(run.root), out=str(root))
        players, make_env = seated(config)
        with closing(make_env()) as env:
            evaluation = ResumableEvaluation(config, players, Prompts([], []), env.unwrapped.team)
        evaluation.open()
        self.played = len(evaluation.finished())
        self._file, self._lock = evaluation.episodes_file, threading.Lock()

    def answered(self, words: Words, episode: Episode) -> None:
        """Keeps an answer to a user's words."""
        self.add(replace(episode, task_id=f"served/{time.time_ns()}"))

    def add(self, episode: Episode) -> None:
        """Keeps an answer under the id that it has."""
        with self._lock:
            one = replace(episode, index=self.played)
            row = records.row(Trajectory.of(one))
            with self._file.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps(row) + "\n")
            self.played += 1


class Shadow:
    """Has a second team play what the first has answered, in the background, and keeps both.

    Args:
        play: Of the shadow.
        live: Where the first team's answers go.
        kept: Where the shadow's go.
        answer_key: What makes two answers the same, if the task says so; else their words.
    """

    def __init__(
        self,
        play: Callable[[Words], Episode],
        live: Record,
        kept: Record,
        answer_key: Callable[[str], str] | None = None,
    ) -> None:
        self._play, self._live, self._kept, self._key = play, live, kept, answer_key or _words
        self._waiting: queue.Queue[tuple[Words, Episode] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="shadow", daemon=True)
        self._thread.start()

    def answered(self, words: Words, episode: Episode) -> None:
        """Keeps what was answered, and lets the shadow play it when it comes to that."""
        one = replace(episode, task_id=f"served/{time.time_ns()}", metrics={**episode.metrics, "same": 1.0})
        self._live.add(one)
        try:
            self._waiting.put_nowait((words, one))
        except queue.Full:
            self._kept.add(_lost(one, "the shadow was too far behind"))

    def close(self) -> None:
        """Waits until the shadow has played what is left."""
        if left := self._waiting.qsize():
            say(f"the shadow has {left} requests left")
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            words, answered = waiting
            try:
                own = self._play(words)
            except Exception as error:  # whatever happens to a shadow is its own affair: it is counted, and shown
                self._kept.add(_lost(answered, f"{type(error).__name__}: {error}"))
                continue
            same = self._key(own.answer) == self._key(answered.answer)
            metrics = {**own.metrics, "same": float(same)}
            self._kept.add(replace(own, task_id=answered.task_id, metrics=metrics))


def check(env: Any, name: str) -> None:
    """Refuses a shadow that could change something: what it does twice, nobody has asked for.

    Raises:
        ConfigError: It holds a tool that is not read-only.
    """
    base = env.unwrapped
    tools = getattr(getattr(base.task, "domain", None), "tools", {})
    held = {tool["function"]["name"] for agent in base.possible_agents for tool in base.tools.get(agent, ())}
    if writing := sorted(tool for tool in held & set(tools) if not tools[tool].read_only):
        raise ConfigError(
            f"The shadow '{name}' holds the tool '{writing[0]}', which may change something, once more than users have"
            " asked for. Expected tools that only read (@marked(read_only=True)), or a team with a copy of the world."
        )


def _lost(answered: Episode, why: str) -> Episode:
    """Returns the record of a request that the shadow could not play: an infrastructure error."""
    return replace(answered, turns=[], layers=[], rounds=[], metrics={}, stop_reason=f"error: {why}", fault="machine")


def _words(text: str) -> str:
    return " ".join(text.casefold().split())
