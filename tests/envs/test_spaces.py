"""UnicodeText: any text, in constant time, with samples that the task finds plausible."""

from __future__ import annotations

import pickle
import time

import pytest
from gymnasium import spaces

from helpers.flex import flex
from marft_envs import UnicodeText


def test_any_text_belongs() -> None:
    space = UnicodeText()
    for text in ("", "two words\n", "\\boxed{\\frac12}", "数学", "\ud800", "\x00", "x" * 1_000_000):
        assert space.contains(text)
    assert not space.contains(3) and not space.contains(None) and not UnicodeText(3).contains("four")
    assert isinstance(space, spaces.Text)


def test_building_and_membership_cost_nothing() -> None:
    start = time.process_time()
    for _ in range(200):
        UnicodeText().contains("x" * 1_000_000)
    assert time.process_time() - start < 0.5


def test_samples_are_the_tasks_and_follow_the_seed() -> None:
    env = flex(2)
    env.reset(seed=0)
    space = env.action_space("a_0")
    candidates = set(env.task.sample_actions("a_0"))
    space.seed(3)
    drawn = [space.sample() for _ in range(20)]
    space.seed(3)
    assert drawn == [space.sample() for _ in range(20)] and set(drawn) <= candidates and len(set(drawn)) > 1
    assert UnicodeText().sample() == ""
    with pytest.raises(ValueError, match="neither mask nor probability"):
        space.sample(mask=[1])


def test_agents_do_not_share_a_space() -> None:
    env = flex(2)
    assert env.action_space("a_0") is not env.action_space("b_0")
    assert env.action_space("a_0") == env.action_space("b_0") and env.action_space("a_0") is env.action_space("a_0")


def test_spaces_pickle() -> None:
    assert pickle.loads(pickle.dumps(UnicodeText(12))) == UnicodeText(12)
