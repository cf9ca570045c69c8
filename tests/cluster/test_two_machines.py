"""Two network namespaces: a run on two machines, whose link is cut for a while, has the weights of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.correctness.two_machines import Machines, Refused

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def permitted() -> None:
    """Skips where networks cannot be made, and says what is refused."""
    try:
        with Machines() as machines:
            machines.link(False)
    except Refused as refused:
        pytest.skip(f"network namespaces are not permitted here: {refused}")


@pytest.mark.slow
@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize(("part", "starts"), [("ranks", 1), ("cut", 2)])
def test_two_machines_train_the_weights_of_one_process(part: str, starts: int, tmp_path: Path) -> None:
    out = tmp_path / "two.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "two_machines", "--parts", part, "--seconds", "15", "--out", out],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(out.read_text())[part]
    assert row["equal"] is True and row["starts"] == starts
