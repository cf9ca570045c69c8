"""Turns reward channels into PettingZoo's ``rewards``, and computes the composite team reward.

A task gives rewards in three channels: per turn, per agent, and team. An attribution rule shapes what PettingZoo shows;
trainers read the unattributed channels from the episode's record.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from marft_envs.core.types import Episode, Outcome, Segment, TurnRecord
from marft_envs.errors import ConfigError, check_known

Turns = Sequence[tuple[str, float]]
"""``(agent, reward)`` of every turn with a reward."""
Names = Sequence[str]
Shares = Mapping[str, float]
"""Agent -> reward."""


class Attribution(Protocol):
    """Shares the rewards of one outcome among the agents still in the episode."""

    def __call__(self, team: float, turns: Turns, agents: Shares, members: Names, last: Names) -> Shares:
        """Returns agent -> reward.

        Args:
            team: The team channel.
            turns: ``(agent, reward)`` of every turn with a reward.
            agents: The per-agent channel.
            members: Agents still in the episode.
            last: Who acted in the last committed layer.
        """


def _own(turns: Turns, agents: Shares, members: Names) -> dict[str, float]:
    out = {name: float(agents.get(name, 0.0)) for name in members}
    for name, reward in turns:
        if name in out:
            out[name] += reward
    return out


def team(team: float, turns: Turns, agents: Shares, members: Names, last: Names) -> Shares:
    """Gives every agent the whole team reward, plus its own. Summed over n agents: Σturn + Σagent + n·Σteam."""
    return {name: individual + team for name, individual in _own(turns, agents, members).items()}


def split(team: float, turns: Turns, agents: Shares, members: Names, last: Names) -> Shares:
    """Gives every agent an equal part of the team reward, plus its own."""
    share = team / max(len(members), 1)
    return {name: individual + share for name, individual in _own(turns, agents, members).items()}


def last(team: float, turns: Turns, agents: Shares, members: Names, last: Names) -> Shares:
    """Gives the team reward to the agent that acted last (as the paper's released code does), and to each its own."""
    out = _own(turns, agents, members)
    takers = [name for name in last if name in out]
    for name in takers:
        out[name] += team / len(takers)
    return out


def per_agent(team: float, turns: Turns, agents: Shares, members: Names, last: Names) -> Shares:
    """Gives every agent its own reward only; the team channel is left to the records."""
    return _own(turns, agents, members)


RULES: dict[str, Attribution] = {"team": team, "split": split, "last": last, "per_agent": per_agent}


def attribution(rule: str | Attribution) -> Attribution:
    """Returns the rule of that name, or the callable itself."""
    if callable(rule):
        return rule
    check_known([rule], RULES, "There is no attribution rule '{}'.")
    return RULES[rule]


def check_finite(rewards: Iterable[Any]) -> None:
    """Raises ``ConfigError`` for a reward that is no number, or none that can be added up."""
    for reward in rewards:
        try:
            fine = math.isfinite(reward)
        except (TypeError, OverflowError):
            fine = False
        if not fine:
            raise ConfigError(
                f"A reward of the task is {reward!r}; expected a finite number. Next: let on_layer and on_round return"
                " numbers such as 1.0 as rewards, and put other facts into metrics or info."
            )


def segments_of(spans: Any, index: int, text: str) -> list[Segment]:
    """Returns the rewarded spans of the text of turn ``index``, as plain numbers.

    Raises:
        ConfigError: They are no spans of this text, or a reward is none.
    """
    try:
        segments = [(operator.index(start), operator.index(end), reward) for start, end, reward in spans]
        inside = all(0 <= start < end <= len(text) for start, end, _ in segments)
    except (TypeError, ValueError):
        inside = False
    if not inside:
        raise ConfigError(
            f"The task's segments of turn {index} are {reprlib.repr(spans)}, and its text has {len(text)} characters;"
            f" expected a list of (start, end, reward) with 0 <= start < end <= {len(text)}: the reward of"
            " text[start:end]."
        )
    check_finite(reward for *_, reward in segments)
    return [(start, end, float(reward)) for start, end, reward in segments]


@dataclass(frozen=True)
class CompositeReward:
    """R = completion + progress - penalties, each term in [0, 1] and weighted.

    Weights under which a failure could outrank a success are refused: a failed episode earns at most
    ``progress``, a successful one at least ``completion`` minus all penalties.

    Raises:
        ConfigError: If a weight is negative, or a failure could earn as much as a success.
    """

    completion: float = 1.0
    progress: float = 0.3
    steps: float = 0.10
    errors: float = 0.10
    duplicates: float = 0.05
    loops: float = 0.05

    def __post_init__(self) -> None:
        if any(weight < 0 for weight in vars(self).values()):
            raise ConfigError(f"Weights of a composite reward must not be negative; got {vars(self)}.")
        worst_success = self.completion + self.lowest
        if worst_success <= self.progress:
            raise ConfigError(
                f"With these weights a failure can earn {self.progress:g} and a success as little as "
                f"{worst_success:g}. Raise `completion`, or lower `progress` or the penalties."
            )

    @property
    def lowest(self) -> float:
        """Returns the lowest reward: nothing achieved, and every penalty whole."""
        return -(self.steps + self.errors + self.duplicates + self.loops)

    def __call__(self, **terms: float) -> tuple[float, dict[str, float]]:
        """Returns the reward and its weighted terms (to be logged apart).

        Args:
            **terms: Any of the weights' names, each a number in [0, 1]; absent ones are 0.

        Raises:
            ConfigError: If a term is unknown or outside [0, 1].
        """
        weights = vars(self)
        for name, value in terms.items():
            check_known([name], weights, "There is no reward term '{}'.")
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"The reward term '{name}' must lie in [0, 1]; got {value}.")
        sign = {"completion": 1.0, "progress": 1.0}
        parts = {name: sign.get(name, -1.0) * weights[name] * value for name, value in terms.items()}
        return sum(parts.values()), parts


