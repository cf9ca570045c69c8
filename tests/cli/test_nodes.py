"""Which machines train together, and that they are alike: what is typed, SLURM's variables, ports, folders, code."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.thread_ranks import ThreadRank, together
from marft_algos.cli import main, nodes
from marft_algos.cli.nodes import Nodes
from marft_algos.ranks import alike
from marft_envs import ConfigError

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_NODEID": "1",
}


def test_the_machines_are_those_that_are_typed() -> None:
    typed = ["--nproc", "8", "--env", "relay-v0", "--nnodes", "2", "--rdzv-endpoint", "node1:1234"]
    assert nodes.take(typed, STEP) == (["--env", "relay-v0"], Nodes(8, 2, "node1", 1234))
    assert nodes.take(["--nproc", "1", "--nnodes", "4", "--rdzv-endpoint", "[fd00::1]:5"], {})[1].host == "fd00::1"
    assert nodes.take(["--nproc", "1", "--nnodes", "4", "--rdzv-endpoint", "node1"], {})[1].port == nodes.PORT
    assert nodes.take(["--nproc", "8", "--nnodes", "1"], STEP)[1] == Nodes(8), "of a job's machines, this one alone"
    assert nodes.take(["grpo"], STEP) == (["grpo"], Nodes()), "ranks are asked for"
    assert Nodes(8, 2).ranks == 16


def test_a_step_of_slurm_says_where_its_machines_meet() -> None:
    found = nodes.take(["--nproc", "8"], STEP)[1]
    assert (found.nproc, found.count, found.host, found.job) == (8, 2, "gpu007", "4711")
    other = nodes.slurm(8, {**STEP, "SLURM_JOB_ID": "4712"})
    assert found.port != other.port and found.name != other.name, "two jobs may share their first machine"
    assert 1024 < found.port < 32768
    assert nodes.slurm(8, {**STEP, "SLURM_STEP_ID": "1"}).port not in (found.port, other.port)
    one = {**STEP, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "gpu007"}
    assert nodes.slurm(8, one) == Nodes(8) == nodes.slurm(8, {})


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu[003-006,9],login1", "gpu003"),
        ("a-b7.site,c[1-2]", "a-b7.site"),
        ("rack[2-3]n[05,07-09]", "rack2n05"),
        ("n[12]-ib", "n12-ib"),
    ],
)
def test_the_first_machine_of_a_short_list(nodelist: str, first: str) -> None:
    assert nodes.first_host(nodelist) == first


@pytest.mark.parametrize(
    ("words", "environ", "error"),
    [
        (["--nnodes", "2"], {}, "--nnodes goes with --nproc"),
        (["--rdzv-endpoint", "a:1"], {}, "--rdzv-endpoint goes with --nproc"),
        (["--nproc", "1", "--nnodes", "3"], {}, "--nnodes 3: expected how many machines.*1, 2, 4"),
        (["--nproc", "1", "--nnodes", "2"], {}, r"where the machines meet.*--rdzv-endpoint HOST:29400"),
        (["--nproc", "1", "--rdzv-endpoint", "a:1"], {}, "goes with --nnodes: --nnodes 2"),
        (["--nproc", "1", "--nnodes", "2", "--rdzv-endpoint", "a:b"], {}, "expected HOST:PORT"),
        (["--nproc", "1", "--nnodes", "2", "--rdzv-endpoint", "a:70000"], {}, "expected HOST:PORT"),
        (["--nproc", "8"], {"SLURM_NNODES": "2"}, "given 2 machines.*srun --ntasks-per-node 1 marft.*--nnodes 1"),
        (["--nproc", "8"], {**STEP, "SLURM_STEP_NUM_TASKS": "16"}, "16 tasks on 2 machines.*--ntasks-per-node 1"),
        (
            ["--nproc", "8"],
            {**STEP, "SLURM_STEP_NUM_NODES": "6", "SLURM_STEP_NUM_TASKS": "6"},
            "6 machines cannot.*srun --nodes 4",
        ),
    ],
)
def test_machines_that_nobody_can_find_are_refused(words: list[str], environ: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        nodes.take(words, environ)


def test_a_port_that_is_taken_is_named_with_the_next_one() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} .* is taken.*--rdzv-endpoint 127.0.0.1:{port + 1}"):
            nodes.is_host(Nodes(1, 2, "127.0.0.1", port))
    assert nodes.is_host(Nodes(1, 2, "127.0.0.1", port)), "it is free again"
    assert not nodes.is_host(Nodes(1, 2, "192.0.2.1", port)), "that is another machine"


def test_a_first_machine_that_nobody_knows_is_named_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--nproc", "1", "--nnodes", "2", "--runs-dir", str(tmp_path))
    assert main(["train", *words, "--rdzv-endpoint", "nowhere.invalid:9", "--name", "two"]) == 1
    assert "finds no way to 'nowhere.invalid'" in capsys.readouterr().err
    assert main(["train", *words, "--rdzv-endpoint", "127.0.0.1:9"]) == 1
    assert "need one name for it. Type on all: --name" in " ".join(capsys.readouterr().err.split())
    assert not [*tmp_path.iterdir()]


def test_the_device_of_an_address() -> None:
    assert nodes.interface("127.0.0.1") == "lo" and nodes.interface("192.0.2.1") == ""


def test_a_folder_that_machines_do_not_share_is_an_error_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alike, "PATIENCE_S", 0.3)
    shared = tmp_path / "shared"
    together(2, lambda rank: alike.check_folder(rank, str(shared)))
    assert shared.is_dir() and not [*shared.iterdir()], "nothing is left there"

    def apart(rank: ThreadRank) -> None:
        with pytest.raises(ConfigError, match=rf"{tmp_path}/0' is not in '{tmp_path}/1' on .*--runs-dir"):
            alike.check_folder(rank, str(tmp_path / str(rank.rank)))

    together(2, apart)
    assert not [*(tmp_path / "0").iterdir()]


def test_ranks_of_other_code_or_settings_are_errors_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = alike.ProcessFacts.here()
    monkeypatch.setattr(alike.ProcessFacts, "here", lambda: facts)
    together(2, alike.check_code)
    ranks_facts = [dataclasses.replace(facts, host="a"), dataclasses.replace(facts, host="b", code="0123456789ab")]
    monkeypatch.setattr(ThreadRank, "gather", lambda self, x: ranks_facts)
    with pytest.raises(ConfigError, match=f"Ranks 1 and 0.*b runs source files.* 0123456789ab, and a {facts.code}"):
        alike.check_code(ThreadRank(0, 2, [], None))  # type: ignore[arg-type]
    monkeypatch.undo()

    def told(rank: ThreadRank) -> None:
        with pytest.raises(ConfigError, match=r"with lr = 2, and .* with 1\. Expected the same command"):
            alike.check_settings(rank, {"env": "relay-v0", "lr": 1 + rank.rank})

    together(2, told)


@pytest.mark.slow
def test_two_launchers_that_do_not_share_a_folder_both_end_with_the_error(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    words = ("--nproc", "1", "--nnodes", "2", "--rdzv-endpoint", place, "--name", "two", "--iterations", "1")
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "marft_algos", "train", *words, "--runs-dir", str(tmp_path / str(number))],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in (0, 1)
    ]  # fmt: skip
    said = [launcher.communicate(timeout=500)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [1, 1], said
    assert re.search(r"the folder of runs has to be one that all machines share", " ".join(" ".join(said).split()))
    assert not [*tmp_path.glob("*/two")], "nothing was trained"
