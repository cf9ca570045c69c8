"""Self-play: who plays whom, what the pool keeps, what is trained, ratings."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft_envs
from helpers import runs
from helpers.teams import episode, put
from helpers.tiny import save_tiny
from marft_algos.rollout import selfplay
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs import ConfigError

pytestmark = pytest.mark.slow


class Duel:
    """Two agents speak; whoever has the greater share of small letters takes one from the other."""

    task_id, slow = "duel", False

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        """Nothing to draw."""

    def observe(self, agent: str) -> str:
        return "speak"

    def on_layer(self, turns: Sequence[marft_envs.TurnRecord]) -> marft_envs.Outcome:
        return marft_envs.Outcome()

    def on_round(self, turns: Sequence[marft_envs.TurnRecord]) -> marft_envs.Outcome:
        left, right = (sum("a" <= c <= "z" for c in turn.text) for turn in turns)
        won = float(np.sign(left - right))
        return marft_envs.Outcome(agent_rewards={"left_0": won, "right_0": -won}, terminated=True)

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ("a", "A")

    def validate(self) -> None:
        """Nothing to prove."""


def make_duel() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec("left_0", "left"), marft_envs.AgentSpec("right_0", "right")]
    return marft_envs.FlexEnv(team, Duel(), marft_envs.Independent(), attribution="per_agent")


marft_envs.register("test/duel-v0", make_duel)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def settings(model: Path, folder: Path, **changes: Any) -> Any:
    given = {"env": "test/duel-v0", "algo": "ippo", "policies": "shared", "pool": 2, "pool_every": 1, **changes}
    return runs.settings(model, folder, **given)


def test_half_of_the_episodes_are_against_the_past_seats_and_members_drawn_evenly(model: Path, tmp_path: Path) -> None:
    pool = build(settings(model, tmp_path)).pool
    assert pool is not None
    drawn = [pool.drawn(3, episode) for episode in range(2000)]
    assert drawn == [pool.drawn(3, episode) for episode in range(2000)]
    against = Counter(pair for pair in drawn if pair[0])
    assert sum(against.values()) == pytest.approx(1000, abs=100)
    assert set(against) == {(seat, member) for seat in ("left_0", "right_0") for member in (0, 1)}
    assert min(against.values()) > 190
    for number, (learner, member) in enumerate(drawn[:50]):
        seats = [pool.assign(agent, 3, number) for agent in ("left_0", "right_0")]
        assert seats.count("shared") == (1 if learner else 2)
        assert not learner or f"shared-past-{member}" in seats


def test_who_is_not_trained_never_plays_against_the_pool_alone(model: Path, tmp_path: Path) -> None:
    pool = build(settings(model, tmp_path, policies="own", frozen=("right_0",))).pool
    assert pool is not None
    assert {pool.drawn(3, episode)[0] for episode in range(200)} == {"", "left_0"}
    assert {pool.assign("left_0", 3, episode) for episode in range(200)} == {"left_0"}


def test_a_return_against_the_pool_is_that_of_the_one_who_learns(model: Path, tmp_path: Path) -> None:
    pool = build(settings(model, tmp_path)).pool
    assert pool is not None
    played = episode([["a"], ["b"]])
    for t, policy, reward in zip(played.transitions, ("shared", "shared-past-0"), (1.0, -1.0), strict=True):
        t.turn.reward = reward
        put(t, policy=policy, trainable=policy == "shared")
    assert pool.results([played, episode([["a"], ["b"]])]) == {"pool/return": 2.0, "pool/episodes": 1.0}


def test_the_past_plays_and_is_not_trained_and_the_oldest_leaves(model: Path, tmp_path: Path) -> None:
    trainer, run = runs.train(settings(model, tmp_path, iterations=3))
    state = trainer.policies.state_dict()

    def of(policy: str) -> dict[str, Any]:
        return {key.partition("/")[2]: value for key, value in state.items() if key.startswith(f"{policy}/")}

    now, newest, older = of("shared"), of("shared-past-1"), of("shared-past-0")
    assert all(bool((now[key] == newest[key]).all()) for key in now)  # taken after iteration 3, member 3 % 2
    assert any(bool((now[key] != older[key]).any()) for key in now)  # after iteration 2
    last = run.metrics()[-1]
    assert 0 < last["pool/episodes"] < 12
    assert "policy/shared-past-0/loss" not in last and "policy/shared/loss" in last
    (recorded,) = [run.episodes("train", iteration) for iteration in run.recorded("train")][-1:]
    owners = {turn.extras["policy"] for episode in recorded for turn in episode.turns if turn.extras}
    assert owners <= {"shared", "shared-past-0", "shared-past-1"} and "shared" in owners


def test_a_run_with_a_pool_resumes_to_the_same_numbers(model: Path, tmp_path: Path) -> None:
    whole = runs.train(settings(model, tmp_path / "whole", iterations=4))[1]
    half = runs.train(settings(model, tmp_path / "half", iterations=2))[1]
    trainer = Trainer(build(settings(model, tmp_path / "half", iterations=4)))
    trainer.resume(half)
    with runs.quiet_display(4) as display:
        trainer.train(half, display)
    assert runs.timeless(half)[-1] == runs.timeless(whole)[-1]


def test_settings_that_cannot_work(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pool_share"):
        settings(model, tmp_path, pool_share=1.5)
    with pytest.raises(ConfigError, match="full_finetune"):
        settings(model, tmp_path, full_finetune=True)


def test_elo_of_two_is_the_logit_of_the_score_and_of_three_it_is_consistent() -> None:
    rated = selfplay.elo({("a", "b"): (75.0, 99)}, "b")
    assert rated["b"] == 0.0
    assert rated["a"] == pytest.approx(400 * math.log10(75.5 / 24.5), abs=1e-6)
    # Games in exact proportion to the model give the model's ratings back (n so large that half a point is nothing).
    true = {"x": 0.0, "y": 120.0, "z": -260.0}
    n = 10**7
    points = {}
    for a, b in (("x", "y"), ("y", "z"), ("x", "z")):
        points[a, b] = (n / (1 + 10 ** ((true[b] - true[a]) / 400)), n)
    for name, rating in selfplay.elo(points, "x").items():
        assert rating == pytest.approx(true[name], abs=0.01)
    assert selfplay.elo({("a", "b"): (500.0, 500)}, "b")["a"] < 1300
    with pytest.raises(ConfigError, match="'c' played no game"):
        selfplay.elo({("a", "b"): (1.0, 2)}, "c")
