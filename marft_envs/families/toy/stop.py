"""``stop-v0``: how long should a team talk? An agent's word ends the talk, and every word may have a cost.

Two agents take turns. Each sees a fresh reading of one hidden bit, right with probability ``reliability``, and receives
all messages so far. A digit passes a reading on; ``00`` or ``11`` ends the talk, with 0 or 1 as the team's answer. The
team's reward is 1 if the answer is the bit, else 0. The digit of the last possible word always counts as an answer. The
task has no cost of talking; the trainer sets one: ``credit = {rule = "broadcast", costs = {tokens = c}}``. With
``early=False`` every talk has ``words`` words, and its last word is the answer.

| | score |
|---|---|
| best without a cost | that of a majority of ``words`` readings |
| best under ``Independent`` | that of a majority of every other reading: each agent has its own readings only |
| null team (says nothing) | 0 |

The best moment to stop is Wald's: a sequential test of two hypotheses, by dynamic programming over the readings that
speak for 1 less those for 0 (``python -m benchmarks stopping --optimum``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.core.dependency import Chain
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import AgentSpec, Outcome, Task, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.problems.sets import named_task

LONGEST = 64
"""Words at most."""
PAIR = ("left_0", "right_0")
SAY = "Say your reading, 0 or 1. Say 00 or 11 to end the talk with that answer."


class Stop(Task):
    """A bit, and a reading of it for each word.

    Attributes:
        task_id: ``stop/BIT-READINGS``.
    """

    def __init__(self, words: int, reliability: float, *, early: bool) -> None:
        self.words, self.reliability, self.early = words, reliability, early
        self.task_id, self.bit, self.readings, self._said, self._ends = "", "0", "0" * words, 0, 0

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the episode named by ``options["task_id"]``, else draws one, and the round in which the expert ends."""
        task_id, bit = named_task(options), int(rng.integers(2))
        right = rng.random(self.words) < self.reliability
        self._ends = int(rng.integers(self.words)) if self.early else self.words - 1
        if task_id is None:
            task_id = f"stop/{bit}-{''.join(str(bit if r else 1 - bit) for r in right)}"
        found = re.fullmatch(rf"stop/([01])-([01]{{{self.words}}})", str(task_id))
        if not found:
            raise ConfigError(
                f"There is no task '{task_id}' of {self.words} words. Expected a bit and {self.words} readings, e.g."
                f" stop/1-{'1' * self.words}"
            )
        self.task_id, self.bit, self.readings, self._said = str(task_id), found[1], found[2], 0

    def observe(self, agent: str) -> str:
        """Shows the reading of the agent's next word."""
        turn = self._said + (agent != PAIR[self._said % 2])
        return f"reading {self.readings[turn]}" if turn < self.words else "done"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Ends the talk at an answer or the last word; the team's reward is 1 if the answer is the bit."""
        for turn in turns[: self.words - self._said]:
            word, self._said = turn.spoken.strip(), self._said + 1
            formed, last = re.fullmatch("0|1|00|11", word) is not None, self._said == self.words
            if last or (self.early and formed and len(word) > 1):
                right = formed and word[-1] == self.bit
                metrics = {"words": float(self._said), "answered": float(formed)}
                return Outcome(team_reward=float(right), success=right, terminated=True, metrics=metrics)
        return Outcome()

    def expert(self, agent: str) -> str:
        """Passes the reading on; ends the talk with the bit at a word that was drawn, as the task has no cost."""
        return 2 * self.bit if self._said >= self._ends else self.readings[self._said]

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns both readings, both answers, and a word that is none."""
        return ("0", "1", "00", "11", "hello")

    def validate(self) -> None:
        """Checks that the right answer is a success, and an empty reply is not.

        Raises:
            ConfigError: They are not.
        """
        for word, wanted in ((2 * self.bit, True), ("", False)):
            self._said = self.words - 1
            if self.on_layer([TurnRecord(0, 0, 0, "left_0", "left", (), word)]).success is not wanted:
                raise ConfigError(f"{self.task_id}: '{word}' should{'' if wanted else ' not'} be right.")
        self._said = 0


def make(words: int = 8, reliability: float = 0.8, early: bool = True, dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment.

    Args:
        words: Words of the longest talk, 1 to 64.
        reliability: How often a reading is right, 0.5 to 1.
        early: Whether a word may end the talk; else it has exactly ``words``.
        dependency: Another D; ``"independent"`` is the ablation.
        **flex: FlexEnv's settings.

    Raises:
        ConfigError: A number that is outside its range.
    """
    if not 1 <= words <= LONGEST:
        raise ConfigError(f"words is {words}; expected 1 to {LONGEST}, e.g. words=8.")
    if not 0.5 <= reliability <= 1:
        raise ConfigError(f"reliability is {reliability}; expected 0.5 (readings say nothing) to 1, e.g. 0.8.")
    team = [AgentSpec(name, name.removesuffix("_0"), SAY, with_answer=True) for name in PAIR]
    flex = {"history": "team", "max_rounds": words, **flex}
    return FlexEnv(team, Stop(words, reliability, early=early), Chain() if dependency is None else dependency, **flex)
