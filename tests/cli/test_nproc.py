"""``marft train --nproc``: the weights of one process, whatever dies on the way, and on however many ranks it goes on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import preloaded
from marft_algos.cli import main

SMALL = (
    *("--episodes-per-iteration", "16", "--eval-episodes", "8", "--eval-every", "2"),
    *("--save-every", "1", "--keep", "all"),
)


def weights(run: Path, iteration: int) -> str:
    """The sha256 of a checkpoint's adapters, value heads and optimisers."""
    folder, found = run / "checkpoints" / f"step_{iteration:06d}", hashlib.sha256()
    files = sorted(folder.rglob("*.safetensors"))
    assert len(files) == 2
    for file in files:
        found.update(file.read_bytes())
    state = torch.load(folder / "state.pt", weights_only=True)
    assert state["critics"] and state["learner"]["policies"]
    for name, value in sorted(flat(state["critics"]) + flat(state["learner"])):
        found.update(f"{name}: {value.tolist() if isinstance(value, torch.Tensor) else value}".encode())
    return found.hexdigest()


def flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    return [(name, value)] if parts is None else [leaf for key, part in parts for leaf in flat(part, f"{name}/{key}")]


def numbers(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time_", "engine/ran"))} for line in lines]


def launcher(*words: str, program: tuple[str, ...] = ("-m", "marft_algos")) -> preloaded.Started:
    return preloaded.Started(Path.cwd(), *program, "train", *words)


def ranks_of(process: preloaded.Started) -> dict[int, int]:
    """Rank -> process id, of the launcher's children."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if parent == process.pid and (rank := next((w for w in words if w.startswith(b"RANK=")), None)):
            found[int(rank.partition(b"=")[2])] = int(folder.name)
    return found


def wait_for(iteration: int, run: Path, process: preloaded.Started) -> None:
    for _ in range(2400):
        if not process.runs(0.05):
            raise AssertionError(process.wait())
        if (run / "metrics.jsonl").is_file() and len(numbers(run)) > iteration:
            return
    raise AssertionError("nothing happens")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, in eight lanes, as long as it has to be: ``prolonged``."""
    where = ("--runs-dir", str(tmp_path_factory.mktemp("alone")), *SMALL)
    assert main(["train", *where, "--iterations", "2", "--reduction-slots", "8", "--name", "alone"]) == 0
    return Path(where[1]) / "alone"


def prolonged(alone: Path, iterations: int) -> Path:
    """The run, which goes on where it is shorter."""
    if len(numbers(alone)) <= iterations:
        assert main(["train", "--resume", str(alone), "--iterations", str(iterations)]) == 0
    return alone


@pytest.mark.slow
def test_ranks_with_shares_of_the_base_train_to_the_weights_of_one_process_that_runs_the_same_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--runs-dir", str(tmp_path), *SMALL, "--iterations", "2")
    process = launcher(*where, "--nproc", "2", "--shard", "base", "--name", "shares")
    done = process.wait()
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MARFT_KERNELS", "decode")
    assert main(["train", *where, "--reduction-slots", "8", "--name", "whole"]) == 0
    assert numbers(tmp_path / "shares") == numbers(tmp_path / "whole")
    assert weights(tmp_path / "shares", 2) == weights(tmp_path / "whole", 2)
    assert main(["train", "--resume", str(tmp_path / "shares"), "--shard", "auto", "--iterations", "3"]) == 0


SCARCE = """
import os
from pathlib import Path

import torch

from marft_algos.algorithms.grpo import GRPO


class Scarce(GRPO):
    def surrogate(self, logprobs, batch):
        seen = Path(os.environ["SEEN"])
        if os.environ["RANK"] == "1" and not seen.exists():
            seen.touch()
            raise torch.OutOfMemoryError("none left")
        return super().surrogate(logprobs, batch)
"""


@pytest.mark.slow
def test_where_memory_runs_out_in_a_pass_over_shares_all_ranks_begin_again_with_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scarce.py").write_text(SCARCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    where = ("--runs-dir", str(tmp_path), *SMALL, "--iterations", "1", "--name", "scarce")
    process = launcher("scarce:Scarce", *where, "--nproc", "2", "--shard", "base", "--micro-tokens", "400")
    done = process.wait()
    said, errors = done.stdout, done.stderr
    assert done.returncode == 0, errors
    ran_out = re.search(r"Memory ran out with (\d+) tokens at once", errors)
    assert ran_out, errors
    half = int(ran_out[1]) // 2
    assert f"all of them go on with --micro-tokens {half}" in said
    assert f"micro_tokens = {half}" in (tmp_path / "scarce" / "config.toml").read_text(), "so it is kept with the run"
    assert [line["iteration"] for line in numbers(tmp_path / "scarce")] == [0, 1]


RESTLESS = """
import datetime
import sys
import threading

from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from marft_algos.cli import main


class Restless(dynamic_rendezvous._PeriodicTimer):
    def __init__(self, interval, *args):
        super().__init__(datetime.timedelta(milliseconds=25), *args)


dynamic_rendezvous._PeriodicTimer = Restless
code = main(sys.argv[1:])
left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
sys.exit(f"Python aborts if these talk to a store when it ends: {left}" if left else code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_run_whose_rank_is_killed_and_that_one_process_finishes_is_the_undisturbed_run(
    killed: int, alone: Path, tmp_path: Path
) -> None:
    """Slow: the test below kills a rank, too, of a run that it then stops."""
    where = ("--runs-dir", str(tmp_path), *SMALL)
    process = launcher(*where, "--iterations", "3", "--nproc", "2", "--name", "ranks")
    wait_for(1, tmp_path / "ranks", process)
    os.kill(ranks_of(process)[killed], signal.SIGKILL)
    done = process.wait()
    said, errors = done.stdout, done.stderr
    assert done.returncode == 0, errors
    assert said.count("gain:") == 1, "the first rank speaks for all"
    assert numbers(tmp_path / "ranks")[:3] == numbers(prolonged(alone, 4))[:3]
    assert weights(tmp_path / "ranks", 3) == weights(alone, 3)
    assert main(["train", "--resume", str(tmp_path / "ranks"), "--iterations", "4"]) == 0
    assert weights(tmp_path / "ranks", 4) == weights(alone, 4)


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_run_whose_rank_is_killed_and_that_ctrl_c_stops_goes_on_in_one_process_as_the_undisturbed_run(
    alone: Path, tmp_path: Path
) -> None:
    """All ranks stop behind the same iteration, however often the launcher's heart beats."""
    run, program = tmp_path / "ranks", tmp_path / "restless.py"
    program.write_text(RESTLESS)
    words = ("--runs-dir", str(tmp_path), *SMALL, "--iterations", "500", "--nproc", "2", "--name", "ranks")
    process = launcher(*words, program=(str(program),))
    wait_for(1, run, process)
    os.kill(ranks_of(process)[0], signal.SIGKILL)  # which is who writes
    wait_for(len(numbers(run)), run, process)
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait(300)
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("evaluation (untrained)") == 1, "the first rank speaks for all"
    last = numbers(run)[-1]["iteration"]
    assert int(sorted((run / "checkpoints").iterdir())[-1].name.removeprefix("step_")) == last
    prolonged(alone, last + 1)
    assert numbers(run) == numbers(alone)[: last + 1]
    assert weights(run, last) == weights(alone, last)
    assert main(["train", "--resume", str(run), "--iterations", str(last + 1)]) == 0
    assert weights(run, last + 1) == weights(alone, last + 1)


@pytest.mark.slow
@pytest.mark.parametrize("restless", [pytest.param(False, id="usual"), pytest.param(True, id="heart always beats")])
def test_a_ctrl_c_stops_all_ranks_behind_an_iteration(restless: bool, tmp_path: Path) -> None:
    """Slow: the test above stops ranks, too, of which it has killed one."""
    words = ("--runs-dir", str(tmp_path), *SMALL, "--iterations", "500", "--nproc", "2", "--name", "ranks")
    program = tmp_path / "restless.py"
    program.write_text(RESTLESS)
    process = launcher(*words, program=(str(program),)) if restless else launcher(*words)
    wait_for(1, tmp_path / "ranks", process)
    os.kill(process.pid, signal.SIGTERM)
    done = process.wait(300)
    assert done.returncode == 130, done.stderr
    steps = sorted((tmp_path / "ranks" / "checkpoints").iterdir())
    assert int(steps[-1].name.removeprefix("step_")) == numbers(tmp_path / "ranks")[-1]["iteration"]


@pytest.mark.parametrize(("words", "error"), [
    (("--nproc", "3"), "expected how many processes.*1, 2, 4"), (("--nproc", "two"), "--nproc two: expected"),
    (("--nproc", "4", "--reduction-slots", "2"), "2 reduction slots cannot be dealt to 4 ranks.*--reduction-slots 8"),
    (("--nproc", "2", "--reduction-slots", "6"), "6 reduction slots cannot be dealt.*power of two"),
    (("--shard", "base"), "this is one process. Type: --nproc 2, or --shard auto"),
])  # fmt: skip
def test_what_ranks_cannot_do_is_refused_before_one_is_started(
    words: tuple[str, ...], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--runs-dir", str(tmp_path), *words]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(error, said), said
    assert not [*tmp_path.iterdir()]
