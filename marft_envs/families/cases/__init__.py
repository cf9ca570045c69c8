"""``cases-v0``: rows of a user's own, each a problem with its result, or with a function that rewards the answer.

>>> env = marft_envs.make("cases-v0", data="cases.jsonl", profiles="cases-team.json")
>>> env = marft_envs.from_rows([{"problem": "1+1", "answer": "2"}], reward=my_function, team=["planner", "solver"])()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from marft_envs import registration
from marft_envs.core.dependency import Chain
from marft_envs.core.env import FlexEnv
from marft_envs.core.rewards import check_finite
from marft_envs.core.teams import Profiles, Team, doubled, member
from marft_envs.core.types import AgentSpec, Outcome, Task, TurnRecord
from marft_envs.errors import ConfigError, DataError, UnsolvedError, check_known
from marft_envs.problems import rows
from marft_envs.problems.answers import REWARDS
from marft_envs.problems.sets import Drawn, ProblemSet, spread

_ANSWER = "Answer in as few words as the question allows."
_HELP = "Write what the next agent needs to answer the question, in a few words."
_SOLO = (member("agent", _ANSWER, with_answer=True),)
RowReward = Callable[[str, dict[str, Any]], Any]
"""(answer, row) -> the team's reward: a number; True or False, which is whether it is solved, too; or a dictionary with
``reward``, and if wanted ``success`` and other numbers, which become metrics."""


@dataclass(frozen=True, slots=True)
class Case:
    """A task and its result. Agents see ``problem`` alone."""

    id: str
    problem: str
    answer: str
    """Empty: only a function of the row knows what is right."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """All that a reward function is given beside the answer."""


_BUILT_IN = [
    Case("example/day", "Which day follows Monday?", "Tuesday"),
    Case("example/month", "Which month follows May?", "June"),
]


class CasesTask(Drawn[Case], Task):
    """Draws a case; compares the last words of who answers, as they are, with its result.

    Args:
        problems: The cases.
        team: Agents tagged ``with_answer`` answer.
        reward: ``em``, ``f1`` or ``substring``, as in retrieval; or a function, see ``RowReward``.
    """

    problems: ProblemSet[Case]

    def __init__(self, problems: ProblemSet[Case], team: Sequence[AgentSpec], reward: str | RowReward = "em") -> None:
        self.problems, self._reward, self._alone, self._value = problems, reward, len(team) == 1, 0.0
        if not all(case.answer for case in problems):
            self.gold = None  # type: ignore[method-assign, assignment]
        self._answerers = frozenset(agent.name for agent in team if agent.with_answer)

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Takes the case ``options["task_id"]``, else draws one."""
        self.draw(rng, options)
        self._value = 0.0

    def pose(self, text: str) -> None:
        """Puts a user's words in the place of the problem."""
        self._problem, self.task_id = replace(self.problem, id="asked", problem=text), "asked"

    def observe(self, agent: str) -> str:
        """Returns the task."""
        return self.problem.problem

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        """Compares what was said last with the result (all of ``REWARDS`` are measured), or asks the function.

        The reward is what the round has changed, so that the return is the value of the last round's answer.

        Raises:
            ConfigError: The function returned something that is no reward.
        """
        said = next((turn.spoken for turn in reversed(turns) if turn.agent in self._answerers), "")
        if callable(self._reward):
            reward, solved, numbers = self._read(self._reward(said, dict(self.problem.row)))
        else:
            numbers = {name: score(said, [self.problem.answer]) for name, score in REWARDS.items()}
            reward = numbers[self._reward]
            solved = reward == 1.0
        change, self._value = reward - self._value, reward
        return Outcome(team_reward=change, success=solved, metrics=numbers)

    def _read(self, given: Any) -> tuple[float, bool | None, dict[str, float]]:
        parts = dict(given) if isinstance(given, Mapping) else {"reward": given}
        success = parts.pop("success", given if isinstance(given, bool | np.bool_) else None)
        try:
            numbers = {name: float(value) for name, value in parts.items()}
            check_finite(numbers.values())
            return numbers.pop("reward"), None if success is None else bool(success), numbers
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"The reward function {getattr(self._reward, '__name__', '')} returned {given!r}. Expected a finite"
                " number, True or False, or a dictionary of these: {'reward': 0.5, 'success': False}."
            ) from error

    def expert(self, agent: str) -> str:
        """Returns the result, of an agent alone.

        Raises:
            UnsolvedError: What the others of a team have said is in recorded rows, not here.
        """
        if not self._alone or not self.problem.answer:
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


