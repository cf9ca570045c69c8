"""Starts drawn by how learnable they are: weights by brute force, and runs that end with the same bits however."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import marft_envs
from helpers.marks import rest_in_ci
from helpers.runs import Letters, make_letters, quiet_display, settings, timeless, train
from helpers.teams import episode, put
from helpers.thread_ranks import together
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.group import RankGroup
from marft_algos.rollout import curriculum
from marft_algos.rollout.curriculum import CANDIDATES, FLOOR, KEPT, Curriculum, success_rate
from marft_algos.rollout.episodes import ProblemSplit, Prompts
from marft_algos.runs import checkpoint
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_algos.types import Trajectory
from marft_envs.core.types import Outcome, TurnRecord
from marft_envs.errors import ConfigError

LEARNABLE = "learnability"


class Three(Letters):
    """Kinds of starts that always succeed, never do, or do by the reply; ten starts of each."""

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.task_id = f"{('always', 'never', 'half')[rng.integers(3)]}/{rng.integers(10)}"

    def on_round(self, turns: Sequence[TurnRecord]) -> Outcome:
        half = sum(map(ord, turns[-1].text)) % 2 == 0
        success = {"always": True, "never": False, "half": half}[self.kind_of(self.task_id)]
        return Outcome(team_reward=float(success), success=success, terminated=True)

    def kind_of(self, task_id: str) -> str:
        return task_id.partition("/")[0]


def make_three() -> marft_envs.FlexEnv:
    env = make_letters()
    return marft_envs.FlexEnv(env.team, Three(), marft_envs.Chain())


marft_envs.register("test/three-v0", make_three)


def short(model: Path, runs_dir: Path, **changes: Any) -> TrainConfig:
    table = {
        "env": "test/three-v0",
        "curriculum": LEARNABLE,
        "chunk": 4,
        "reduction_slots": 4,
        "save_every": 1,
        "keep": "all",
    }
    return settings(model, runs_dir, **{**table, "record_every": 1, "record_episodes": 12, **changes})


def kinds_of(run: RunFolder, iteration: int) -> list[str]:
    return [e.task_id.partition("/")[0] for e in run.episodes("train", iteration)]


def same(ours: Trainer, theirs: Trainer) -> bool:
    one, other = ours.policies.state_dict(), theirs.policies.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in other)


def played(kind: str, success: bool | None, score: float = 0.0, fault: str = "") -> Trajectory:
    made = episode([["a"]], rewards=[score])
    put(made.episode, task_id=f"{kind}/7", fault=fault, success=success)  # type: ignore[arg-type]
    return made


def test_a_success_rate_is_a_beta_mean_of_faded_outcomes() -> None:
    made = Curriculum(cast(ProblemSplit, None), make_three, Three().kind_of)
    outcomes = np.random.default_rng(0).integers(2, size=(5, 4))
    evidence: curriculum.Evidence = {}
    for row in outcomes:
        evidence = made.after(evidence, [played("x", bool(success)) for success in row])
    fading = KEPT ** np.arange(4, -1, -1)[:, None]
    expected = ((fading * outcomes).sum() + 1) / ((fading * np.ones_like(outcomes)).sum() + 2)
    assert success_rate(evidence, "x") == pytest.approx(expected) and success_rate(evidence, "new") == 0.5
    assert made.rate(evidence, [played("x", True), played("new", True)]) == pytest.approx((expected + 0.5) / 2)
    graded = made.after({}, [played("x", None, 0.25), played("x", None, -3.0), played("x", None, 9.0)])
    assert graded["x"] == pytest.approx((1.25, 3.0)), "a score, where nobody says what success is"
    assert made.after({}, [played("x", None, 1.0, "engine")]) == {}, "an outage says nothing"
    for _ in range(400):
        evidence = made.after(evidence, [])
    assert evidence == {}, "nothing old is kept for ever"


def test_one_of_the_candidates_is_drawn_by_p_times_1_minus_p() -> None:
    """Shares of two kinds, against the sum over how many of the candidates are of which."""

    class Split:
        def train(self, seed: int, iteration: int, n: int, refill: int) -> Prompts:
            drawn = np.random.default_rng((seed, iteration)).random(n) < 0.3
            return Prompts(list(range(n)), [{"task_id": "rare/1" if x else "often/1"} for x in drawn])

    evidence = {"rare": (3.0, 8.0), "often": (9.0, 9.0)}
    rates = 4 / 10, 10 / 11
    w, v = (p * (1 - p) + FLOOR for p in rates)
    share = sum(
        comb(CANDIDATES, k) * 0.3**k * 0.7 ** (CANDIDATES - k) * k * w / (k * w + (CANDIDATES - k) * v)
        for k in range(CANDIDATES + 1)
    )
    made = Curriculum(cast(ProblemSplit, Split()), make_three, Three().kind_of)
    drawn = made.draw(evidence, 1, 0, 4000)
    assert np.mean([o["task_id"] == "rare/1" for o in drawn.options]) == pytest.approx(share, abs=0.02)
    assert [seed // CANDIDATES for seed in drawn.seeds] == list(range(4000)), "one of each eight"
    assert drawn == made.draw(evidence, 1, 0, 4000) != made.draw(evidence, 2, 0, 4000)


def test_a_kind_is_that_of_the_start_that_is_played(model: Path, tmp_path: Path) -> None:
    parts = build(settings(model, tmp_path, env="test/three-v0", curriculum=LEARNABLE))
    assert parts.curriculum is not None
    solved = {"always": (500.0, 500.0), "never": (0.0, 500.0), "half": (250.0, 500.0)}
    prompts, env = parts.curriculum.draw(solved, 0, 0, 60), make_three()
    kinds = Counter[str]()
    for seed, options in zip(prompts.seeds, prompts.options, strict=True):
        env.reset(seed=seed, options=options)
        kinds[env.task.task_id.partition("/")[0]] += 1
    assert kinds["half"] > 40


def test_problems_that_are_made_have_the_kind_of_their_cell() -> None:
    task: Any = marft_envs.make("math-dual-v0").task
    task.reset(np.random.default_rng(0), {})
    kind, _, number = task.task_id.rpartition("/")
    assert number.isdecimal() and task.kind_of(task.task_id) == kind
    assert task.kind_of("gsm8k/train/17") == "gsm8k/train/17"
    assert task.kind_of("depot/5/165") == "depot/5"


@pytest.mark.parametrize("algo", rest_in_ci(["rft", "grpo"]))
def test_what_can_be_learnt_is_drawn_more_and_more(algo: str, model: Path, tmp_path: Path) -> None:
    """Of rft, whose groups are kept where they succeed: its share among these, in which the kind is half as often."""
    group = {"group_size": 4} if algo == "grpo" else {"epochs": 1, "minibatches": 1}
    size = {"iterations": 8, "episodes_per_iteration": 24, "record_episodes": 24, "eval_every": 0, "save_every": 0}
    _, run = train(short(model, tmp_path, algo=algo, algorithm={"lr": 1e-6, **group}, eval_episodes=1, **size))
    parts = [[kind for i in part for kind in kinds_of(run, i)] for part in ((1, 2), (6, 7, 8))]
    shares = [part.count("half") / len(part) for part in parts]
    assert shares[1] > max(0.5, shares[0])
    rates = [line["curriculum/rate"] for line in run.metrics()[1:]]
    assert rates[0] == 0.5 and all(0.0 < rate < 1.0 for rate in rates)


@pytest.mark.ci
def test_uniform_starts_are_those_of_the_problems(model: Path, tmp_path: Path) -> None:
    trainer, run = train(short(model, tmp_path, curriculum="uniform"))
    for iteration in range(4):
        seeds = trainer.parts.problems.train(0, iteration, 12).seeds
        assert [e.seed for e in run.episodes("train", iteration + 1)] == seeds
    assert trainer.parts.curriculum is None and "curriculum/rate" not in run.metrics()[-1]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ranks", "changes"), [(2, {}), (4, {"algo": "dapo", "algorithm": {"group_size": 3, "refills": 2}})], ids=str
)
def test_any_number_of_ranks_draws_the_same_starts(
    ranks: int, changes: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    alone, run = train(short(model, tmp_path / "1", **changes))
    lock = threading.Lock()

    def one(group: RankGroup) -> tuple[Trainer, RunFolder]:
        with lock:  # transformers loads no two models at once in one process
            trainer = Trainer(build(short(model, tmp_path / "2", **changes)), group)
        folder = trainer.start()
        with quiet_display() as display:
            trainer.train(folder, display)
        return trainer, folder

    done = together(ranks, one)
    assert timeless(done[0][1]) == timeless(run) and all(same(trainer, alone) for trainer, _ in done)
    assert kinds_of(done[0][1], 4) == kinds_of(run, 4)


@pytest.mark.ci
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_run_that_is_gone_on_with_draws_what_the_unbroken_one_did(
    staleness: int, model: Path, tmp_path: Path
) -> None:
    algorithm = {"old_logprobs": "learner", "tis_cap": 2.0}
    made = {"staleness": staleness, "iterations": 4 if staleness else 3, "algorithm": algorithm}
    whole, run = train(short(model, tmp_path, name="whole", **made))
    if not staleness:
        uniform, _ = train(short(model, tmp_path, name="uniform", **{**made, "curriculum": "uniform"}))
        assert not same(whole, uniform)
    for step in (2,) if staleness else (1,):
        folder = tmp_path / f"part{step}"
        shutil.copytree(run.root, folder)
        for later in checkpoint.steps(folder / "checkpoints"):
            if later > step:
                shutil.rmtree(checkpoint.step_dir(folder / "checkpoints", later))
        rest = Trainer(build(short(model, tmp_path, name=folder.name, **made)))
        rest.resume(RunFolder(folder))
        with quiet_display() as display:
            rest.train(RunFolder(folder), display)
        assert timeless(RunFolder(folder)) == timeless(run) and same(rest, whole)
        last = made["iterations"]
        assert kinds_of(RunFolder(folder), last) == kinds_of(run, last)


def test_what_no_curriculum_can_be_of_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"test/letters-v0 does not say which.*--curriculum.*kind_of\(task_id\)"):
        build(short(model, tmp_path, env="test/letters-v0"))
    with pytest.raises(ConfigError, match=r"sft learns from demonstrations.*Leave out --curriculum learnability"):
        build(short(model, tmp_path, env="relay-v0", algo="sft", algorithm={"epochs": 1, "minibatches": 1}))
