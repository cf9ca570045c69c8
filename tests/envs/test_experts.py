"""Demonstrations of the tasks' own experts."""

from __future__ import annotations

import pytest

import marft_envs
from helpers.flex import flex
from marft_envs import ConfigError, experts

IDS = [spec.id for spec in marft_envs.list_envs() if "/" not in spec.id and not spec.id.startswith("code-")]


@pytest.mark.parametrize("id", IDS)
def test_an_expert_of_every_family_succeeds_in_every_team(id: str) -> None:
    env = marft_envs.make(id)
    for seed in range(3):
        assert experts.play(env, seed).success, seed
    env.close()


@pytest.mark.parametrize("id", ["code-solo-v0", "code-tester-v0", "code-trio-v0"])
def test_an_expert_writes_the_canonical_program(id: str, sandbox: object) -> None:
    env = marft_envs.make(id)
    for seed in (0, 1, 2):
        episode = experts.play(env, seed)
        assert episode.success and episode.metrics["format"] == 1.0
        assert episode.metrics.get("proposed_agree", 1.0) == 1.0, "a tester proposes tests that hold"
    env.close()


def test_a_math_team_shares_the_solution() -> None:
    env = marft_envs.make("math-dual-v0", levels=[0])
    first, last = experts.play(env, 0).turns
    assert (first.text, last.text) == ("12-1=11,", r"11*4=44. \boxed{44}")
    solo = experts.play(marft_envs.make("math-solo-v0", levels=[0]), 0).turns
    assert [turn.text for turn in solo] == [r"12-1=11, 11*4=44. \boxed{44}"]


def test_a_task_without_an_expert_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"has no expert.*expert\(agent\).*JSONL"):
        experts.play(flex(2))
