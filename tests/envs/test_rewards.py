"""Attribution shapes PettingZoo's view; the composite reward never ranks a failure above a success."""

from __future__ import annotations

import itertools

import pytest

from helpers.flex import PlainTask, flex
from marft_envs import CompositeReward, ConfigError, Layered, Outcome
from marft_envs.core.rewards import RULES


def rewards_by(attribution: object) -> dict[str, float]:
    """Layers a | b c; each turn has a reward of 0.1, the round 3 for the team and 1 for a."""
    task = PlainTask(
        lambda turns: Outcome(turn_rewards={t.index: 0.1 for t in turns}),
        lambda turns: Outcome(team_reward=3.0, agent_rewards={"a_0": 1.0}),
    )
    env = flex(3, Layered([["a_0"], ["b_0", "c_0"]]), task, attribution=attribution)
    env.reset(seed=0)
    total = dict.fromkeys(env.possible_agents, 0.0)
    while not env.done:
        env.step("x")
        for name, reward in env.rewards.items():
            total[name] += reward
    return {name: round(value, 6) for name, value in total.items()}


@pytest.mark.parametrize(("rule", "wanted"), [
    ("team", {"a_0": 4.1, "b_0": 3.1, "c_0": 3.1}), ("split", {"a_0": 2.1, "b_0": 1.1, "c_0": 1.1}),
    ("last", {"a_0": 1.1, "b_0": 1.6, "c_0": 1.6}), ("per_agent", {"a_0": 1.1, "b_0": 0.1, "c_0": 0.1}),
])  # fmt: skip
def test_attribution(rule: str, wanted: dict[str, float]) -> None:
    assert rewards_by(rule) == wanted
    assert rewards_by(RULES[rule]) == wanted


def test_every_rule_but_team_gives_the_team_reward_at_most_once() -> None:
    own = 3 * 0.1 + 1.0
    assert sum(rewards_by("team").values()) == pytest.approx(own + 3 * 3.0)
    for rule in ("split", "last"):
        assert sum(rewards_by(rule).values()) == pytest.approx(own + 3.0)
    assert sum(rewards_by("per_agent").values()) == pytest.approx(own)


def test_a_rule_of_ones_own() -> None:
    def first(team: float, turns: object, agents: object, members: list[str], last: object) -> dict[str, float]:
        return {members[0]: team}

    assert rewards_by(first) == {"a_0": 3.0, "b_0": 0.0, "c_0": 0.0}


def test_composite_terms_are_weighted_and_reported() -> None:
    reward, parts = CompositeReward()(completion=1.0, progress=1.0, steps=0.5, errors=1.0, duplicates=1.0, loops=0.0)
    assert reward == pytest.approx(1.0 + 0.3 - (0.05 + 0.10 + 0.05))
    assert parts == {
        "completion": 1.0, "progress": 0.3, "steps": -0.05, "errors": -0.1, "duplicates": -0.05, "loops": 0.0,
    }  # fmt: skip


def test_no_failure_outranks_a_success() -> None:
    rule = CompositeReward()
    names = ("progress", "steps", "errors", "duplicates", "loops")
    corners = [dict(zip(names, bits, strict=True)) for bits in itertools.product((0.0, 1.0), repeat=5)]
    failures = [rule(completion=0.0, **corner)[0] for corner in corners]
    successes = [rule(completion=1.0, **corner)[0] for corner in corners]
    assert max(failures) < min(successes)


def test_weights_that_could_reward_failure_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a failure can earn 0\.8"):
        CompositeReward(progress=0.8)
    with pytest.raises(ConfigError, match="must not be negative"):
        CompositeReward(steps=-0.1)


def test_composite_terms_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'progress'"):
        CompositeReward()(progres=1.0)
    with pytest.raises(ConfigError, match=r"must lie in \[0, 1\]"):
        CompositeReward()(steps=3.0)
