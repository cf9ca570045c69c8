"""A reward as a function of the episode, and episodes that show themselves."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import marft_envs
from helpers.flex import PlainTask, flex
from marft_envs import ConfigError, Episode, Outcome
from marft_envs.core.rewards import RewardedTask
from marft_envs.records import trajectory


def said(episode: Episode) -> float:
    """Rewards turns, and success."""
    return len(episode.turns) + 10.0 * bool(episode.success)


def played(env: Any, word: str = "1") -> Episode:
    env.reset(seed=0)
    while not env.done:
        env.step(word)
    return env.episode


def channels(episode: Episode) -> tuple[list[float], list[float]]:
    return [layer.team_reward for layer in episode.layers], [turn.reward for turn in episode.turns]


def test_the_reward_of_a_round_is_the_change_of_a_function_of_the_episode_and_nothing_else() -> None:
    env = marft_envs.make("signal-v0", reward=said)
    episode = played(env)
    team, turns = channels(episode)
    assert episode.team_return == said(episode) and team == [0.0, 2.0, 0.0, 2.0] and not any(turns)
    assert channels(played(copy.deepcopy(env))) == channels(played(pickle.loads(pickle.dumps(env)))) == (team, turns)
    assert channels(played(env)) == (team, turns), "nothing is left of the episode before"


def test_an_end_by_the_task_is_rewarded_and_its_verdict_is_known() -> None:
    for success in (True, False):
        env = marft_envs.make("relay-v0", reward=said)
        env.reset(seed=0)
        env.step(env.task.expert("planner_0"))
        gold = env.task.expert("solver_0")
        env.step(gold if success else str((int(gold) + 1) % 4))
        assert env.episode.success is success and env.episode.team_return == 2.0 + 10.0 * success


def test_a_verdict_of_a_layer_is_known_at_the_end_of_the_round() -> None:
    env = flex(1, task=PlainTask(layer=lambda turns: Outcome(success=True)))
    env.task = RewardedTask(env.task, said)
    env.task.env = env
    assert played(env).team_return == 1.0 + 10.0


@pytest.mark.parametrize("judge", [None, {"question": "Is it right?", "levels": {"no": 0.0, "yes": 1.0}}])
def test_a_late_answer_is_rewarded_as_a_wrong_one(judge: Any) -> None:
    """The function was not asked, so that lateness was better than a mistake where mistakes cost."""
    cost = lambda episode: bool(episode.success) - 0.25 * len(episode.turns)  # noqa: E731
    late = played(marft_envs.make("relay-v0", reward=cost, judge=judge, max_path=2), "two words")
    assert (late.stop_reason, late.success, late.team_return) == ("max_path", False, -0.5)


def test_a_module_names_it_and_judges_come_on_top() -> None:
    judge = {"question": "Is it right?", "levels": {"no": 0.0, "yes": 1.0}}
    env = marft_envs.make("relay-v0", reward=f"{__name__}:said", judge=judge)
    assert isinstance(env.task.task, RewardedTask) and env.spec == marft_envs.spec("relay-v0")
    assert played(env, "Verdict: yes").team_return == 3.0 + 1.0  # the judge's turn is one, too, and its verdict counts
    with pytest.raises(ConfigError, match=r"reward is 'nobody'\. Expected a function of an episode"):
        marft_envs.make("relay-v0", reward="nobody")
    bad = marft_envs.make("relay-v0", reward=lambda episode: "much")
    with pytest.raises(ConfigError, match=r"is 'much'; expected a finite number"):
        played(bad)


def test_an_episode_shows_itself() -> None:
    episode = played(marft_envs.make("relay-v0"), "<b>1</b>")
    assert repr(episode).startswith("<Episode relay-v0 ") and "2 turns, return 0, success False" in repr(episode)
    assert "#1 round 1 solver_0 (sees 0): <b>1</b>" in str(episode) and str(episode).splitlines()[-1].startswith(
        "ended: "
    )
    assert "&lt;b&gt;1&lt;/b&gt;" in episode._repr_html_() and "<b>" not in episode._repr_html_()
    assert trajectory.from_dict(episode.to_dict()) == episode and episode.to_dict() == trajectory.to_dict(episode)
    assert str(episode) == _rendered(episode)


def _rendered(episode: Episode) -> str | None:
    env = marft_envs.make("relay-v0", render_mode="ansi")
    played(env, "<b>1</b>")
    return env.render()
