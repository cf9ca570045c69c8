"""``examples/cluster/slurm.sh`` under SLURM itself: a job that is stopped in any way ends with the bits of one that is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # no package: these tests run in environments of their own
import slurm

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm.absent()), reason=slurm.absent() or "SLURM is here")]

SCRIPT = Path(__file__).resolve().parents[2] / "examples/cluster/slurm.sh"
FEW, MANY = 12, 40
"""Iterations: SLURM looks for jobs whose time is nearly over twice a minute, and by then a short run has ended."""
HERE = ("--gpus-per-node=1", "--cpus-per-task=1", "--partition=low")
START_S, RUN_S = 180, 600
Stop = Callable[[slurm.Cluster, str], None]


def small(iterations: int) -> list[str]:
    words = ["--iterations", str(iterations), "--episodes-per-iteration", "16", "--eval-episodes", "8"]
    return [*words, "--eval-every", "0", "--save-every", "1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    with slurm.cluster() as made:
        made.environ |= {"OMP_NUM_THREADS": "1"}
        made.environ["PATH"] = f"{Path(sys.executable).parent}:{made.environ['PATH']}"
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that nobody stops, with the slots of two."""
    runs = tmp_path_factory.mktemp("alone")
    words = [*small(MANY), "--keep", "all", "--reduction-slots", "8", "--runs-dir", str(runs), "--name", "run"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "marft_algos", "train", *words], env=environ, check=True, timeout=RUN_S)
    return runs / "run"


def weights(run: Path, iteration: int = FEW) -> dict[str, bytes]:
    """The files of a checkpoint's adapters."""
    folder = run / f"checkpoints/step_{iteration:06d}"
    found = {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.safetensors"))}
    assert len(found) == 2, sorted(folder.rglob("*"))
    return found


def iterations(run: Path) -> int:
    """How many a run has logged; the first line is the evaluation before training."""
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) - 1 if file.is_file() else 0


def submit(cluster: slurm.Cluster, run: Path, *words: str) -> str:
    place = {"MARFT_RUNS": str(run.parent), "MARFT_NAME": run.name}
    return cluster.run("sbatch", "--parsable", *HERE, str(SCRIPT), *(words or small(FEW)), **place)


def preempt(cluster: slurm.Cluster, job: str) -> None:
    """Another job, of a partition that goes first, takes both nodes for a moment."""
    cluster.run("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")


def requeue(cluster: slurm.Cluster, job: str) -> None:
    cluster.run("scontrol", "requeue", job)


def end_soon(cluster: slurm.Cluster, job: str) -> None:
    """Less time is left than the script wants to be warned before; SLURM looks every half a minute."""
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=3")


def waits(state: dict[str, str]) -> bool:
    """Whether a job was stopped, and waits for its turn again."""
    return (state["JobState"], state["Restarts"]) == ("PENDING", "1")


@pytest.mark.parametrize(("stop", "n"), [(preempt, FEW), (requeue, FEW), (end_soon, MANY)])
def test_a_job_that_is_queued_again_ends_with_the_bits_of_a_run_that_nobody_stopped(
    cluster: slurm.Cluster, undisturbed: Path, tmp_path: Path, stop: Stop, n: int
) -> None:
    run = tmp_path / "run"
    job = submit(cluster, run, *small(n))
    slurm.until(lambda: iterations(run) >= 2, START_S, cluster.logs)
    stop(cluster, job)
    slurm.until(lambda: waits(cluster.state(job)), START_S, lambda: (cluster.state(job), cluster.logs()))
    assert 2 <= iterations(run) < n, "it was stopped in the middle"
    cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=60")
    state = cluster.ended(job, RUN_S)
    log = (cluster.folder / f"marft-{job}.log").read_text()
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log
    assert weights(run, n) == weights(undisturbed, n)
    assert log.count("iteration 1/") == 1 and "gain:" in log, (
        "what the first part said is kept, and no work is done twice"
    )


def test_a_job_that_was_cancelled_stays_so_and_another_one_of_its_name_goes_on(
    cluster: slurm.Cluster, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    job = submit(cluster, run)
    slurm.until(lambda: iterations(run) >= 2, START_S, cluster.logs)
    cluster.run("scancel", job)
    slurm.until(lambda: not cluster.run("squeue", "--noheader"), START_S, cluster.logs)
    assert cluster.state(job)["JobState"] == "CANCELLED"
    steps = sorted((run / "checkpoints").iterdir())
    assert steps[-1].name == f"step_{iterations(run):06d}", "it was saved before it ended"
    again = cluster.ended(submit(cluster, run), RUN_S)
    assert again["JobState"] == "COMPLETED", cluster.logs()
    assert weights(run) == weights(undisturbed)


def test_srun_starts_two_ranks_by_itself(cluster: slurm.Cluster, undisturbed: Path, tmp_path: Path) -> None:
    """Without torchrun: a rank's variables are SLURM's, under other names."""
    rank = f"""
        export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
        export LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$SLURM_NTASKS
        export MASTER_ADDR=$SLURMD_NODENAME MASTER_PORT={slurm.free_ports()[0]}
        exec marft train --runs-dir {tmp_path} --name run {" ".join(small(FEW))}"""
    said = cluster.run("srun", "--nodes=1", "--ntasks=2", "bash", "-c", rank, timeout=RUN_S)
    assert said.count("gain:") == 1, said
    assert weights(tmp_path / "run") == weights(undisturbed)


def test_what_cannot_start_fails_once(cluster: slurm.Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path / "run", "grpo", "--lr", "-1")
    state = cluster.ended(job, START_S)
    log = (cluster.folder / f"marft-{job}.log").read_text()
    assert (state["JobState"], state["Restarts"]) == ("FAILED", "0") and "lr is -1.0" in log, log
