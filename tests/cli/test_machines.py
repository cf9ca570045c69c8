"""Several machines: torchrun starts their ranks, which are alike: one name, one folder, one code, one command."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.thread_ranks import ThreadRank, together
from marft_algos.cli import main
from marft_algos.ranks import consistency
from marft_algos.training import launch
from marft_envs import ConfigError

FEW = ("--iterations", "1", "--episodes-per-iteration", "16", "--eval-episodes", "8", "--eval-every", "0")


def launchers(*folders: Path, name: tuple[str, ...] = ("--name", "two")) -> list[tuple[int, str]]:
    """Ends of torchrun on as many machines as there are folders of runs, and what each said; all of them are here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    where = ("--nnodes", str(len(folders)), "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", place)
    torchrun = [sys.executable, "-m", "torch.distributed.run", *where, "--local-addr", "127.0.0.1", "-m", "marft_algos"]
    started = [
        subprocess.Popen(
            [*torchrun, "train", *FEW, *name, "--runs-dir", str(folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for folder in folders
    ]  # fmt: skip
    said = [" ".join(launcher.communicate(timeout=500)[0].split()) for launcher in started]
    return [(launcher.returncode, words) for launcher, words in zip(started, said, strict=True)]


@pytest.mark.parametrize(("words", "line"), [
    (["--nnodes", "2"], "torchrun --nnodes 2 --nproc-per-node 8 .* HOST:29400 -m marft_algos train --name NAME"),
    (
        ["grpo", "--nproc", "4", "--nnodes", "4", "--rdzv-endpoint", "a:1", "--name", "big run"],
        "--nnodes 4 --nproc-per-node 4 .*--rdzv-endpoint a:1 -m marft_algos train grpo --name 'big run'$",
    ),
    (["--rdzv-endpoint", "a:1"], "--rdzv-endpoint is an option of torchrun.*--nnodes 2"),
])  # fmt: skip
def test_several_machines_are_started_by_torchrun_and_the_error_shows_how(words: list[str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        launch.take(words)


@pytest.mark.parametrize("count", ["0", "3", "-2", "two"])
def test_a_machine_has_one_two_four_or_so_ranks(count: str) -> None:
    assert launch.take(["grpo", "--nproc", "8", "--lr", "1e-5"]) == (["grpo", "--lr", "1e-5"], 8)
    assert launch.take(["grpo"]) == (["grpo"], 0)
    with pytest.raises(ConfigError, match=f"--nproc {count}: expected how many processes.*1, 2, 4"):
        launch.take(["--nproc", count])


@pytest.mark.slow
def test_two_launchers_of_torchrun_train_one_run_to_the_weights_of_one_process(tmp_path: Path) -> None:
    ends = launchers(tmp_path, tmp_path)
    assert [code for code, _ in ends] == [0, 0], ends
    assert sum(said.count("gain:") for _, said in ends) == 1, "rank 0 speaks for all"
    assert main(["train", *FEW, "--reduction-slots", "8", "--name", "one", "--runs-dir", str(tmp_path)]) == 0
    one, two = ([*tmp_path.glob(f"{name}/checkpoints/step_000001/policies/*/*.safetensors")] for name in ("one", "two"))
    assert len(one) == 2 and [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


@pytest.mark.slow
def test_a_run_of_two_launchers_needs_one_name(tmp_path: Path) -> None:
    ends = launchers(tmp_path, tmp_path, name=())
    assert all(code for code, _ in ends), ends
    assert all("need one name for it. Type on all machines: --name NAME" in said for _, said in ends), ends
    assert not [*tmp_path.glob("*/metrics.jsonl")]


def test_a_folder_that_machines_do_not_share_is_an_error_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "PATIENCE_S", 0.3)
    shared = tmp_path / "shared"
    together(2, lambda rank: consistency.check_folder(rank, str(shared)))
    assert shared.is_dir() and not [*shared.iterdir()], "nothing is left there"

    def apart(rank: ThreadRank) -> None:
        with pytest.raises(ConfigError, match=rf"{tmp_path}/0' is not in '{tmp_path}/1' on .*--runs-dir"):
            consistency.check_folder(rank, str(tmp_path / str(rank.rank)))

    together(2, apart)
    assert not [*(tmp_path / "0").iterdir()]


def test_ranks_of_other_code_or_settings_are_errors_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = consistency.ProcessFacts.here()
    monkeypatch.setattr(consistency.ProcessFacts, "here", lambda: facts)
    together(2, consistency.check_code)
    ranks_facts = [dataclasses.replace(facts, host="a"), dataclasses.replace(facts, host="b", code="0123456789ab")]
    monkeypatch.setattr(ThreadRank, "gather", lambda self, x: ranks_facts)
    with pytest.raises(ConfigError, match=f"Ranks 1 and 0.*b runs source files.* 0123456789ab, and a {facts.code}"):
        consistency.check_code(ThreadRank(0, 2, [], None))  # type: ignore[arg-type]
    monkeypatch.undo()

    def told(rank: ThreadRank) -> None:
        with pytest.raises(ConfigError, match=r"with lr = 2, and .* with 1\. Expected the same command"):
            consistency.check_settings(rank, {"env": "relay-v0", "lr": 1 + rank.rank})

    together(2, told)


@pytest.mark.slow
def test_two_launchers_that_do_not_share_a_folder_both_end_with_the_error(tmp_path: Path) -> None:
    ends = launchers(tmp_path / "0", tmp_path / "1")
    assert all(code for code, _ in ends), ends
    assert all("the folder of runs has to be one that all machines share" in said for _, said in ends), ends
    assert not [*tmp_path.glob("*/two")], "nothing was trained"
