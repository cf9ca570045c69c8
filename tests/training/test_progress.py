"""A task is told what metrics that it follows came to in the iteration before: recorded, resumed, the same on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_runs_of_ranks import on

import marft_envs
from examples.systems import cpmobius
from helpers.runs import quiet_display, settings, timeless, train
from helpers.teams import episode
from marft_algos.rollout.curriculum import progressed, tell
from marft_algos.rollout.episodes import Prompts
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs import AgentSpec, Chain, FlexEnv, Outcome, TurnRecord

TEAM = (AgentSpec("solver_0", "solver"), AgentSpec("coach_0", "coach"))


class Following:
    """Pays the coach for how much longer replies are than in the last iteration of the same kind; kinds are drawn."""

    slow = False
    task_id = "x"
    followed = ("length_0", "length_1")

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.kind, self.before = int(rng.integers(2)), options.get("progress")

    def observe(self, agent: str) -> str:
        return f"kind {self.kind}"

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        return Outcome()

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        name, length = f"length_{self.kind}", float(len(turns[0].text))
        change = length - (self.before or {}).get(name, length)
        return Outcome(agent_rewards={"solver_0": length, "coach_0": change}, metrics={name: length}, terminated=True)

    def sample_actions(self, agent: str) -> tuple[str, ...]:
        return ("a", "bcd")


def make(dependency: Any = None, **kwargs: Any) -> FlexEnv:
    return FlexEnv(TEAM, Following(), dependency or Chain(), **kwargs)


marft_envs.register("test/following-v0", make, summary="a task that follows metrics")
following = partial(
    settings, env="test/following-v0", algo="ippo", max_new_tokens=4, record_episodes=99, record_every=1
)


def test_progress_is_the_mean_over_the_last_iteration_that_measured_it() -> None:
    played = [replace(episode([["a"]], number=i)) for i in range(4)]
    for d, metrics in zip(played, ({"x": 1.0}, {"x": 4.0, "y": 2.0}, {}, {"x": 100.0}), strict=True):
        d.episode.metrics = metrics
    played[3].episode.fault = "engine"
    after = progressed({"y": 9.0, "z": 5.0}, ("x", "y", "z"), played)
    assert after == {"x": 2.5, "y": 2.0, "z": 5.0}, "an outage measured nothing, and nobody measured z"
    assert progressed(after, (), played) == after
    told = tell(Prompts([1, 2], [{}, {"task_id": "a"}]), after)
    assert told.options == [{"progress": after}, {"task_id": "a", "progress": after}] and told.seeds == [1, 2]


@pytest.mark.parametrize("staleness", [0, 1])
def test_every_episode_is_told_what_the_iterations_before_came_to(model: Path, tmp_path: Path, staleness: int) -> None:
    _, run = train(following(model, tmp_path, iterations=3, staleness=staleness))
    expected: dict[str, float] = {}
    for iteration in (1, 2, 3):
        episodes = run.episodes("train", iteration)
        for e in episodes:
            assert e.options["progress"] == pytest.approx(expected)
            name, length = next(iter(e.metrics.items()))
            assert e.layers[-1].agent_rewards["coach_0"] == pytest.approx(length - expected.get(name, length))
        for name in Following.followed:
            if values := [e.metrics[name] for e in episodes if name in e.metrics]:
                expected[name] = float(np.mean(values))
    assert set(expected) == set(Following.followed)
    assert all("progress" not in e.options for e in run.episodes("eval", 3)), "nothing is told in evaluations"


@pytest.mark.ci
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_resumed_run_is_told_the_same(model: Path, tmp_path: Path, staleness: int) -> None:
    more = {"staleness": staleness, "save_every": 1}
    _, whole = train(following(model, tmp_path / "one", iterations=3, **more))
    _, run = train(following(model, tmp_path / "two", iterations=2, **more))
    again = Trainer(build(following(model, tmp_path / "two", iterations=3, **more)))
    again.resume(run)
    with quiet_display(3) as display:
        again.train(run, display)
    if not staleness:  # with staleness the last iterations of a shorter run were played ahead by other plans
        assert timeless(run) == timeless(whole)
    told = [[e.options["progress"] for e in r.episodes("train", 3)] for r in (run, whole)]
    assert told[0] == told[1]


@pytest.mark.ci
def test_ranks_are_told_the_same(model: Path, tmp_path: Path) -> None:
    runs = []
    for ranks in (1, 2):
        made = following(model, tmp_path / str(ranks), iterations=2, num_envs=3, chunk=4, reduction_slots=4)
        runs.append(on(ranks, made)[2])
    files = [(run.root / "episodes" / "train-000002.jsonl").read_bytes() for run in runs]
    assert files[0] == files[1] and timeless(runs[0]) == timeless(runs[1])


def test_a_coach_is_paid_for_the_change_since_its_level_was_last_chosen() -> None:
    env = cpmobius.make()
    paid = []
    for progress in ({}, {"solved_2": 0.25}, {"solved_0": 0.25}, {"solved_2": 1.0}):
        env.reset(seed=0, options={"progress": progress})
        env.step("2")
        while not env.done:
            env.step(env.task.expert(env.agent_selection) if env.agent_selection != "player_3" else "")
        assert env.episode.metrics["solved_2"] == 0.75
        paid.append(env.episode.layers[-1].agent_rewards["coach_0"])
    assert paid == [0.0, 0.5, 0.0, -0.25]