class WrappedTask:
    """A task around another: what it does not have itself is the other's."""

    task: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "task" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.task, name)


class RewardedTask(WrappedTask):
    """A task whose only reward is a function of the episode; everything else is the task's own.

    The team's reward after each round is the change of the function's value, so that the sum is its value for the whole
    episode. ``marft_envs.make(id, reward=function)`` makes it.

    Args:
        task: The task.
        reward: From the record so far, with the task's verdict (``success``, ``metrics``) in it, to a number.
    """

    worst_return = None
    env: Any = None
    """The environment whose record the function takes."""

    def __init__(self, task: Any, reward: Callable[[Episode], float]) -> None:
        self.task, self._reward, self._value = task, reward, 0.0

    def reset(self, rng: Any, options: Mapping[str, Any]) -> None:
        """Starts an episode of the task."""
        self._value = 0.0
        self.task.reset(rng, options)

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards the team if the task ends the episode here."""
        outcome = self.task.on_layer(turns)
        return self._rewarded(outcome, due=outcome.terminated)

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards the team for what the round has changed."""
        return self._rewarded(self.task.on_round(turns), due=True)

    def late(self, outcome: Outcome) -> Outcome:
        """Rewards the team for an episode that ``max_path`` ends."""
        return self._rewarded(outcome, due=True)

    def _rewarded(self, outcome: Outcome, *, due: bool) -> Outcome:
        change = 0.0
        if due and not outcome.fault:
            known = self.env.episode
            success = known.success if outcome.success is None else outcome.success  # which an earlier layer may say
            verdict = {"success": success, "terminated": outcome.terminated}
            value = self._reward(replace(known, metrics={**known.metrics, **outcome.metrics}, **verdict))
            check_finite([value])
            change, self._value = value - self._value, float(value)
        return replace(outcome, team_reward=change, turn_rewards={}, segments={}, agent_rewards={})
