"""Evaluation: intervals against closed forms, held-out panels, exchanged messages."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.runs import settings
from helpers.tiny import tiny_tokenizer
from marft_algos.engines.scripted import ScriptedEngine
from marft_algos.evaluation.environments import started
from marft_algos.evaluation.play import derangement
from marft_algos.rollout.episodes import ProblemSplit
from marft_algos.runs import intervals
from marft_algos.runs.folder import EvalRecord, compare
from marft_algos.training import environments
from marft_algos.training.policies import make_policies, player
from marft_algos.training.resolve import resolve
from marft_algos.types import GenerationRequest
from marft_envs.errors import ConfigError


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 10), (250, 500), (1, 1)])
def test_wilsons_bounds_solve_the_score_equation(k: int, n: int) -> None:
    e = intervals.wilson(k, n)
    assert 0 <= e.low <= e.mean <= e.high <= 1
    for p in (e.low, e.high):
        if 0 < p < 1:
            assert (k / n - p) ** 2 == pytest.approx(intervals.Z95**2 * p * (1 - p) / n)


def test_the_paired_interval_is_that_of_all_resamples() -> None:
    before, after = [0, 1, 0, 0, 1], [1, 1, 1, 0, 0]
    e = intervals.paired(before, after)
    difference = np.array(after) - np.array(before)
    means = sorted(np.mean(r) for r in itertools.product(difference, repeat=5))
    assert e.mean == pytest.approx(0.2) and e.n == 5
    assert e.low == pytest.approx(np.quantile(means, 0.025)) and e.high == pytest.approx(np.quantile(means, 0.975))


def test_differences_that_are_all_the_same_have_an_interval_that_admits_n() -> None:
    """24 of 24 the same before and after were +0.000 [+0.000, +0.000]."""
    for before, after, expected in (
        ([1.0] * 24, [1.0] * 24, (-0.138, 0.138)), ([0.0] * 24, [1.0] * 24, (0.862, 1.0)), ([0.5], [0.5], (-0.793, 0.793))
    ):  # fmt: skip
        e = intervals.paired(before, after)
        assert (round(e.low, 3), round(e.high, 3)) == expected
    assert np.isnan(intervals.paired([7.0] * 9, [7.0] * 9).low) and np.isnan(intervals.paired([], []).mean)


def test_pairing_is_narrower_than_two_samples_and_deterministic() -> None:
    rng = np.random.default_rng(0)
    before = (rng.random(500) < 0.5).astype(float)
    after = np.where(rng.random(500) < 0.9, before, 1.0)  # a change on few problems
    e = intervals.paired(before, after)
    assert e == intervals.paired(before, after)
    assert e.high - e.low < 0.5 * (intervals.mean(after).high - intervals.mean(after).low + 0.087)
    assert e.low < e.mean < e.high


def test_evaluations_of_different_problems_cannot_be_paired() -> None:
    with pytest.raises(ConfigError, match="not of the same problems"):
        compare([EvalRecord("a", 1.0)], [EvalRecord("b", 1.0)])


def test_a_derangement_moves_everything_once() -> None:
    for n in (2, 3, 10, 101):
        moved = derangement(n)
        assert sorted(moved) == list(range(n)) and all(i != j for i, j in enumerate(moved))


def told(request: GenerationRequest) -> str:
    """The last digit that the agent was shown."""
    return [c for c in request.messages[-1]["content"] if c.isdigit()][-1]


def test_exchanged_messages_cost_a_team_that_relies_on_them(model: Path, tmp_path: Path) -> None:
    """A perfect relay solves everything; with the planner's words from other problems the solver is misled."""
    made = settings(model, tmp_path, env="relay-v0", eval_episodes=60)
    make_env = environments.env_factory(made, {})
    env = started(made.env, make_env)
    policies = make_policies(resolve(made, env))
    engine = ScriptedEngine({"*": told}, tiny_tokenizer())
    prompts = environments.problems(made, env, env).held_out
    playing = player(made, make_env, policies.renderer, engine)
    played = playing.play(prompts)
    assert all(t.success for t in played) and len(played) == 60
    again = playing.shuffling("planner_0", played).play(prompts)
    shown = [t.transitions[0].turn.text for t in again]
    assert shown == [played[i].transitions[0].turn.text for i in derangement(60)]
    assert [t.task_id for t in again] == [t.task_id for t in played]
    # The solver repeats what it was told: right exactly where the foreign message is right by luck.
    assert [t.success for t in again] == [
        t.transitions[0].turn.text == p.transitions[0].turn.text for t, p in zip(again, played, strict=True)
    ]
    assert sum(bool(t.success) for t in again) < 30
    with pytest.raises(ConfigError, match="Did you mean 'planner_0'"):
        playing.shuffling("planer_0", played)


def rows(path: Path, n: int) -> Path:
    path.write_text("".join(json.dumps({"problem": f"{i}+{i}", "answer": str(2 * i)}) + "\n" for i in range(n)))
    return path


def problems(model: Path, tmp_path: Path, **changes: object) -> ProblemSplit:
    made = settings(model, tmp_path, env="math-dual-v0", **changes)
    return environments.problems(
        made, *(environments.make_env(made, x) for x in (made.env_kwargs, environments.eval_kwargs(made)))
    )


def test_one_file_for_training_and_evaluation_is_divided(model: Path, tmp_path: Path) -> None:
    path = rows(tmp_path / "data.jsonl", 40)
    found = problems(model, tmp_path, env_kwargs={"data": str(path)}, eval_episodes=500)
    held_out = {o["task_id"] for o in found.held_out.options}
    assert len(held_out) == 10 and found.remaining is not None
    assert held_out.isdisjoint(found.remaining) and len(found.remaining) == 30
    drawn = {o["task_id"] for i in range(20) for o in found.train(0, i, 16).options}
    assert drawn <= set(found.remaining) and len(drawn) > 25
    with pytest.raises(ConfigError, match="nothing is left to train on"):
        problems(model, tmp_path, env_kwargs={"data": str(rows(tmp_path / "one.jsonl", 1))})


def test_files_per_split_are_used_as_they_are(model: Path, tmp_path: Path) -> None:
    for split, n in (("train", 20), ("test", 12)):
        rows(tmp_path / f"{split}.jsonl", n)
    found = problems(model, tmp_path, env_kwargs={"data": str(tmp_path / "{split}.jsonl")}, eval_episodes=500)
    assert len(found.held_out) == 12 and found.remaining is None


def test_the_panel_is_the_same_for_every_run_and_without_replacement(model: Path, tmp_path: Path) -> None:
    panels = [problems(model, tmp_path, seed=s, env_kwargs={"levels": [0]}, eval_episodes=200).held_out for s in (0, 1)]
    assert panels[0] == panels[1]
    ids = [o["task_id"] for o in panels[0].options]
    assert len(set(ids)) == 200


def test_training_problems_follow_from_seed_and_iteration(model: Path, tmp_path: Path) -> None:
    found = problems(model, tmp_path, env_kwargs={"levels": [0]})
    assert found.train(0, 3, 8) == found.train(0, 3, 8)
    assert found.train(0, 3, 8) != found.train(0, 4, 8) and found.train(0, 3, 8) != found.train(1, 3, 8)
