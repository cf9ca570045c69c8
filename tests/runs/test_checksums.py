"""A damaged checkpoint is noticed, whichever bit of it has flipped, wherever it is read."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.runs import quiet_display, settings, timeless, train
from marft_algos.cli.app import main
from marft_algos.ranks.group import Alone
from marft_algos.runs import checkpoint, paths
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer, is_over
from marft_envs import artefacts
from marft_envs.artefacts import DamagedError
from marft_envs.errors import ConfigError


@pytest.fixture(scope="module")
def done(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two iterations that keeps all of its checkpoints."""
    return train(settings(model, tmp_path_factory.mktemp("done"), name="run", iterations=2, keep="all", save_every=1))[
        1
    ]


@pytest.fixture
def run(done: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy that a test may damage."""
    shutil.copytree(done.root, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def flip(file: Path, bit: int | None = None) -> None:
    """Flips one bit, in the middle of the file by default."""
    content = bytearray(file.read_bytes())
    bit = 4 * len(content) if bit is None else bit
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def read(path: Path, trainer: Trainer) -> None:
    """Reads all that a checkpoint has, as those who resume do."""
    checkpoint.read_progress(path)
    checkpoint.load_policies(path, trainer.policies, ["planner_0", "solver_0"])
    checkpoint.load_state(path)


def test_one_flipped_bit_of_any_file_is_noticed(run: RunFolder, model: Path, tmp_path: Path) -> None:
    trainer, path = Trainer(build(settings(model, tmp_path))), checkpoint.pick(run.checkpoints)
    read(path, trainer)
    names, rng = files(path), random.Random(0)
    assert {"SHA256SUMS", "state.pt", "state.json", "policies/solver_0/adapter_model.safetensors"} <= set(names)
    for name in names:
        whole = (path / name).read_bytes()
        for bit in (0, 8 * len(whole) - 1, rng.randrange(8 * len(whole)), rng.randrange(8 * len(whole))):
            flip(path / name, bit)
            with pytest.raises(DamagedError, match="damaged"):
                read(path, trainer)
            with pytest.raises(DamagedError):
                artefacts.check(path)
            (path / name).write_bytes(whole)
        if name != "SHA256SUMS":
            flip(path / name)
            with pytest.raises(DamagedError, match=name):
                read(path, trainer)
            (path / name).unlink()
            with pytest.raises(ConfigError):
                read(path, trainer)
            (path / name).write_bytes(whole)
    read(path, trainer)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["policies/solver_0/adapter_model.safetensors", "state.pt"])
def test_numbers_that_are_none_are_refused_though_they_were_saved_so(
    name: str, bad: float, run: RunFolder, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right checksums, wrong numbers: a run that is evaluated, resumed or begun with says whose, and does not play."""
    path = checkpoint.pick(run.checkpoints)
    if name == "state.pt":
        state = torch.load(path / name, weights_only=True)
        key = sorted(state["critics"])[0]
        state["critics"][key].view(-1)[0] = bad
        torch.save(state, path / name)
    else:
        tensors = load_file(path / name)
        key = sorted(tensors)[0]
        tensors[key][0, 0] = bad
        save_file(tensors, path / name)
    artefacts.write(path)
    commands = [["train", "--resume", str(run.root), "--iterations", "3"]]
    commands += [["eval", str(run.root), "--episodes", "2"], ["export", str(run.root), "--out", str(tmp_path / "x")]]
    commands += [["train", "--start", str(run.root), "--iterations", "1", "--runs-dir", str(tmp_path), "--name", "n"]]
    for words in commands[: 1 if name == "state.pt" else 4]:
        assert main(words) == 1, words
        said = " ".join(capsys.readouterr().err.split())
        assert "infinity or NaN" in said and str(path / name) in said and key in said, words


def test_damage_in_one_of_several_parts_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    artefacts.write(tmp_path)
    (tmp_path / "a").write_text("c")
    (tmp_path / ".nfs").mkdir()
    (tmp_path / ".nfs" / "of the system").touch()
    assert artefacts.damage(tmp_path).endswith("not what was saved there: a")
    assert artefacts.damage(tmp_path, "a", "b").endswith("not what was saved there: a")
    assert artefacts.damage(tmp_path, "b") == ""


def test_the_checksums_are_those_of_sha256sum(done: RunFolder) -> None:
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=checkpoint.pick(done.checkpoints), check=True)


