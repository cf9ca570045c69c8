"""Network disks: what they cannot do ends no run, and what they could not write does."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import pytest

from helpers.marks import rest_in_ci
from helpers.odd_disks import OddDisk
from helpers.runs import quiet_display, settings, train
from marft_algos.cli import main
from marft_algos.runs import checkpoint, disk
from marft_algos.runs.disk import RunError
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs import artefacts


def go_on(run: RunFolder, model: Path, iterations: int) -> None:
    trainer = Trainer(build(settings(model, run.root.parent, iterations=iterations, save_every=1, keep="last")))
    trainer.resume(run)
    with quiet_display() as display:
        trainer.train(run, display)


@pytest.mark.parametrize("kind", rest_in_ci(["nfs", "cifs", "fuse"]))
def test_a_run_and_its_export_on_a_network_disk(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = OddDisk(kind, tmp_path, monkeypatch)
    odd.open = "step_000000"
    with pytest.warns(UserWarning, match="step_000000"):
        _, run = train(settings(model, tmp_path, name="run", iterations=2, save_every=1, keep="last"))
    left = {path.name for path in run.checkpoints.iterdir()} - {"step_000002"}
    assert left == {"step_000000" if kind == "cifs" else ".tmp-old-step_000000"}
    assert not artefacts.damage(run.checkpoints / "step_000002")
    odd.open = ""
    go_on(run, model, 3)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_000003"]
    out = tmp_path / "out"
    export = ["export", str(run.root), "--out", str(out)]
    with warnings.catch_warnings(action="ignore"):  # of the file system without locks
        assert main(export) == 0
        odd.open = "out"
        assert main(export) == (1 if kind == "cifs" else 0)
        odd.open = ""
        assert main(export) == 0
    assert (out / "export.json").is_file()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]


def test_what_cannot_be_deleted_twice_is_left_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = OddDisk("nfs", tmp_path, monkeypatch)
    odd.open = "a"
    for _ in range(3):
        with warnings.catch_warnings(action="ignore"), disk.replacing(tmp_path / "a") as aside:
            (aside / "weights").write_text("1")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-old-a", ".tmp-old-a-", "a"]
    odd.open = ""
    checkpoint.prune(tmp_path, "all", None)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def linked(folder: Path, elsewhere: Path) -> Path:
    """Moves a folder to another disk, and leaves a link."""
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    return elsewhere


def test_a_link_in_the_place_of_a_folder_is_replaced_and_nothing_behind_it_touched(model: Path, tmp_path: Path) -> None:
    _, run = train(settings(model, tmp_path, name="run", iterations=1, keep="last"))
    kept = linked(run.checkpoints / "step_000001", tmp_path / "kept")
    go_on(run, model, 2)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_000002"]
    assert not artefacts.damage(kept)
    out = tmp_path / "out"
    assert main(["export", str(run.root), "--out", str(out)]) == 0
    (before := linked(out, tmp_path / "export")).joinpath("mine").touch()
    assert main(["export", str(run.root), "--out", str(out)]) == 0
    assert (before / "mine").exists()
    assert not out.is_symlink()
    assert not (out / "mine").exists()
    out.rename(tmp_path / "gone")
    out.symlink_to(tmp_path / "nowhere")
    assert main(["export", str(run.root), "--out", str(out)]) == 0
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_damaged_checkpoint_makes_room_for_the_next_damaged_one(model: Path, tmp_path: Path) -> None:
    _, run = train(settings(model, tmp_path, name="run", iterations=2, save_every=1, keep="all"))
    (run.checkpoints / "damaged-step_000002").symlink_to(tmp_path / "nowhere")
    (run.checkpoints / "step_000002/state.json").write_text("{}")
    assert checkpoint.newest_whole(run.checkpoints)[0].name == "step_000001"
    assert (run.checkpoints / "damaged-step_000002/state.json").is_file()


@pytest.mark.parametrize(("number", "of_folders", "fails"), [
    *((number, True, False) for number in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES)),
    *((number, False, False) for number in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)),
    *((number, False, True) for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EBADF)),
    *((number, True, True) for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
])  # fmt: skip
def test_what_cannot_be_synced_is_written_and_what_was_not_written_fails(
    number: int, of_folders: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}") == of_folders:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)

    def write() -> None:
        with disk.replacing(tmp_path / "a") as aside:
            (aside / "weights").write_text("1")

    if fails:
        with pytest.raises(RunError, match="Cannot write"):
            write()
    else:
        write()
    assert (tmp_path / "a/weights").exists() is not fails
