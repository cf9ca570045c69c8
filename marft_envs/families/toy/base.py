"""What the toy tasks share: a small finite state, digits for words, a score at the end of the episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.core.types import Outcome, Task, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.problems.sets import named_task


def digit(text: str, size: int) -> int | None:
    """Returns the digit that the reply consists of, if it is below ``size``; None for anything else."""
    word = text.strip()
    return int(word) if len(word) == 1 and word in "0123456789"[:size] else None


class ToyTask(Task):
    """A task whose state is one of a handful; subclasses say what is seen and what is right.

    Attributes:
        name: Prefix of task ids: ``<name>/<state digits>``.
        states: Every state, equally likely.
        sizes: Agent -> how many digits it may say.
        rounds: Rounds of an episode. The team's reward comes at the end of the last one.
    """

    name = "toy"
    rounds = 1
    states: Sequence[tuple[int, ...]] = ((),)
    sizes: Mapping[str, int] = {}

    def __init__(self) -> None:
        self.task_id = ""
        self.state: tuple[int, ...] = self.states[0]
        self._said: list[TurnRecord] = []

    # What a subclass says ----------------------------------------------------------------------------

    def observe(self, agent: str) -> str:
        """Returns o_t of this agent."""
        raise NotImplementedError

    def right(self, turns: Sequence[TurnRecord]) -> bool:
        """Returns whether the episode's turns solve the task in this state."""
        raise NotImplementedError

    def gold_turns(self) -> list[tuple[str, str]]:
        """Returns who says what, in order, in one best solution of this state."""
        raise NotImplementedError

    # The Task protocol -------------------------------------------------------------------------------

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the state named by ``options["task_id"]``, else draws one."""
        task_id = named_task(options)
        if task_id is None:
            self._enter(self.states[int(rng.integers(len(self.states)))])
            return
        known = {self._id(state): state for state in self.states}
        if task_id not in known:
            raise ConfigError(f"There is no task '{task_id}'. Known: {', '.join(known)}.")
        self._enter(known[task_id])

    def _id(self, state: tuple[int, ...]) -> str:
        return f"{self.name}/{''.join(map(str, state))}"

    def kind_of(self, task_id: str) -> str:
        """Returns the id: a state comes often."""
        return task_id

    def _enter(self, state: tuple[int, ...]) -> None:
        self.state, self.task_id, self._said = state, self._id(state), []

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Gives no reward."""
        self._said += turns
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Rewards the team with 1 if the last round's answer is right."""
        if (turns[0].round if turns else self.rounds - 1) < self.rounds - 1:
            return Outcome()
        right = self.right(self._said)
        parsed = [digit(turn.spoken, self.sizes[turn.agent]) is not None for turn in self._said]
        share = sum(parsed) / max(len(parsed), 1)
        return Outcome(team_reward=float(right), success=right, terminated=True, metrics={"parsed": share})

    def expert(self, agent: str) -> str:
        """Returns what the agent says next in the best solution."""
        mine = [text for name, text in self.gold_turns() if name == agent]
        spoken = sum(turn.agent == agent for turn in self._said)
        return mine[min(spoken, len(mine) - 1)] if mine else "0"

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns every digit that the agent may say, and a word that is none."""
        return (*map(str, range(self.sizes[agent])), "hello")

    def validate(self) -> None:
        """Checks every state: the gold turns are right, silence is not.

        Raises:
            ConfigError: Naming the state for which it does not hold.
        """
        for state in self.states:
            self._enter(state)
            for replies, wanted in ((self.gold_turns(), True), ([(a, "") for a, _ in self.gold_turns()], False)):
                turns = [TurnRecord(i, self.rounds - 1, i, a, a, (), text) for i, (a, text) in enumerate(replies)]
                if self.right(turns) is not wanted:
                    raise ConfigError(f"{self.task_id}: {replies} should{'' if wanted else ' not'} be right.")