def test_a_resumed_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    done: RunFolder, run: RunFolder, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = settings(model, tmp_path, name="run", iterations=3, keep="all", save_every=1)
    ends: list[Any] = []
    for damaged in ("", "policies/planner_0/adapter_model.safetensors"):
        folder = RunFolder(tmp_path / f"r{len(ends)}")
        shutil.copytree(run.root, folder.root)
        if damaged:
            flip(folder.checkpoints / "step_000002" / damaged)
        trainer = Trainer(build(made))
        trainer.resume(folder)
        assert trainer.progress.iteration == (1 if damaged else 2)
        said = capsys.readouterr().err
        assert (damaged in said and "step_000001" in said) if damaged else not said
        with quiet_display() as display:
            trainer.train(folder, display)
        last = checkpoint.pick(folder.checkpoints)
        ends.append(
            (timeless(folder), {name: (last / name).read_bytes() for name in files(last) if "policies" in name})
        )
        assert checkpoint.steps(folder.checkpoints) == [0, 1, 2, 3]
        assert (folder.checkpoints / "damaged-step_000002").is_dir() is bool(damaged)
    assert ends[0] == ends[1]


def test_nothing_is_renamed_where_no_checkpoint_is_whole(run: RunFolder, model: Path, tmp_path: Path) -> None:
    for step in checkpoint.steps(run.checkpoints):
        flip(checkpoint.step_dir(run.checkpoints, step) / "state.pt")
    trainer = Trainer(build(settings(model, tmp_path)))
    with pytest.raises(DamagedError, match=r"step_000002 is damaged: .*: state\.pt"):
        trainer.resume(run)
    assert checkpoint.steps(run.checkpoints) == [0, 1, 2] and len(run.metrics()) == 3


def test_a_checkpoint_without_checksums_says_how_to_make_them(run: RunFolder) -> None:
    path = checkpoint.pick(run.checkpoints)
    saved = (path / "SHA256SUMS").read_text()
    (path / "SHA256SUMS").unlink()
    with pytest.raises(DamagedError, match="has no SHA256SUMS") as error:
        checkpoint.read_progress(path)
    subprocess.run(str(error.value).rpartition(": ")[2], shell=True, check=True)
    assert sorted((path / "SHA256SUMS").read_text().splitlines()) == sorted(saved.splitlines())
    artefacts.check(path)


def test_a_finished_run_with_a_damaged_end_is_not_done(run: RunFolder) -> None:
    config = paths.of_run(run)
    assert is_over(run, config, Alone())
    flip(run.checkpoints / "step_000002/policies/solver_0/adapter_model.safetensors")
    assert not is_over(run, config, Alone())


@pytest.mark.parametrize("words", [["eval"], ["export"], ["train", "--start"]])
def test_commands_name_the_damaged_file(words: list[str], run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run.checkpoints / "step_000002/policies/solver_0/adapter_model.safetensors")
    assert main([*words, str(run.root)]) == 1
    said = capsys.readouterr().err
    assert "step_000002 is damaged: " in said and ": policies/solver_0/adapter_model.safetensors. Put back" in said


def test_weights_of_another_run_are_compared_where_a_run_begins_with_them(
    run: RunFolder, model: Path, tmp_path: Path
) -> None:
    """As copied into its own folder, too, and as one policy's adapter."""
    begun = train(settings(model, tmp_path, name="second", iterations=0, start=str(run.root)))[1]
    flip(begun.start / "policies/solver_0/adapter_model.safetensors")
    with pytest.raises(DamagedError, match="solver_0"):
        build(settings(model, tmp_path, start=str(begun.start)))
    adapter = run.checkpoints / "step_000002/policies/solver_0"
    flip(adapter / "adapter_model.safetensors")
    with pytest.raises(DamagedError, match="solver_0"):
        build(settings(model, tmp_path, adapters={"solver_0": str(adapter)}))
