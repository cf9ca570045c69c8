"""``cases-v0``: tasks that a team has worked on, each with a result to be compared with. The team is the user's.

>>> env = marft_envs.make("cases-v0", data="cases.jsonl", profiles="cases-team.json")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from marft_envs.core.dependency import Chain
from marft_envs.core.env import FlexEnv
from marft_envs.core.teams import Profiles, Team, member
from marft_envs.core.types import AgentSpec, Outcome, TurnRecord
from marft_envs.errors import DataError, UnsolvedError, check_known
from marft_envs.problems import rows
from marft_envs.problems.answers import REWARDS
from marft_envs.problems.sets import Drawn, ProblemSet, spread

_SOLO = (member("agent", "Answer in as few words as the question allows.", with_answer=True),)


@dataclass(frozen=True, slots=True)
class Case:
    """A task and its result. Agents see ``problem`` alone."""

    id: str
    problem: str
    answer: str


_BUILT_IN = [
    Case("example/day", "Which day follows Monday?", "Tuesday"),
    Case("example/month", "Which month follows May?", "June"),
]


class CasesTask(Drawn[Case]):
    """Draws a case; compares the last words of who answers, as they are, with its result.

    Args:
        problems: The cases.
        team: Agents tagged ``with_answer`` answer.
        reward: ``em``, ``f1`` or ``substring``, as in retrieval.
    """

    problems: ProblemSet[Case]
    slow = False

    def __init__(self, problems: ProblemSet[Case], team: Sequence[AgentSpec], reward: str = "em") -> None:
        check_known([reward], REWARDS, "There is no reward '{}'.")
        self.problems, self._reward, self._alone = problems, reward, len(team) == 1
        self._answerers = frozenset(agent.name for agent in team if agent.with_answer)

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the case ``options["task_id"]``, else draws one."""
        self.draw(rng, options)

    def pose(self, text: str) -> None:
        """Puts a user's words in the place of the problem."""
        self._problem, self.task_id = replace(self.problem, id="posed", problem=text), "posed"

    def observe(self, agent: str) -> str:
        """Returns the task."""
        return self.problem.problem

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Pays nothing."""
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Compares what was said last with the result; ``em``, ``f1`` and ``substring`` are all measured."""
        said = next((turn.text for turn in reversed(turns) if turn.agent in self._answerers), "")
        scores = {name: score(said, [self.problem.answer]) for name, score in REWARDS.items()}
        paid = scores[self._reward]
        return Outcome(team_reward=paid, success=paid == 1.0, terminated=True, metrics=scores)

    def expert(self, agent: str) -> str:
        """Returns the result, of an agent alone.

        Raises:
            UnsolvedError: What the others of a team have said is in recorded rows, not here.
        """
        if not self._alone:
            raise UnsolvedError(f"Nobody knows what {agent} says. Next: --demonstrations ROWS, of marft traces --sft.")
        return self.problem.answer

    def sample_actions(self, agent: str) -> Sequence[str]:
        """Returns replies: the result, in other words, wrong, none."""
        return (self.problem.answer, f"It is {self.problem.answer}.", "I do not know.", "")

    def gold(self) -> str:
        """Returns the result."""
        return self.problem.answer

    def validate(self) -> None:
        """Nothing to prove: a result equals itself."""


def _case(row: Mapping[str, Any], number: int, where: str, stem: str) -> Case:
    problem, answer = row.get("problem"), row.get("answer")
    if not (isinstance(problem, str) and isinstance(answer, str) and problem.strip() and answer.strip()):
        raise DataError(f"{where}: expected text as 'problem' and as 'answer'.")
    return Case(str(row.get("id") or f"{stem}/{number}"), problem, answer)


def make(
    data: str | Path = "",
    split: str = "all",
    reward: str = "em",
    limit: int | None = None,
    profiles: Profiles | None = None,
    dependency: Any = None,
    **flex: Any,
) -> FlexEnv:
    """Builds the environment.

    Args:
        data: JSONL file of rows with ``problem`` and ``answer``, and an ``id`` if wanted; ``{split}`` in its name is
            replaced. Empty: two cases that show the form.
        split: See ``data``. Where training and evaluation read one file, a part of it is held out.
        reward: What is paid: ``em`` (equal but for case, punctuation and articles), ``f1`` of the words, ``substring``.
        limit: At most so many cases, spread evenly.
        profiles: The team, as a list or a JSON file; it acts in the order listed. None: one agent.
        dependency: Its D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        **flex: Settings of :class:`FlexEnv` (``judge``, ``max_rounds``, …).

    Raises:
        ConfigError: If team, D or reward cannot work.
        DataError: If the cases cannot be read.
    """
    path = Path(str(data).replace("{split}", split))
    read = rows.of_file(path, "with 'problem' and 'answer'") if str(data) else ()
    cases = [_case(row, number, where, path.stem) for number, where, row in read] or _BUILT_IN
    team = Team(_SOLO, Chain).changed(profiles, dependency)
    return team.on(CasesTask(ProblemSet(spread(cases, limit), str(data) or "cases"), team.agents, reward), **flex)
