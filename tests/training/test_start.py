"""A run that begins with another run's weights: what it takes over, what it is compared with, what is refused."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marft_algos
from helpers.marks import rest_in_ci
from helpers.runs import collector, make_letters, settings, timeless, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.config import settings as configs
from marft_algos.functional import kl_k3
from marft_algos.models.policy import PolicySet
from marft_algos.runs import checkpoint, start
from marft_algos.runs.folder import RunFolder
from marft_algos.training.trainer import Trainer
from marft_envs import AgentSpec, Chain, ConfigError, FlexEnv

POLICIES = ("planner_0", "solver_0")


@pytest.fixture(scope="module", params=rest_in_ci([False, True]), ids=["lora", "full"])
def warm(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose best checkpoint is not its last."""
    top = tmp_path_factory.mktemp("runs")
    full = settings(model, top, name="warm", keep="all", algorithm={"lr": 0.05}, full_finetune=request.param)
    return train(full)[1]


def built(warm: RunFolder, tmp_path: Path, given: str = "", **changes: Any) -> Trainer:
    """A trainer of the team that begins with the run's last weights."""
    base = start.defaults(given or str(warm.root))
    table = {"runs_dir": str(tmp_path), "eval_episodes": 10, "episodes_per_iteration": 12, "iterations": 2}
    return Trainer(marft_algos.build(configs.build({**table, "device": "cpu", **changes}, base)))


def weights(policies: PolicySet) -> dict[str, torch.Tensor]:
    return policies.state_dict()


def saved(warm: RunFolder, which: str = "last") -> dict[str, torch.Tensor]:
    trainer = Trainer(marft_algos.build(configs.load(warm.config_file)))
    checkpoint.load_policies(checkpoint.pick(warm.checkpoints, which), trainer.policies, POLICIES)
    return weights(trainer.policies)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def drift(trainer: Trainer, by: float = 0.05) -> None:
    with torch.no_grad():
        for policy in POLICIES:
            for tensor in trainer.policies.parameters(policy):
                tensor.add_(by * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))


# What is taken over ---------------------------------------------------------------------------------


def test_a_run_begins_where_another_ended_with_its_team_model_and_task(warm: RunFolder, tmp_path: Path) -> None:
    trainer = built(warm, tmp_path, algo="grpo", algorithm={"group_size": 4})
    old = configs.load(warm.config_file)
    for key in ("env", "models", "lora_r", "max_new_tokens", "full_finetune"):
        assert getattr(trainer.config, key) == getattr(old, key), key
    assert trainer.config.algorithm.lr != old.algorithm.lr, "what is learnt with is the new run's"
    assert same(weights(trainer.policies), saved(warm)) and trainer.progress.iteration == 0
    shutil.copytree(warm.root, told := tmp_path / "told")
    file = told / "config.toml"
    file.write_text(file.read_text().replace("show_budget = false", "show_budget = true"))
    assert start.defaults(str(told)).show_budget, "it is a part of prompts"


def test_any_checkpoint_may_be_named_and_which_one_it_was_is_kept(warm: RunFolder, tmp_path: Path) -> None:
    two = warm.checkpoints / "step_000002"
    for given in (two, warm.root / "2"):
        trainer = built(warm, tmp_path, str(given))
        assert trainer.config.start == str(two) and same(weights(trainer.policies), saved(warm, "2"))
    best = start.locate(f"{warm.root}/best")
    assert best.weights == checkpoint.pick(warm.checkpoints, "best").absolute()
    assert start.locate(str(warm.root)).weights.name == "step_000004"


def test_a_fresh_evaluation_equals_the_last_one_of_the_start(warm: RunFolder, tmp_path: Path) -> None:
    _, run = train(built(warm, tmp_path, name="rl", iterations=0).config)
    assert run.metrics()[0]["eval/success"] == warm.metrics()[-1]["eval/success"]
    record = json.loads((run.start / "origin.json").read_text())
    assert record["run"] == str(warm.root) and record["checkpoint"] == "step_000004"
    from marft_algos.runs import report

    assert f"begins with the weights of {warm.root}, step_000004 (marft on test/letters-v0)" in report.render(run)


def test_value_heads_are_taken_over_only_if_wanted(warm: RunFolder, tmp_path: Path) -> None:
    heads = checkpoint.load_values(checkpoint.pick(warm.checkpoints))
    for wanted in (False, True):
        trainer = built(warm, tmp_path, name=f"heads-{wanted}", start_values=wanted)
        trainer.start()
        assert trainer.critics is not None
        assert same(trainer.critics.state_dict(), heads) == wanted
    refused = built(warm, tmp_path, name="none", start_values=True, algo="grpo", algorithm={"group_size": 4})
    with pytest.raises(ConfigError, match=r"no value heads to begin with.*grpo.*--start-values"):
        refused.start()
    assert not (tmp_path / "none").exists()


