"""reasoning-gym's questions and answers, for one agent or a team; graded here, not by its scorers.

Most of its scorers compare loosely, and many evaluate what they are given. Here an answer is right if it is the same
text, whatever its case and blanks, or the same number or formula by the grader of :mod:`marft_envs.families.math`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marft_envs.adapters.inward.foreign import deliberators
from marft_envs.adapters.optional import check_name, require
from marft_envs.core.dependency import Chain, DependencyFunction, as_dependency
from marft_envs.core.env import FlexEnv
from marft_envs.core.types import Outcome, Task, TurnRecord
from marft_envs.errors import ConfigError
from marft_envs.families.math.grader import extract_boxed, grade_answer
from marft_envs.problems.sets import named_task

MINIMUM = "0.1.19"
LONGEST = 200
"""Characters of an answer that is looked at as a formula."""
_FORMULA = frozenset("-+0123456789abcdefghijklmnopqrstuvwxyz.,/*^()\\{}= ")


class Questions(Task):
    """A task: one generated question an episode; its id is its seed, so that every question can be asked again."""

    slow = True
    """Formulas are compared in worker processes."""

    def __init__(self, name: str, settings: Mapping[str, Any] | None = None) -> None:
        factory = require("reasoning_gym.factory", "reasoning-gym", MINIMUM, "reasoning-gym", "0.2")
        check_name("reasoning-gym", name, factory.DATASETS)
        self.name, self.settings = name, dict(settings or {})
        self.task_id = ""
        self._question, self._answer = "", ""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Asks the question of ``options["task_id"]``, else a new one."""
        drawn = str(int(rng.integers(2**31)))
        self.task_id = named_task(options) or drawn
        create = require("reasoning_gym", "reasoning-gym", MINIMUM, "reasoning-gym", "0.2").create_dataset
        if not self.task_id.isdecimal():
            raise ConfigError(f"'{self.task_id}' is no question of {self.name}; task ids are numbers.")
        problem = create(self.name, size=1, seed=int(self.task_id), **self.settings)[0]
        self._question, self._answer = str(problem["question"]), str(problem["answer"])

    def observe(self, agent: str) -> str:
        """The question."""
        return self._question

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Grades who spoke last: the last box if there is one, else the whole reply."""
        text = turns[-1].spoken if turns else ""
        boxed = extract_boxed(text)
        right = same(text if boxed is None else boxed, self._answer)
        return Outcome(team_reward=float(right), success=right, terminated=True)

    def gold(self) -> str:
        """The answer; for conformance tests."""
        return self._answer

    def sample_actions(self, agent: str) -> Sequence[str]:
        """The answer and others."""
        return (self._answer, "", "0", "I do not know.")

    def validate(self) -> None:
        """Raises unless the answer is right and silence is wrong."""
        self.reset(np.random.default_rng(0), {})
        if not same(self._answer, self._answer) or same("", self._answer):
            raise ConfigError(f"{self.name}: the answer {self._answer!r} does not score 1, or silence scores.")


def same(reply: str, gold: str) -> bool:
    """Whether two answers are the same text, but for case and blanks, or the same number or formula."""
    plain, wanted = _plain(reply), _plain(gold)
    if plain == wanted:
        return bool(wanted)
    return _formula(plain) and _formula(wanted) and grade_answer(plain, wanted).score == 1.0


def _formula(text: str) -> bool:
    return len(text) <= LONGEST and any(c.isdigit() for c in text) and _FORMULA.issuperset(text)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def make(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    roles: Sequence[str] = ("actor",),
    profiles: Mapping[str, str] | str = "Say the answer and nothing else.",
    dependency: DependencyFunction | str | Sequence[Any] | None = None,
    **kwargs: Any,
) -> FlexEnv:
    """Builds a team that answers the questions of one of reasoning-gym's data sets.

    Args:
        name: The data set, e.g. ``chain_sum``.
        settings: Its configuration.
        roles: The roles of the agents, in the order in which they speak; the last one answers.
        profiles: System message of every agent, or role -> system message.
        dependency: D, which messages each agent receives; default one after the other.
        **kwargs: Settings of :class:`FlexEnv`.
    """
    agents = deliberators(roles, profiles)
    d = Chain() if dependency is None else as_dependency(dependency)
    return FlexEnv(agents, Questions(name, settings), d, **({"env_id": f"reasoning_gym:{name}"} | kwargs))
