"""Resume: a run that is killed, at any moment, ends as one that was not. Disks that fill up, folders that cannot be written."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.runs import quiet_display, settings, timeless, train
from marft_algos.config.settings import TrainConfig
from marft_algos.runs import checkpoint, disk
from marft_algos.runs.disk import RunError
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.progress import RunProgress
from marft_algos.training.parts import build
from marft_algos.training.session import Interrupted
from marft_algos.training.trainer import Trainer
from marft_envs import artefacts
from marft_envs.errors import ConfigError

CHILDREN = multiprocessing.get_context("forkserver")
"""Children inherit the imports of one clean process: a killed attempt costs a tenth of a second instead of several."""
CHILDREN.set_forkserver_preload(["marft_algos.training.trainer", "marft_algos.algorithms.marft"])


def attempt(made: TrainConfig, root: Path) -> None:
    """Starts the run, or goes on with it."""
    trainer = Trainer(build(made))
    if (root / "config.toml").exists():
        run = RunFolder.open(root)
        trainer.resume(run)
    else:
        run = trainer.start()
    with quiet_display() as display:
        trainer.train(run, display)


def child(made: TrainConfig, root: Path, target: Callable[..., None] = attempt) -> Any:
    process = CHILDREN.Process(target=target, args=(made, root))
    process.start()
    return process


def wait_for(condition: Callable[[], bool], process: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the run does not get on"
        if not process.is_alive():
            return
        time.sleep(0.0005)


def lines(root: Path) -> int:
    metrics = root / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def weights(root: Path) -> dict[str, Any]:
    """Everything that a run has learnt: adapters and value heads, optimisers too."""
    last = checkpoint.pick(root / "checkpoints")
    files = {str(p.relative_to(last)): p.read_bytes() for p in last.rglob("*.safetensors")}
    state = torch.load(last / "state.pt", weights_only=True)
    flat: dict[str, Any] = {}

    def walk(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}/{key}", inner)
        elif isinstance(value, torch.Tensor):
            flat[name] = value.tolist()

    walk("critics", state["critics"])
    walk("learner", state["learner"])
    assert files and any(k.startswith("critics") for k in flat)
    return files | flat


@pytest.mark.ci
def test_killed_at_five_moments_and_resumed_a_run_ends_as_one_that_was_not(model: Path, tmp_path: Path) -> None:
    """The kills fall into the first evaluation, rollouts and updates, the writing of a checkpoint, and its deletion.

    Half of the iterations have no checkpoint, so that something has to be done again.
    """
    whole, broken = (settings(model, tmp_path / kind, name="run", iterations=6) for kind in ("whole", "broken"))
    root = Path(broken.runs_dir) / "run"
    written = root / "checkpoints"
    process = child(whole, Path(whole.runs_dir) / "run")
    process.join(60)
    assert process.exitcode == 0

    moments: list[Callable[[], bool]] = [
        lambda: (root / "config.toml").exists(),
        lambda: lines(root) >= 2,
        lambda: any(written.glob(".tmp-step_*")),
        lambda: lines(root) >= 4 and lines(root) % 2 == 0,  # one line more than the checkpoint
        lambda: lines(root) >= 5 and any(written.glob(".tmp-old-*")),
    ]
    killed = 0
    for moment in moments:
        process = child(broken, root)
        wait_for(moment, process)
        process.kill()  # SIGKILL; nothing if the run has ended by itself
        process.join(60)
        killed += process.exitcode == -signal.SIGKILL
    assert killed >= 4  # the last one may come too late to hit
    process = child(broken, root)
    process.join(60)
    assert process.exitcode == 0

    reference = RunFolder(Path(whole.runs_dir) / "run")
    assert timeless(RunFolder(root)) == timeless(reference)
    assert len(timeless(reference)) == 7 and len({line.get("return") for line in timeless(reference)}) > 3
    assert weights(root) == weights(reference.root)
    for kind in ("train", "eval"):
        names = [RunFolder(root).episodes_file(kind, i) for i in reference.recorded(kind)]
        assert names
        assert [n.read_bytes() for n in names] == [
            reference.episodes_file(kind, i).read_bytes() for i in reference.recorded(kind)
        ]


def test_metrics_and_episodes_written_after_the_checkpoint_are_forgotten(model: Path, tmp_path: Path) -> None:
    trainer, run = train(settings(model, tmp_path, iterations=2))
    before = run.metrics_file.read_bytes()
    with run.metrics_file.open("ab") as file:
        file.write(b'{"iteration": 3}\n{"half')
    run.write_episodes("train", 3, [{}])
    again = Trainer(build(trainer.config))
    again.resume(run)
    assert again.progress.iteration == 2 and again.policies.version == 2
    assert run.metrics_file.read_bytes() == before
    assert run.recorded("train") == [2]


def test_a_checkpoint_that_is_there_is_written_over_only_where_that_is_asked(model: Path, tmp_path: Path) -> None:
    trainer, run = train(settings(model, tmp_path, iterations=1))
    state = run.checkpoints / "step_000001" / "state.json"
    first = state.stat().st_ino
    trainer.state.save(run, trainer.progress)
    assert state.stat().st_ino == first
    trainer.state.save(run, trainer.progress, again=True)
    assert state.stat().st_ino != first


def test_adapters_stay_trainable_and_paths_stable_over_two_saves(model: Path, tmp_path: Path) -> None:
    _, run = train(settings(model, tmp_path, iterations=1, keep="all"))
    layout = {p.relative_to(run.checkpoints / "step_000000") for p in (run.checkpoints / "step_000000").rglob("*")}
    longer = settings(model, tmp_path, iterations=2, keep="all")
    again = Trainer(build(longer))
    again.resume(run)
    held = {id(p) for group in again.learner.optimizers["solver_0"].adam.param_groups for p in group["params"]}
    assert held and held == {id(p) for p in again.policies.parameters("solver_0")}
    before = [p.detach().clone() for p in again.policies.parameters("solver_0")]
    with quiet_display() as display:
        again.train(run, display)
    assert any(not torch.equal(a, b) for a, b in zip(before, again.policies.parameters("solver_0"), strict=True))
    for step in (1, 2):
        folder = run.checkpoints / f"step_{step:06d}"
        assert {p.relative_to(folder) for p in folder.rglob("*")} == layout


def test_keep_decides_which_checkpoints_stay(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    trainer = Trainer(build(settings(model, tmp_path)))
    for keep, best, expected in (("all", 2, [1, 2, 3]), ("best", 2, [2, 3]), ("last", 2, [3])):
        for step in (1, 2, 3):
            progress = RunProgress(iteration=step, best_iteration=best)
            checkpoint.save(folder, progress, trainer.policies, ["solver_0"], {})
        checkpoint.prune(folder, keep, best)  # type: ignore[arg-type]
        assert checkpoint.steps(folder) == expected
        assert checkpoint.pick(folder).name == "step_000003"
        assert checkpoint.pick(folder, "best").name == ("step_000002" if 2 in expected else "step_000003")
    assert not list(folder.glob(".tmp-*"))
    with pytest.raises(ConfigError, match="Expected last, best or one of"):
        checkpoint.pick(folder, "7")


def test_random_states_are_restored(model: Path, tmp_path: Path) -> None:
    import random

    import numpy as np

    trainer = Trainer(build(settings(model, tmp_path)))
    path = checkpoint.save(tmp_path / "c", RunProgress(), trainer.policies, [], {"learner": {}})
    draws = [(torch.rand(2).tolist(), random.random(), np.random.rand(2).tolist())]
    checkpoint.load_state(path)
    draws.append((torch.rand(2).tolist(), random.random(), np.random.rand(2).tolist()))
    assert draws[0] == draws[1]


def test_a_checkpoint_with_foreign_code_is_refused(model: Path, tmp_path: Path) -> None:
    _, run = train(settings(model, tmp_path, iterations=0))
    path = checkpoint.pick(run.checkpoints)
    torch.save({"learner": Path("x"), "random": {}}, path / "state.pt")
    artefacts.write(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        checkpoint.load_state(path)
    (path / "state.json").write_text(json.dumps({"format": 99}))
    artefacts.write(path)
    with pytest.raises(ConfigError, match="another format"):
        checkpoint.read_progress(path)


def fill_disk(made: TrainConfig, root: Path) -> None:
    """Goes on with a run whose files may not grow beyond a few kB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        attempt(made, root)
    except RunError as error:
        os._exit(17 if "What was saved before is intact" in str(error) else 18)


