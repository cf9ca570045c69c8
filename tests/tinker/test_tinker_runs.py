"""A run whose weights are on a Tinker server, from its first command to its last."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import marft_algos
from helpers.runs import quiet_display, settings, train
from helpers.tinker_pairs import pair
from helpers.tinker_server import ALPHA, LAYERS, TinkerServer
from marft_algos.cli import main
from marft_algos.config.settings import TrainConfig
from marft_algos.extras.tinker.policies import RemoteTeam
from marft_algos.models.policy import PolicySet
from marft_algos.models.saved import LoraSettings
from marft_algos.runs.folder import RunFolder
from marft_algos.training.trainer import Trainer


def configured(server: TinkerServer, tmp_path: Path, **changes: Any) -> TrainConfig:
    shape: dict[str, Any] = {"algo": "grpo", "episodes_per_iteration": 8, "eval_episodes": 4, "iterations": 2}
    shape |= {"algorithm": {"group_size": 4, "lr": 1e-2}, "tinker": {"url": server.url, "timeout": 20}}
    return settings(Path(server.base), tmp_path, **{**shape, **changes})


def adapter(run: RunFolder, step: int, policy: str = "solver_0") -> dict[str, torch.Tensor]:
    return load_file(run.checkpoints / f"step_{step:06d}/policies/{policy}/adapter_model.safetensors")


def resumed(run: RunFolder, iterations: int) -> None:
    config = marft_algos.config.settings.load(run.config_file, trusted=True)
    trainer = Trainer(marft_algos.build(config.changed(iterations=iterations)))
    trainer.resume(run)
    with quiet_display(iterations) as display:
        trainer.train(run, display)


@pytest.mark.ci
def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(server: TinkerServer, tmp_path: Path) -> None:
    short = {"episodes_per_iteration": 4, "save_every": 1, "keep": "all", "eval_every": 2}
    _, whole = train(configured(server, tmp_path, name="whole", iterations=2, **short))
    _, first = train(configured(server, tmp_path, name="first", iterations=1, **short))
    resumed(first, 2)
    for policy in ("planner_0", "solver_0"):
        ours, theirs = adapter(first, 2, policy), adapter(whole, 2, policy)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert any(not torch.equal(adapter(first, 1, policy)[name], theirs[name]) for name in theirs)
    lines = [[line["return"] for line in run.metrics() if "return" in line] for run in (first, whole)]
    assert lines[0] == lines[1] and len(lines[0]) == 2
    record = json.loads((first.checkpoints / "step_000002/policies/solver_0/tinker.json").read_text())
    assert record["state"].startswith("tinker://") and record["version"] == 2 and record["dialect"]["loss"] == "sum"


def test_what_is_downloaded_is_a_whole_adapter_that_plays_here(server: TinkerServer, tmp_path: Path) -> None:
    server.drops_targets = True
    both = pair(server, tmp_path, algo="grpo", algorithm={"group_size": 4, "lr": 1e-2})
    both.update(0)
    folder = both.team.save_adapter("solver_0", tmp_path / "saved")
    described = json.loads((folder / "adapter_config.json").read_text())
    assert described["target_modules"] == sorted(LAYERS)
    here = PolicySet.build(server.base, {"s": "solver_0"}, lora=LoraSettings(4, ALPHA), device="cpu")
    here.load_adapter("solver_0", folder)
    ids, mask = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[False, False, True, True, True]])
    theirs = both.team.logprobs("solver_0", ids, mask)[0].detach()
    torch.testing.assert_close(here.logprobs("solver_0", ids, mask)[0].detach(), theirs, atol=1e-5, rtol=0)


@pytest.mark.ci
def test_a_server_that_gives_no_adapters_keeps_them(server: TinkerServer, tmp_path: Path) -> None:
    server.gives_adapters = False
    _, run = train(configured(server, tmp_path, iterations=1))
    folder = run.checkpoints / "step_000001/policies/solver_0"
    assert [file.name for file in folder.iterdir()] == ["tinker.json"]
    assert json.loads((folder / "tinker.json").read_text())["downloaded"] is False
    resumed(run, 2)
    assert (run.checkpoints / "step_000002").is_dir()


@pytest.mark.ci
def test_weights_that_a_server_has_lost_are_named(server: TinkerServer, tmp_path: Path) -> None:
    _, run = train(configured(server, tmp_path, iterations=1))
    server._states.clear()
    with pytest.raises(marft_algos.extras.tinker.client.TinkerError, match=r"weights/.* cannot be had again"):
        resumed(run, 2)


@pytest.mark.ci
def test_frozen_and_local_policies_stay_here(server: TinkerServer, tmp_path: Path) -> None:
    trainer, run = train(configured(server, tmp_path, iterations=1, frozen=("planner_0",)))
    assert isinstance(trainer.policies, RemoteTeam)
    assert list(trainer.policies.remote) == ["solver_0"] and trainer.policies.here == ["planner_0"]
    assert not (run.checkpoints / "step_000001/policies/planner_0/tinker.json").exists()
    both, other = train(configured(server, tmp_path, iterations=1, engines={"planner_0": "native"}, name="both"))
    assert both.policies.here == ["planner_0"] and both.learner.trainable == ["planner_0", "solver_0"]
    assert (other.checkpoints / "step_000001/policies/planner_0/adapter_model.safetensors").is_file()
    line = other.metrics()[-1]
    assert line["policy/planner_0/steps"] and line["policy/solver_0/steps"]


@pytest.mark.ci
def test_the_commands(
    server: TinkerServer, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's own commands, with short runs of a tiny model."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-mine")
    server.key = "tml-mine"
    page = (Path(__file__).parents[2] / "docs/tinker.md").read_text(encoding="utf-8")
    block = next(part for part in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if "--tinker" in part)
    commands = block.replace("\\\n", "").replace("https://SERVER", server.url).replace("Qwen/Qwen3-8B", server.base)
    short = "--iterations 1 --episodes-per-iteration 4 --eval-episodes 4 --max-new-tokens 4 --group-size 2 --lora-r 2"
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["marft", "train"] and "--resume" not in words:
            words += [*short.split(), "--env", "relay-v0", "--device", "cpu"]
        if words[:1] == ["marft"]:
            assert main(words[1:]) == 0, line
    assert (here / "runs/mine/checkpoints/step_000002/policies/solver_0/adapter_model.safetensors").is_file()
    said = capsys.readouterr().err
    assert "lora_alpha is 32" in said and "key:     TINKER_API_KEY is sent to" in said