def _case(row: dict[str, Any], number: int, where: str, stem: str, *, judged: bool) -> Case:
    problem, answer = row.get("problem"), rows.whole(row.get("answer", ""))
    answer = str(answer) if isinstance(answer, str | int | float) else ""
    if not isinstance(problem, str) or not problem.strip() or not (judged or answer.strip()):
        raise DataError(f"{where}: expected text as 'problem' and as 'answer'.")
    return Case(str(row.get("id") or f"{stem}/{number}"), problem, answer, row if judged else {})


def make(
    data: str | Path = "",
    split: str = "all",
    reward: str | RowReward = "em",
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
        reward: What the team is rewarded with: ``em`` (equal but for case, punctuation and articles), ``f1`` of the
            words, ``substring``; a function of the answer and the row (see ``RowReward``), or its ``module:function``.
        limit: At most so many cases, spread evenly.
        profiles: The team, as a list or a JSON file; it acts in the order listed. None: one agent.
        dependency: Its D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        **flex: Settings of :class:`FlexEnv` (``judge``, ``max_rounds``, …). The last round's answer counts.

    Raises:
        ConfigError: If team, D or reward cannot work.
        DataError: If the cases cannot be read.
    """
    if isinstance(reward, str):
        reward = registration.named_function(reward) or reward
    if not callable(reward):
        check_known([reward], REWARDS, "There is no reward '{}'.")
    path = Path(str(data).replace("{split}", split))
    read = rows.of_file(path, "with 'problem' and 'answer'") if str(data) else ()
    judged = callable(reward)
    cases = [_case(row, number, where, path.stem, judged=judged) for number, where, row in read] or _BUILT_IN
    team = Team(_SOLO, Chain).changed(profiles, dependency)
    return team.on(CasesTask(ProblemSet(spread(cases, limit), str(data) or "cases"), team.agents, reward), **flex)


def from_rows(data: Any, reward: str | RowReward = "em", team: Any = 1, **settings: Any) -> Callable[[], FlexEnv]:
    """Returns what makes environments of rows: ``train(env=…)``, ``evaluate(…, env=…)`` and ``make_vec`` take it.

    Examples:
        >>> make_env = from_rows([{"problem": "What is 2+3?", "answer": "5"}], team=["planner", "solver"])
        >>> env = make_env()

    Args:
        data: Rows with ``problem`` and, unless ``reward`` is a function, ``answer``: a list of dictionaries, a
            ``Dataset``, a frame of pandas or polars, or the path of a JSONL file. Agents see ``problem`` alone.
        reward: ``em`` (exact match but for case, punctuation and articles), ``f1``, ``substring``; or a function of the
            answer's text and the row that returns a number, True or False, or a dictionary (see ``RowReward``).
        team: How many agents, who act one after the other; or a list of roles, of prompts, of ``AgentSpec`` or of
            profiles; or role -> prompt; or a JSON file of profiles. The last agent answers, unless a profile says who.
        **settings: Those of ``cases-v0`` (``limit``, ``dependency``, …) and of :class:`marft_envs.FlexEnv`.

    Raises:
        ConfigError: If team, D or reward cannot work.
        DataError: If rows cannot be read.
    """
    if team != 1:
        settings["profiles"] = team if isinstance(team, str | Path) else _profiles(team)
    factory = partial(registration.make, "cases-v0", data=rows.stored(data), reward=reward, **settings)
    factory().close()  # what is wrong is said here
    return factory


def _profiles(team: Any) -> list[dict[str, Any]]:
    """Returns a team as a list of profiles: see ``from_rows``."""
    if isinstance(team, int) and team > 0:
        team = [*["helper"] * (team - 1), "agent"]
    elif isinstance(team, Mapping):
        team = [{"role": role, "prompt": doubled(str(prompt))} for role, prompt in team.items()]
    if not isinstance(team, Sequence) or not all(isinstance(each, str | Mapping | AgentSpec) for each in team):
        raise ConfigError(
            f"team is {team!r}. Expected how many agents (2), a list of roles (['planner', 'solver']), of prompts, of"
            " AgentSpec or of profiles, or role -> prompt."
        )
    found = [_profile(each, _HELP if i + 1 < len(team) else _ANSWER) for i, each in enumerate(team)]
    if found and not any(each.get("with_answer") for each in found):
        found[-1]["with_answer"] = True
    return found


def _profile(given: str | Mapping[str, Any] | AgentSpec, does: str) -> dict[str, Any]:
    if isinstance(given, AgentSpec):
        skills = {skill.name: {"when": skill.when, "text": skill.text} for skill in given.skills}
        kept = {name: getattr(given, name) for name in ("role", "with_answer", "trained")}
        kept |= {"prompt": doubled(given.prompt), "examples": [asdict(each) for each in given.examples]}
        return {**kept, "skills": skills}
    if isinstance(given, str):
        words = " " in given.strip()
        prompt = given if words else f"You are the {given}. {does}"
        return {"role": "agent" if words else given, "prompt": doubled(prompt)}
    return dict(given)
