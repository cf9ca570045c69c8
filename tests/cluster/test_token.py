"""A Ray cluster that asks for its token: who has another one, or none, is told so within a minute; a job is let in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra 'cluster'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="starts a cluster of its own")]
BIN = Path(sys.executable).parent
FEW = ("--iterations", "1", "--episodes-per-iteration", "16", "--eval-episodes", "8", "--eval-every", "0")
SUBMIT = Path(__file__).resolve().parents[2] / "examples/cluster/ray_submit.sh"


def environ(**changes: str) -> dict[str, str]:
    here = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    return {**here, **own, "RAY_AUTH_MODE": "token", **changes}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, str, str]]:
    """A head node's address, its dashboard's, and its token."""
    port, dashboard, token = free_port(), free_port(), "a" * 64
    with tempfile.TemporaryDirectory(prefix="mr", dir="/tmp") as folder:  # a short path: sockets lie below it
        log = Path(folder) / "log"
        words = ("--node-ip-address", "127.0.0.1", "--port", str(port), "--num-cpus", "2", "--temp-dir", folder)
        words += ("--dashboard-port", str(dashboard), "--object-store-memory", "100000000")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [BIN / "ray", "start", "--head", "--block", *words],
                env=environ(RAY_AUTH_TOKEN=token), stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            until = time.monotonic() + 120
            while "Ray runtime started" not in log.read_text():
                assert process.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.5)
            yield f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}", token
        finally:
            process.terminate()
            process.wait(60)


@pytest.mark.parametrize("token", [{"RAY_AUTH_TOKEN": "b" * 64}, {}])
def test_who_lacks_the_token_is_told_so_within_a_minute(
    token: dict[str, str], head: tuple[str, str, str], tmp_path: Path
) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [BIN / "marft", "train", *FEW, "--runs-dir", tmp_path / "runs", "--rollouts", "ray", "--workers", "1"],
        env=environ(RAY_ADDRESS=head[0], HOME=str(tmp_path), **token), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and time.monotonic() - started < 60
    error = " ".join(done.stderr.split())
    assert f"error: The Ray cluster ({head[0]}) cannot be joined" in error
    assert "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in error
    assert not [*tmp_path.glob("runs/*/checkpoints")]


def test_a_job_that_is_submitted_trains_on_the_cluster(head: tuple[str, str, str], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs ray[default] for its job server")
    words = (*FEW, "--runs-dir", str(tmp_path), "--name", "job", "--workers", "1")
    done = subprocess.run(
        [SUBMIT, head[1], *words],
        env=environ(RAY_AUTH_TOKEN=head[2]), capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gain:" in done.stdout and (tmp_path / "job/checkpoints/step_000001/state.pt").is_file()
