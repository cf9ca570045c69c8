"""``steps-v0``: rewards, who sees which operation, and the documented ceilings, by brute force."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import marft_envs
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError
from marft_envs.records import experts

Reply = Callable[[str], str]


def tasks(horizon: int, hidden: bool = False) -> list[str]:
    """Every episode of so many steps that begins with 9, and so also with a sum of ten."""
    marks = [m for m in itertools.product("01", repeat=horizon) if m[0] == "0"] if hidden else [("0",) * horizon]
    operations = list(itertools.product("01", repeat=horizon))
    return [f"steps/9-{''.join(plus)}-{''.join(mark)}" for plus in operations for mark in marks]


def play(env: FlexEnv, task_id: str, reply: Reply) -> FlexEnv:
    """Plays an episode by what each agent sees: all of its messages behind the profile, as one text."""
    env.reset(seed=0, options={"task_id": task_id})
    while not env.done:
        agent = env.agent_selection
        env.step(reply("\n".join(message["content"] for message in env.messages(agent)[1:])))
    return env


def read(seen: str) -> str:
    """Says the last digit plus the operation, both as seen, and passes on what the other does not see."""
    task = re.findall(r"^(?:digit (\d) )?plus ([\d?])(?: other (\d))?$", seen, re.MULTILINE)[-1]
    heard = re.findall(r"^(\d)(\d)?$", seen, re.MULTILINE)
    before, told = (task[0], "") if task[0] else heard[-1]
    own = told if task[1] == "?" else task[1]
    said = str((int(before) + int(own)) % 10)
    return said + task[2]


@pytest.mark.parametrize(("horizon", "hidden"), [(1, False), (2, True), (3, True), (4, False)])
def test_a_team_that_reads_and_passes_on_solves_every_episode(horizon: int, hidden: bool) -> None:
    env = marft_envs.make("steps-v0", horizon=horizon, hidden=float(hidden))
    for task_id in tasks(horizon, hidden):
        episode = play(env, task_id, read).episode
        assert episode.success and episode.team_return == 1.0, task_id
        assert len(episode.turns) == horizon
        assert [turn.agent for turn in episode.turns] == [("left_0", "right_0")[i % 2] for i in range(horizon)]


def test_one_wrong_step_loses_the_episode_without_feedback() -> None:
    env = marft_envs.make("steps-v0", horizon=3)
    for task_id, wrong in itertools.product(tasks(3), range(3)):
        steps = iter(range(3))
        paid = play(env, task_id, lambda seen, w=wrong, s=steps: "5" if next(s) == w else read(seen)).episode
        assert paid.success is False and paid.team_return == 0.0
        assert paid.metrics["steps_right"] == pytest.approx(wrong / 3)
        assert len(paid.turns) == 3


@pytest.mark.parametrize("text", ["", "hello", "9 1", "911", "9x", "nine", "٩"])
def test_a_reply_that_is_no_digit_is_no_step(text: str) -> None:
    env = marft_envs.make("steps-v0", horizon=1)
    episode = play(env, "steps/9-0-0", lambda seen: text).episode
    assert episode.success is False and episode.metrics["parsed"] == 0.0
    assert play(env, "steps/9-0-0", lambda seen: "91").episode.success


def ceiling(env: FlexEnv, horizon: int, hidden: bool = False) -> float:
    """The best score of any team whose steps before the last one are right: the last one says what is likeliest."""
    of_view: dict[str, Counter[int]] = defaultdict(Counter)
    for task_id in tasks(horizon, hidden):
        env.reset(seed=0, options={"task_id": task_id})
        right = env.task.digits  # type: ignore[attr-defined]
        for step in range(horizon):
            if step == horizon - 1:
                seen = "\n".join(message["content"] for message in env.messages(env.agent_selection)[1:])
                of_view[seen][right[-1]] += 1
            env.step(str(right[step]))
    return sum(max(counts.values()) for counts in of_view.values()) / len(tasks(horizon, hidden))


def test_the_second_step_is_a_guess_without_the_first_message() -> None:
    assert ceiling(marft_envs.make("steps-v0", horizon=2), 2) == 1.0
    assert ceiling(marft_envs.make("steps-v0", horizon=2, dependency="independent"), 2) == 0.5


def test_a_hidden_operation_is_seen_by_the_other_agent_only() -> None:
    env = marft_envs.make("steps-v0", horizon=2, hidden=1.0)
    env.reset(seed=0, options={"task_id": "steps/3-01-01"})
    assert env.messages("left_0")[-1]["content"] == "digit 3 plus 0 other 1"
    env.step("3")
    assert env.messages("right_0")[-1]["content"] == "plus ?\n\n[left]\n3"
    # A single agent sees what it would have said to the other, and gets no message: it sees steps 0 and 1, not 2.
    alone = marft_envs.make("steps-v0", horizon=3, hidden=1.0, dependency=[["left_0"]])
    seen: list[str] = []
    play(alone, "steps/9-000-011", lambda text: (seen.append(text), "9")[1])
    assert ["plus ?" in text for text in seen] == [False, False, True]


def test_one_agent_who_sees_all_takes_every_step() -> None:
    env = marft_envs.make("steps-solo-v0", horizon=5)
    assert env.possible_agents == ["solver_0"]
    for task_id in tasks(5):
        assert play(env, task_id, read).episode.success


@pytest.mark.parametrize("hidden", [0.0, 0.5, 1.0])
def test_as_many_operations_are_hidden_as_were_asked_for(hidden: float) -> None:
    env = marft_envs.make("steps-v0", horizon=16, hidden=hidden)
    marks = Counter[str]()
    for seed in range(100):
        assert experts.play(env, seed).success
        marks.update(env.task.task_id.rsplit("-", 1)[1][1:])
        assert env.task.task_id.rsplit("-", 1)[1][0] == "0"
    share = marks["1"] / marks.total()
    assert share == hidden if hidden in (0.0, 1.0) else abs(share - hidden) < 0.05


@pytest.mark.parametrize(("settings", "options", "says"), [
    ({"horizon": 0}, {}, "expected 1 to 64 steps"), ({"horizon": 65}, {}, "expected 1 to 64 steps"),
    ({"hidden": 1.5}, {}, "a share of operations from 0 to 1"),
    ({"reward": "words"}, {}, "reward is .words.; expected one of success, steps, graded"),
    ({}, {"task_id": "steps/3-01-00"}, "no task 'steps/3-01-00' of 4 steps.*steps/3-1111-0000"),
    ({}, {"task_id": "steps/3-0123-0000"}, "4 operations .0 or 1."),
    ({}, {"task_id": "steps/3-0101-1000"}, "the first 0"),
])  # fmt: skip
def test_a_number_or_a_task_that_cannot_be_is_named(
    settings: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        marft_envs.make("steps-v0", **settings).reset(seed=0, options=options)


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
def test_steps_and_shares_of_them_are_rewarded_where_that_is_asked_for(wrong: int | None) -> None:
    """A wrong step has no reward; one that adds rightly to a wrong digit has; a share ends at the first wrong one."""
    for pay, team, turns in (
        ("success", float(wrong is None), [0.0] * 3),
        ("steps", 0.0, [(k != wrong) / 3 for k in range(3)]),
        ("graded", (3 if wrong is None else wrong) / 3, [0.0] * 3),
    ):
        env, steps = marft_envs.make("steps-v0", horizon=3, reward=pay), iter(range(3))
        episode = play(env, "steps/9-101-000", lambda seen, s=steps: "7" if next(s) == wrong else read(seen)).episode
        assert episode.success is (wrong is None)
        assert [turn.reward for turn in episode.turns] == pytest.approx(turns)
        assert sum(layer.team_reward for layer in episode.layers) == pytest.approx(team)
    assert (
        play(
            marft_envs.make("steps-v0", horizon=2, reward="steps"), "steps/9-10-00", lambda seen: "x"
        ).episode.team_return
        == 0
    )