def test_a_full_disk_is_an_error_and_the_last_checkpoint_stays_whole(model: Path, tmp_path: Path) -> None:
    _, run = train(settings(model, tmp_path, name="run", iterations=2))
    before = weights(run.root)
    longer = settings(model, tmp_path, name="run", iterations=4)
    process = child(longer, run.root, fill_disk)
    process.join(60)
    assert process.exitcode == 17
    assert checkpoint.pick(run.checkpoints).name == "step_000002"
    assert weights(run.root) == before
    attempt(longer, run.root)
    assert timeless(run)[-1]["iteration"] == 4


def test_a_folder_that_cannot_be_written_is_an_error(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="Cannot write"):
        Trainer(build(settings(model, tmp_path / "file"))).start()


@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_last_checkpoint_is_written_under_the_folders_lock(
    number: signal.Signals, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python calls it, without a command that holds the lock all along: nobody else comes in between."""
    trainer = Trainer(build(settings(model, tmp_path, name="run", save_every=0, eval_every=0)))
    run = trainer.start()
    update, save, locked = trainer.learner.update, checkpoint.save, []

    def interrupted(trajectories: Any, iteration: int) -> Any:
        os.kill(os.getpid(), number)
        return update(trajectories, iteration)

    def saved(*args: Any) -> Any:
        locked.append(os.path.realpath(run.root) in disk._HELD)
        return save(*args)

    monkeypatch.setattr(trainer.learner, "update", interrupted)
    monkeypatch.setattr(checkpoint, "save", saved)
    with pytest.raises(Interrupted), quiet_display() as display:
        trainer.train(run, display)
    assert locked == [True, True], "the untrained team's, and the last"
    assert not disk._HELD


@pytest.mark.usefixtures("signals_heard")
@pytest.mark.parametrize("number", rest_in_ci([signal.SIGINT, signal.SIGTERM, signal.SIGHUP]))
def test_ctrl_c_writes_a_checkpoint(
    number: signal.Signals, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = settings(model, tmp_path, name="run", save_every=0, eval_every=0)
    trainer = Trainer(build(made))
    run = trainer.start()
    update = trainer.learner.update

    def interrupted(trajectories: Any, iteration: int) -> Any:
        if iteration == 1:
            os.kill(os.getpid(), number)  # in the middle of an update: it is finished first
        return update(trajectories, iteration)

    monkeypatch.setattr(trainer.learner, "update", interrupted)
    with pytest.raises(Interrupted), quiet_display() as display:
        trainer.train(run, display)
    assert checkpoint.read_progress(checkpoint.pick(run.checkpoints)).iteration == 2
    assert [line["iteration"] for line in run.metrics()] == [0, 1, 2]
    attempt(made, run.root)
    _, unbroken = train(settings(model, tmp_path, name="unbroken", save_every=0, eval_every=0))
    assert timeless(run) == timeless(unbroken)
    assert weights(run.root) == weights(unbroken.root)


def test_a_folder_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    step = tmp_path / "step"
    with disk.replacing(step) as aside:
        (aside / "inner").mkdir()
        (aside / "inner/weights").write_bytes(b"1")
        assert not synced
    assert sorted(synced[:-1]) == sorted(path.stat().st_ino for path in (step, step / "inner", step / "inner/weights"))
    assert synced[-1] == tmp_path.stat().st_ino, "and so is its name"
