"""The planted cases of ``marft versus``: what is said to be known of each follows from its construction."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

import marft_envs
from benchmarks.learning.versus_planted import CASES, ENV
from examples.planted import FIRST, KINDS, SECOND, Dear
from helpers.toys import play
from marft_algos.extras.bench.versus import run
from marft_envs.core.env import FlexEnv
from marft_envs.errors import UnsolvedError
from marft_envs.families.toy.base import ToyTask
from marft_envs.records import experts

BEST = {
    "spare": (1.0, 1.0, 1.0),
    "halves": (1.0, 1.0, 0.5),
    "relay": (1.0, 0.5, 0.5),
    "shown": (1.0, 0.5, 1.0),
    "dear": (1.0, 1.0, 1.0),  # what they differ in is how soon they learn it
}
"""Case -> the best score of the team, of the team without D, and of the single agent."""


def best(env: FlexEnv) -> float:
    """The best score of any team whose agents say a digit, always the same one when they are told the same."""
    task = env.task
    assert isinstance(task, ToyTask)
    problems = [task._id(state) for state in task.states]
    words = {agent: task.sample_actions(agent)[:-1] for agent in env.possible_agents}  # the last is no digit
    told: dict[tuple[str, str], None] = {}
    for problem, i in itertools.product(problems, range(2)):
        play(env, problem, lambda agent, text, i=i: (told.setdefault((agent, text)), words[agent][i])[1])
    scores = []
    for choice in itertools.product(*(words[agent] for agent, _ in told)):
        table = dict(zip(told, choice, strict=True))
        scores.append(sum(play(env, p, lambda *seen, t=table: t[seen]) for p in problems) / len(problems))
    return max(scores)


@pytest.mark.parametrize("case", BEST)
def test_the_best_that_a_side_can_do_is_what_the_verdict_says(case: str) -> None:
    name, rival = CASES[case].trial(case, 1).rival()
    sides = (ENV, {"case": case}), (ENV, {"case": case, "dependency": "independent"}), (name, rival)
    assert tuple(best(marft_envs.make(env, **kwargs)) for env, kwargs in sides) == BEST[case]


@pytest.mark.parametrize("case", CASES)
def test_a_trial_can_be_run(case: str) -> None:
    assert run.check(CASES[case].trial(case, 1))


@pytest.mark.parametrize("solo", [False, True])
def test_demonstrations_of_dear_succeed_and_mostly_show_the_wrong_digit(solo: bool) -> None:
    env, shown = marft_envs.make(ENV, case="dear", solo=solo), []
    task = env.unwrapped.task
    assert isinstance(task, Dear)
    for state in task.states:
        try:
            episode = experts.play(env, 0, {"task_id": task._id(state)})
        except UnsolvedError:
            continue
        assert episode.success
        shown.append(task.said(episode.turns[-1].text))
    assert sorted(shown) == [*[0] * 7, 1] and len(task.states) == 2 * len(shown) == KINDS


def test_the_single_agent_of_dear_has_to_count_first() -> None:
    env = marft_envs.make(ENV, case="dear", solo=True)
    task = env.unwrapped.task
    long, short = (
        task.sample_actions(FIRST)[1],
        marft_envs.make(ENV, case="dear").unwrapped.task.sample_actions(SECOND)[1],
    )
    assert play(env, "planted/15", lambda *_: long) == 1.0
    assert play(env, "planted/15", lambda *_: short) == play(env, "planted/15", lambda *_: long[2:]) == 0.0


@pytest.mark.parametrize("case", [case for case in CASES if case != "dear"])
def test_an_expert_says_what_its_agent_can_know_from_what_it_sees_and_hears(case: str) -> None:
    env, said = marft_envs.make(ENV, case=case), defaultdict[tuple[str, str], set[str]](set)
    task = env.task
    assert isinstance(task, ToyTask)

    def expert(agent: str, text: str) -> str:
        said[agent, text].add(task.expert(agent))
        return task.expert(agent)

    assert all(play(env, task._id(state), expert) for state in task.states)
    assert [words for words in said.values() if len(words) > 1] == []
