"""Runs that would train nobody, and weights that have blown up: said at once, and never written."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.runs import quiet_display, settings, train
from marft_algos.cli import main
from marft_algos.models import bf16
from marft_algos.models.finite_weights import NotFiniteError
from marft_algos.runs import checkpoint
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs.errors import ConfigError, MarftError


@pytest.mark.parametrize("changes", [
    {"frozen": ["planner_0", "solver_0"]}, {"algorithm": {"lr": 0.0}},
    {"frozen": ["planner_0"], "algorithm": {"lr": {"solver_0": 0.0}}}, {"policies": "shared", "frozen": ["shared"]},
], ids=["frozen", "lr 0", "frozen and lr 0", "shared"])  # fmt: skip
def test_a_run_that_would_train_nobody_is_refused(changes: dict[str, Any], model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Every policy .*nothing would be trained.*--iterations 0"):
        Trainer(build(settings(model, tmp_path / "runs", **changes))).start()
    assert not (tmp_path / "runs").exists()


def test_a_frozen_team_can_be_scored(model: Path, tmp_path: Path) -> None:
    _, run = train(settings(model, tmp_path, frozen=["planner_0", "solver_0"], iterations=0))
    (line,) = run.metrics()
    assert line["eval/n"] == 10


def test_a_run_that_only_warms_up_its_critic_says_so(model: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="value_warmup is 4 and iterations 4: only value heads are trained"):
        Trainer(build(settings(model, tmp_path, algorithm={"value_warmup": 4})))


def test_a_run_in_bf16_whose_ratio_would_hold_its_rounding_says_what_to_type(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bf16, "bf16_cost", lambda: 0.5)  # on a CPU without bf16 there is another warning
    with pytest.warns(UserWarning, match=r"dtype is bf16 .*--old-logprobs learner --ratio-tolerance 0\.1 --tis-cap 2"):
        Trainer(build(settings(model, tmp_path, dtype="bf16")))
    learner = {"old_logprobs": "learner", "ratio_tolerance": 0.1, "tis_cap": 2.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(build(settings(model, tmp_path, dtype="bf16", algorithm=learner)))


def blown_up(trainer: Trainer, where: str, at: int) -> None:
    """After the update of this iteration something is not finite any more."""
    update = trainer.learner.update

    def broken(trajectories: Any, iteration: int) -> dict[str, float]:
        numbers = update(trajectories, iteration)
        if iteration == at:
            owner: Any = trainer.critics if where == "critic" else trainer.policies
            with torch.no_grad():
                owner.parameters("solver_0")[0].view(-1)[0] = math.nan if where == "critic" else math.inf
        return numbers

    trainer.learner.update = broken  # type: ignore[method-assign]


@pytest.mark.parametrize(("where", "message"), rest_in_ci([
    ("adapter", "The weights of policy 'solver_0'"), ("full", "The weights of policy 'solver_0'"),
    ("critic", "Value heads"),
]))  # fmt: skip
def test_weights_that_have_blown_up_are_not_saved(where: str, message: str, model: Path, tmp_path: Path) -> None:
    made = settings(model, tmp_path, name="run", save_every=1, eval_every=0, full_finetune=where == "full", keep="all")
    trainer = Trainer(build(made))
    run = trainer.start()
    blown_up(trainer, where, at=1)
    told = rf"{message}.* hold infinity or NaN.*--resume RUN --lr"
    with pytest.raises(NotFiniteError, match=told) as error, quiet_display() as display:
        trainer.train(run, display)
    assert isinstance(error.value, MarftError)
    assert checkpoint.steps(run.checkpoints) == [0, 1], "the good ones are still there, and no half of a bad one"
    again = Trainer(build(made))
    again.resume(RunFolder.open(run.root))
    assert again.progress.iteration == 1
    assert all(tensor.isfinite().all() for tensor in again.policies.state_dict().values())
    with quiet_display() as display:
        again.train(run, display)
    assert checkpoint.steps(run.checkpoints)[-1] == 4


def test_engines_get_no_weights_that_have_blown_up(model: Path, tmp_path: Path) -> None:
    """Servers load adapters from folders, too."""
    trainer = Trainer(build(settings(model, tmp_path)))
    with torch.no_grad():
        trainer.policies.parameters("solver_0")[0].view(-1)[0] = math.inf
    with pytest.raises(NotFiniteError, match="1 tensors"):
        trainer.policies.save_adapter("solver_0", tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_evaluating_no_episodes_is_refused(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, run = train(settings(model, tmp_path, iterations=1, eval_every=0))
    try:
        code = main(["eval", str(run.root), "--episodes", "0"])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    assert code != 0 and "episodes is 0; expected at least 1" in " ".join(capsys.readouterr().err.split())
