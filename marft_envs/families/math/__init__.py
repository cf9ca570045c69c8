"""Math teams: ``math-solo-v0``, ``math-dual-v0``, … on any problem set.

>>> env = marft_envs.make("math-dual-v0", levels=[1, 2], split="test")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from marft_envs.core.env import FlexEnv
from marft_envs.core.teams import Profiles, Team, check_answerer, load_profiles, named
from marft_envs.families.math import data as data_mod
from marft_envs.families.math.problem import MathProblem
from marft_envs.families.math.task import MathTask
from marft_envs.families.math.teams import SPECIALISTS, TEAMS
from marft_envs.problems.sets import levels_of

__all__ = ["TEAMS", "MathProblem", "MathTask", "Team", "load_profiles", "make"]


def make(
    team_name: str = "dual",
    data: str | Path = "procedural",
    split: str = "train",
    subjects: str | Sequence[str] | None = None,
    levels: int | Sequence[int] | None = None,
    filter: Callable[[MathProblem], bool] | None = None,
    limit: int | None = None,
    profiles: Profiles | None = None,
    dependency: Any = None,
    rounds: int | None = None,
    oracle: bool = False,
    **flex: Any,
) -> FlexEnv:
    """Builds a math environment.

    Args:
        team_name: One of :data:`TEAMS`; the environment's id sets it.
        data: A data set's name or the path of a JSONL file, see :func:`marft_envs.families.math.data.load`.
        split: ``train`` or ``test``.
        subjects: Only problems of these subjects; None: all.
        levels: Only these (0 to 5). None: level 0 of the procedural problems, which the embedded model can learn; all
            levels of another set.
        filter: A function of a problem; only problems for which it is true are kept.
        limit: The most problems, chosen evenly from the set; None: all.
        profiles: Agent or role -> another profile. To replace the team: a list (or a JSON file) of profiles with
            ``role``, ``prompt`` and ``with_answer``. The agents act in the order listed, unless ``dependency`` is set.
        dependency: Replaces the team's D: anything :func:`marft_envs.core.dependency.as_dependency` takes.
        rounds: Rounds in an episode, one by default; the return is the score of the last answer.
        oracle: Whether feedback after each round says if the answer was right.
        **flex: Settings of :class:`FlexEnv` (``history``, ``observation``, ``attribution``, …). With several
            rounds ``history`` is ``"team"`` by default: all agents see the earlier rounds, unless D = 0.

    Raises:
        ConfigError: If the team, profiles or D cannot work.
        DataError: If the data cannot be loaded.
    """
    team = named("math", team_name, TEAMS).changed(profiles, dependency)
    check_answerer(team.agents, "the team")
    problems = data_mod.load(data, split, subjects, levels_of(data, levels), filter, limit)
    answerers = {agent.name: agent.role for agent in team.agents if agent.with_answer}
    task = MathTask(problems, list(answerers), oracle, _specialists(set(answerers.values())))
    return team.on(task, rounds, **flex)


def _specialists(roles: Set[str]) -> dict[str, str]:
    """Returns the best role for each subject, where those who answer are specialists."""
    known = {subject: role for subject, role in SPECIALISTS.items() if role in roles}
    return known if len(set(known.values())) > 1 else {}