def test_a_pool_of_past_policies_begins_as_the_start(model: Path, tmp_path: Path) -> None:
    run = train(settings(model, tmp_path, name="warm", algorithm={"lr": 0.05}))[1]
    policies = built(run, tmp_path, pool=2).policies
    for policy in POLICIES:
        for k in range(2):
            past, now = (policies.weights(name).tensors for name in (f"{policy}-past-{k}", policy))
            assert all(torch.equal(past[name], now[name]) for name in now)


# What it is compared with ---------------------------------------------------------------------------


def brute_force(trainer: Trainer, rows: Any, state: dict[str, torch.Tensor]) -> list[np.ndarray]:
    """Scores turns under given weights, put into the policies themselves for so long."""
    now = trainer.policies.state_dict()
    trainer.policies.load_state_dict(state)
    scored = trainer.learner.rescore(rows)
    trainer.policies.load_state_dict(now)
    return scored


def sampled(trainer: Trainer) -> Any:
    from marft_envs.core.vector import VectorEnv

    with closing(VectorEnv([trainer.parts.make_env] * 4)) as vec:
        return collector(trainer.parts, vec).collect(list(range(4)))


@pytest.mark.parametrize("way", ["start", "adapters"])
def test_the_kl_is_to_the_start_and_not_to_the_bare_model(warm: RunFolder, tmp_path: Path, way: str) -> None:
    begun = saved(warm)
    algorithm = {"kl_coef": 0.5, "minibatches": 1, "epochs": 1}
    if way == "start":
        trainer = built(warm, tmp_path, algorithm=algorithm)
    else:
        last = checkpoint.pick(warm.checkpoints) / "policies"
        plain = {"start": "", "adapters": {p: str(last / p) for p in POLICIES}}
        trainer = built(warm, tmp_path, algorithm=algorithm, **plain)
    before = sum(tensor.numel() for tensor in trainer.policies.state_dict().values())
    assert before == sum(tensor.numel() for tensor in begun.values()), "the start is in no checkpoint twice"
    drift(trainer)
    played = sampled(trainer)
    for policy in POLICIES:
        rows = [t for trajectory in played for t in trajectory.transitions if t.policy == policy]
        reference = trainer.learner.rescore(rows, reference=True)
        expected = brute_force(trainer, rows, begun)
        for a, b in zip(reference, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
    metrics = trainer.learner.update(played, 0)
    for policy in POLICIES:
        rows = [t for trajectory in played for t in trajectory.transitions if t.policy == policy]
        old = np.concatenate([t.reply.logprobs for t in rows])
        reference = np.concatenate([trainer.learner.estimates.reference_logprobs[t] for t in rows])
        divergence = float(kl_k3(torch.from_numpy(reference), torch.from_numpy(old)).mean())
        assert divergence > 1e-3
        assert metrics[f"policy/{policy}/kl_reference"] == pytest.approx(divergence, rel=0.02)


def test_without_a_start_the_reference_is_the_base_model_and_nothing_is_copied(model: Path, tmp_path: Path) -> None:
    trainer = Trainer(marft_algos.build(settings(model, tmp_path, algorithm={"kl_coef": 0.5})))
    assert not trainer.policies._starts
    begun = trainer.policies.state_dict()
    drift(trainer)
    rows = [t for trajectory in sampled(trainer) for t in trajectory.transitions if t.policy == "solver_0"]
    for a, b in zip(trainer.learner.rescore(rows, reference=True), brute_force(trainer, rows, begun), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_run_that_needs_no_reference_keeps_no_copy(warm: RunFolder, tmp_path: Path) -> None:
    assert not built(warm, tmp_path).policies._starts


@pytest.mark.ci
def test_resumed_without_the_other_run_it_ends_as_one_that_was_not(
    warm: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run keeps what it began with: its reference, and what evaluations call untrained."""
    other = RunFolder(tmp_path / "copied")
    shutil.copytree(warm.root, other.root)
    changes = {"algorithm": {"kl_coef": 0.1, "lr": 0.01}, "iterations": 2, "eval_every": 1}
    whole = train(built(other, tmp_path, name="whole", **changes).config)[1]
    half = train(built(other, tmp_path, name="half", **changes | {"iterations": 1}).config)[1]
    shutil.rmtree(other.root)
    assert main(["train", "--resume", str(half.root), "--iterations", "2"]) == 0
    drop = ("metrics_bytes",)
    for a, b in zip(timeless(whole), timeless(half), strict=True):
        assert {k: v for k, v in a.items() if k not in drop} == {k: v for k, v in b.items() if k not in drop}
    assert "begins with the weights" in half.report_file.read_text()
    assert main(["eval", str(half.root), "--untrained", "--device", "cpu"]) == 0
    assert f"untrained    {whole.gain()[0]}" in capsys.readouterr().out  # type: ignore[index]
    with pytest.raises(ConfigError, match="A run that goes on has begun"):
        marft_algos.cli.training.typed_settings(["--resume", str(half.root), "--start", str(warm.root)])


# What is refused ------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_refused_before_a_model_is_loaded(
    warm: RunFolder, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    another = save_tiny(tmp_path_factory.mktemp("other"), hidden=24, layers=1)
    with pytest.raises(ConfigError, match=r"stands on the model .* here it would stand on .*--models out, or --start"):
        built(warm, tmp_path, models=str(another))
    with pytest.raises(ConfigError, match=r"whose lora_r is 2; here it is 4.*Leave --lora-r out, or --start"):
        built(warm, tmp_path, lora_r=4)
    with pytest.raises(ConfigError, match=r"whose full_finetune is"):
        built(warm, tmp_path, full_finetune=not configs.load(warm.config_file).full_finetune)
    with pytest.raises(ConfigError, match="There is no checkpoint '7'"):
        start.locate(f"{warm.root}/7")
    with pytest.raises(ConfigError, match="is no run"):
        start.locate(str(tmp_path / "nothing"))
    shutil.copytree(checkpoint.pick(warm.checkpoints), tmp_path / "alone/step/here")
    with pytest.raises(ConfigError, match=r"belongs to no run.*--adapters POLICY="):
        start.locate(str(tmp_path / "alone/step/here"))


def team_of(*names: str) -> FlexEnv:
    made = make_letters()
    return FlexEnv([AgentSpec(name, name[:-2], "Speak.") for name in names], made.unwrapped.task, Chain())


def test_a_team_with_other_agents_is_told_what_to_type(warm: RunFolder, tmp_path: Path) -> None:
    larger = ("planner_0", "critic_0", "solver_0")
    config = built(warm, tmp_path).config
    wanted = (
        r"has no policy 'critic_0'; it has planner_0, solver_0.*--policies planner_0=planner_0 critic_0=planner_0"
        r" solver_0=solver_0.*--adapters planner_0=\S+/policies/planner_0 solver_0=\S+ instead of --start"
    )
    with pytest.raises(ConfigError, match=wanted):
        marft_algos.build(config, env=team_of(*larger))
    mapped = configs.build(
        {"policies": {"planner_0": "planner_0", "critic_0": "planner_0", "solver_0": "solver_0"}}, config
    )
    parts = marft_algos.build(mapped, env=team_of(*larger))
    assert same(weights(parts.policies), saved(warm))
    fewer = marft_algos.build(config, env=team_of("solver_0"))
    assert same(weights(fewer.policies), {k: v for k, v in saved(warm).items() if k.startswith("solver_0/")})


@pytest.mark.ci
def test_one_command_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pipeline in two lines: the second names neither environment nor model."""
    small = ["--eval-episodes", "40", "--runs-dir", str(tmp_path)]
    assert (
        main(["sft", "--preset", "quickstart", "--env", "relay-v0", *small, "--iterations", "2", "--name", "warm"]) == 0
    )
    warm = RunFolder.open(tmp_path / "warm")
    capsys.readouterr()
    few = ["--episodes-per-iteration", "16", "--group-size", "4"]
    assert main(["train", "grpo", "--start", str(warm.root), *small, *few, "--iterations", "1", "--name", "rl"]) == 0
    shown = capsys.readouterr().out
    assert f"start:   {warm.root}, step_000002 (sft on relay-v0): planner_0, solver_0" in shown
    rl = RunFolder.open(tmp_path / "rl")
    assert rl.metrics()[0]["eval/success"] == warm.metrics()[-1]["eval/success"] > 0.5
    config = configs.load(rl.config_file)
    assert (config.env, config.models, config.preset) == ("relay-v0", "embedded", "quickstart")
    assert config.algorithm.lr == 1e-3, "the preset's, not imitation's"
    file = tmp_path / "again.toml"
    file.write_text(f'start = "{warm.root}"\niterations = 0\n')
    assert main(["train", "--config", str(file), *small, "--name", "file"]) == 0
    assert RunFolder.open(tmp_path / "file").metrics()[0]["eval/success"] == warm.metrics()[-1]["eval/success"]
    run = marft_algos.train(start=str(warm.root), iterations=0, eval_episodes=40, runs_dir=str(tmp_path), name="python")
    assert run.metrics()[0]["eval/success"] == warm.metrics()[-1]["eval/success"]
    assert main(["train", "--start", str(warm.root), "--lora-r", "4", *small, "--dry-run"]) == 1
    assert "whose lora_r is 8; here it is 4" in capsys.readouterr().err
