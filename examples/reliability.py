"""Two tools that mostly work: where learning from failures is worth more than imitating successes.

An episode is ``calls`` tool calls, half of them by each of two agents. An agent says which tool it calls, ``0`` or
``1``. Tool 0 never fails. Tool 1 fails with probability ``failure``, which is drawn before the episode starts. A call
that works has a turn reward of 1/``calls``, and the episode succeeds if all calls worked. No prompt says which tool is
the better one. Demonstrations call tool 1 with probability ``habit``.

Let an update raise the log-probability of each call in proportion to a weight of that call. What the update learns of
one call is its *signal*: the weight's mean for tool 0, less its mean for tool 1. What hides it is the *noise*: the root
mean square of the weight. With f for ``failure`` and s for the share of calls of tool 1:

| weight of a call | signal | noise | signal/noise at f = 0.02, s = 0.8 |
|---|---|---|---|
| 1 if it worked, else 0: imitation | f | √(1 − sf) | 0.02 |
| the reward less its mean: reinforcement with a baseline | f | √(sf(1 − sf)) | 0.16 |

Summed over N calls, an update has √(N·s(1 − s)) times this ratio: 1.0 for imitation and 8 for reinforcement at
N = 16,384. At a ratio of 1, chance moves the share of tool 0 as far as what is learnt does.

No weight without negative values has more than f/√(1 − f): if a call that worked has the weight a, the signal is at
most f·a, and the noise at least a·√(1 − f). So imitation needs about 1/(sf) times as many calls, here 62.

Try it: ``marft play examples.reliability:reliability-v0``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import marft_envs
from marft_envs import AgentSpec, FlexEnv, Outcome, Task, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.problems.sets import named_task

TEAM = ("left_0", "right_0")
SAY = "Call a tool, 0 or 1."


class Reliability(Task):
    """Calls of two tools, one of which fails now and then.

    Args:
        calls: Tool calls of an episode.
        failure: Probability that a call of tool 1 fails, from 0 to 1.
        habit: Probability that a demonstrated call is of tool 1.

    Attributes:
        task_id: ``reliability/MARKS``, a mark for each call; where it is 1, a call of tool 1 fails.
    """

    def __init__(self, calls: int, failure: float, habit: float) -> None:
        self.calls, self.failure, self.habit = calls, failure, habit
        self.task_id, self.fails, self._shown = "", "0" * calls, "0" * calls
        self._worked: list[bool] = []

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the episode named by ``options["task_id"]``, else draws one, and what the expert calls in it."""
        fails, shown = rng.random(self.calls) < self.failure, rng.random(self.calls) < self.habit
        task_id = named_task(options) or "reliability/" + "".join(str(int(x)) for x in fails)
        found = re.fullmatch(rf"reliability/([01]{{{self.calls}}})", str(task_id))
        if not found:
            raise ConfigError(
                f"There is no task '{task_id}' of {self.calls} calls. Expected a mark, 0 or 1, for each call:"
                f" reliability/{'0' * self.calls}"
            )
        self.task_id, self.fails, self._worked = str(task_id), found[1], []
        self._shown = "".join(str(int(x)) for x in shown)

    def observe(self, agent: str) -> str:
        """Shows nothing that says which tool is better."""
        return "call"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards each call that worked; the episode ends with the last one."""
        rewards = {}
        for turn in turns:
            word, fails = turn.spoken.strip(), self.fails[len(self._worked)] == "1"
            self._worked.append(word == "0" or (word == "1" and not fails))
            rewards[turn.index] = self._worked[-1] / self.calls
        if len(self._worked) < self.calls:
            return Outcome(turn_rewards=rewards)
        metrics = {"calls_worked": float(np.mean(self._worked))}
        return Outcome(turn_rewards=rewards, success=all(self._worked), terminated=True, metrics=metrics)

    def expert(self, agent: str) -> str:
        """Calls tool 1 with the probability ``habit``."""
        return self._shown[len(self._worked) + TEAM.index(agent)]

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns both tools, and a word that is none."""
        return ("0", "1", "hello")

    def validate(self) -> None:
        """Checks that tool 0 always works, and a word that is no tool does not.

        Raises:
            ConfigError: It does not.
        """
        for word, wanted in (("0", True), ("", False)):
            self._worked = []
            turns = [TurnRecord(i, i, i, TEAM[i % 2], "caller", (), word) for i in range(self.calls)]
            if self.on_layer(turns).success is not wanted:
                raise ConfigError(f"{self.task_id}: calls of '{word}' should{'' if wanted else ' not'} all work.")
        self._worked = []


def make(calls: int = 64, failure: float = 0.02, habit: float = 0.8, **flex: Any) -> FlexEnv:
    """Builds the environment.

    Args:
        calls: Tool calls of an episode; an even number.
        failure: Probability that a call of tool 1 fails, from 0 to 1.
        habit: Probability that a demonstrated call is of tool 1.
        **flex: FlexEnv's settings.

    Raises:
        ConfigError: A number that is outside its range.
    """
    if calls < 2 or calls % 2:
        raise ConfigError(f"calls is {calls}; expected an even number, e.g. calls=64.")
    if not (0 <= failure <= 1 and 0 <= habit <= 1):
        raise ConfigError(f"failure is {failure} and habit {habit}; expected probabilities from 0 to 1.")
    team = [AgentSpec(name, name.removesuffix("_0"), SAY, with_answer=True) for name in TEAM]
    return FlexEnv(team, Reliability(calls, failure, habit), "independent", **{"max_rounds": calls // 2, **flex})


marft_envs.register("reliability-v0", make, summary="example: call one of two tools, of which one fails now and then")
