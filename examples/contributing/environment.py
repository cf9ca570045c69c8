"""An environment of your own, complete in one file: two agents hold a digit each, the third says their sum.

Check it: ``marft check examples.contributing.environment:sum-v0``. Train on it:
``marft train --preset toy --env examples.contributing.environment:sum-v0``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import marft_envs
from marft_envs import AgentSpec, FlexEnv, Layered, Outcome, TurnRecord
from marft_envs.errors import ConfigError

TEAM = (
    AgentSpec("left_0", "left", "Pass your digit on. Say one digit from 0 to 2."),
    AgentSpec("right_0", "right", "Pass your digit on. Say one digit from 0 to 2."),
    AgentSpec("adder_0", "adder", "Add the two digits. Say one digit from 0 to 4.", with_answer=True),
)


class Sum:
    """Rewards the team with 1 if the adder says the sum of the two digits."""

    slow = False
    task_id = ""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the digits that ``options["task_id"]`` names, else draws them, with ``rng`` only."""
        named = options.get("task_id") or "+".join(map(str, rng.integers(0, 3, size=2)))
        parts = named.split("+")
        if len(parts) != 2 or not set(parts) <= {"0", "1", "2"}:
            raise ConfigError(f"There is no task '{named}'. Expected two digits from 0 to 2, as in '1+2'.")
        self.left, self.right = map(int, parts)
        self.task_id = named

    def observe(self, agent: str) -> str:
        """What an agent sees of the task: pure, and never the answer."""
        digits = {"left_0": self.left, "right_0": self.right}
        return f"digit {digits.get(agent, '?')}"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Nothing happens between the layers: no tools, no rewards of single turns."""
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """The one round is over: rewards, says whether it was right, and ends the episode."""
        right = bool(turns) and self._right(turns[-1].spoken)
        return Outcome(team_reward=float(right), success=right, terminated=True)

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Replies right and wrong, which the checks play."""
        return [*map(str, range(5)), "no idea"]

    def validate(self) -> None:
        """The gold answer is right, any other is not, and silence has no reward."""
        self.reset(np.random.default_rng(0), {"task_id": "1+2"})
        if [self._right(reply) for reply in ("3", "2", "")] != [True, False, False] or self.on_round([]).team_reward:
            raise ConfigError("The sum does not score its gold answer 1 and everything else 0.")

    def _right(self, reply: str) -> bool:
        return reply.strip() == str(self.left + self.right)


def make(dependency: Any = None, **flex: Any) -> FlexEnv:
    """Builds the environment; ``dependency="independent"`` is the ablation, ``**flex`` are FlexEnv's settings."""
    parallel = Layered([["left_0", "right_0"], ["adder_0"]])
    return FlexEnv(TEAM, Sum(), dependency or parallel, **flex)


marft_envs.register("sum-v0", make, summary="example: a sum of two digits, known to one agent each")
