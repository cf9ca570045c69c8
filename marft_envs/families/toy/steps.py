"""``steps-v0``: several dependent steps, which must all be right; how many, and which agent sees what, are settings.

An episode has a digit and ``horizon`` operations ("plus 0" or "plus 1", modulo 10). Two agents take turns; each says
the digit that the last one said, plus its operation. The team's reward at the end is 1 if every step was right, else 0.
One wrong step loses the episode, and no feedback says which step was wrong. In ``steps-solo-v0``, one agent takes all
steps.

With ``hidden=0.5``, half of the operations are seen by the *other* agent only. That agent says them with its own step
("31": a step to 3, and plus 1 for the other). All agents see the first operation. How often a team succeeds before
reinforcement learning depends on how long it imitates the expert (``--warm-start``).

``reward`` chooses the reward. ``"success"`` is described above. With ``"steps"``, a step that adds its operation to the
digit said before it has a turn reward of 1/horizon, and the end has none. With ``"graded"``, the team's reward at the
end is the share of steps before the first wrong one.

| | score |
|---|---|
| best under ``Chain`` with public history, and of one agent who sees all (``steps-solo-v0``) | 1 |
| best under ``Independent``, two steps | 1/2: the second acts at once, and sees the first operation |
| null team (says nothing) | 0 |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from marft_envs.core.dependency import Chain
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import AgentSpec, Outcome, Task, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.families.toy.base import digit
from marft_envs.problems.sets import named_task

SIZE = 10
"""Digits; sums are modulo this."""
OPERATIONS = 2
Reward = Literal["success", "steps", "graded"]
LONGEST = 64
"""Steps at most."""
LEFT, RIGHT, SOLVER = "left_0", "right_0", "solver_0"
SAY = "Add to the last digit. Say one digit."
TELL = "Add to the last digit. Say one digit, and the other's number if it does not see it."


class Steps(Task):
    """A digit, and operations that two agents apply to it in turn, or one agent alone.

    Args:
        horizon: Steps of an episode.
        hidden: Share of operations, from 0 to 1, that only the agent sees whose step is the one before.
        alone: One agent, who sees all.
        reward: ``success``, ``steps`` or ``graded``: see above.

    Attributes:
        task_id: ``steps/DIGIT-OPERATIONS-MARKS``; a hidden operation has the mark 1.
    """

    def __init__(self, horizon: int, hidden: float, *, alone: bool, reward: Reward = "success") -> None:
        self.horizon, self.share_hidden, self.alone, self.reward = horizon, hidden, alone, reward
        self.task_id, self.begin = "", 0
        self.plus: tuple[int, ...] = (0,) * horizon
        self.hidden: tuple[bool, ...] = (False,) * horizon
        self._said: list[str] = []

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the episode named by ``options["task_id"]``, else draws one."""
        task_id, n = named_task(options), self.horizon
        if task_id is None:
            plus, hidden = rng.integers(OPERATIONS, size=n), rng.random(n) < self.share_hidden
            hidden[0] = False
            digits = ("".join(map(str, row.astype(int))) for row in (plus, hidden))
            task_id = f"steps/{rng.integers(SIZE)}-{'-'.join(digits)}"
        found = re.fullmatch(rf"steps/([0-9])-([01]{{{n}}})-(0[01]{{{n - 1}}})", str(task_id))
        if not found:
            raise ConfigError(
                f"There is no task '{task_id}' of {n} steps. Expected a digit, {n} operations (0 or 1), and {n} marks"
                f" of hidden ones, the first 0: steps/3-{'1' * n}-{'0' * n}"
            )
        self.task_id, self.begin, self._said = str(task_id), int(found[1]), []
        self.plus, self.hidden = tuple(map(int, found[2])), tuple(mark == "1" for mark in found[3])

    def kind_of(self, task_id: str) -> str:
        """Returns the id: digit, operations, and which are hidden."""
        return task_id

    def observe(self, agent: str) -> str:
        """Shows the agent its operation, or a question mark, and what only it sees of the other's next one."""
        step = len(self._said)
        if step >= self.horizon:
            return "done"
        own = str(self.plus[step]) if self._sees(agent, step) else "?"
        text = f"digit {self.begin} plus {own}" if step == 0 else f"plus {own}"
        return f"{text} other {number}" if (number := self._to_tell(agent)) else text

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Takes a step for each turn; at the last one, gives the team's reward and success."""
        own = {turn.index: reward for turn in turns if (reward := self._step(turn.spoken))}
        if len(self._said) < self.horizon:
            return Outcome(turn_rewards=own)
        said = [_said(text) for text in self._said[: self.horizon]]
        right = [s == x for s, x in zip(said, self.digits, strict=True)]
        first = right.index(False) if False in right else self.horizon
        metrics = {"parsed": sum(s is not None for s in said) / self.horizon, "steps_right": first / self.horizon}
        team = {"success": float(all(right)), "graded": first / self.horizon, "steps": 0.0}[self.reward]
        return Outcome(team, own, success=all(right), terminated=True, metrics=metrics)

    def _step(self, text: str) -> float:
        """Takes a step; returns its turn reward."""
        before, step = _said(self._said[-1]) if self._said else self.begin, len(self._said)
        self._said.append(text)
        if self.reward != "steps" or before is None or step >= self.horizon:
            return 0.0
        return float(_said(text) == (before + self.plus[step]) % SIZE) / self.horizon

    @property
    def digits(self) -> list[int]:
        """The right digit of every step."""
        return [(self.begin + sum(self.plus[: step + 1])) % SIZE for step in range(self.horizon)]

    def expert(self, agent: str) -> str:
        """Says the right digit of this step, and what the other one does not see."""
        said = str(self.digits[min(len(self._said), self.horizon - 1)])
        return said + self._to_tell(agent)

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns every digit, a digit with a message, and a word that is none."""
        return (*map(str, range(SIZE)), "31", "hello")

    def validate(self) -> None:
        """Checks that right digits are a success, and empty replies are not.

        Raises:
            ConfigError: They are not.
        """
        for replies, wanted in (([str(x) for x in self.digits], True), ([""] * self.horizon, False)):
            self._said = []
            turns = [TurnRecord(i, i, i, LEFT, "left", (), text) for i, text in enumerate(replies)]
            if self.on_layer(turns).success is not wanted:
                raise ConfigError(f"{self.task_id}: {replies} should{'' if wanted else ' not'} be right.")
        self._said = []

    def _sees(self, agent: str, step: int) -> bool:
        """Whether an agent sees an operation: a hidden one is seen by the agent whose step is the one before."""
        return self.alone or not self.hidden[step] or agent == (LEFT, RIGHT)[(step - 1) % 2]

    def _to_tell(self, agent: str) -> str:
        """Returns the next operation, if the agent sees it and the next one to speak does not."""
        step = len(self._said) + 1
        tells = not self.alone and step < self.horizon and self.hidden[step] and self._sees(agent, step)
        return str(self.plus[step]) if tells else ""


def _said(text: str) -> int | None:
    """Returns the digit of a step: the reply, or the first of its two digits; None for anything else."""
    word = text.strip()
    digits = [digit(letter, SIZE) for letter in word[:3]]
    return digits[0] if 1 <= len(digits) <= 2 and None not in digits else None


def make(
    horizon: int = 4,
    hidden: float = 0.0,
    alone: bool = False,
    reward: Reward = "success",
    dependency: Any = None,
    **flex: Any,
) -> FlexEnv:
    """Builds the environment.

    Args:
        horizon: Steps of an episode, 1 to 64.
        hidden: Share of operations that only the other agent sees, 0 to 1.
        alone: One agent, who sees all (``steps-solo-v0``).
        reward: ``success`` (1 if all steps are right), ``steps`` (1/horizon for each right step) or ``graded`` (the
            share of steps before the first wrong one).
        dependency: Another D; ``"independent"`` is the ablation.
        **flex: FlexEnv's settings.

    Raises:
        ConfigError: A number that is outside its range.
    """
    if not 1 <= horizon <= LONGEST:
        raise ConfigError(f"horizon is {horizon}; expected 1 to {LONGEST} steps, e.g. horizon=4.")
    if not 0 <= hidden <= 1:
        raise ConfigError(f"hidden is {hidden}; expected a share of operations from 0 to 1, e.g. hidden=0.5.")
    if reward not in get_args(Reward):
        raise ConfigError(f"reward is '{reward}'; expected one of {', '.join(get_args(Reward))}.")
    prompt = TELL if hidden else SAY
    pair = [AgentSpec(LEFT, "left", prompt, with_answer=True), AgentSpec(RIGHT, "right", prompt, with_answer=True)]
    team = [AgentSpec(SOLVER, "solver", SAY, with_answer=True)] if alone else pair
    flex = {"history": "team", "max_rounds": horizon, **flex}
    d = Chain() if dependency is None else dependency
    return FlexEnv(team, Steps(horizon, hidden, alone=alone, reward=reward), d, **flex)
