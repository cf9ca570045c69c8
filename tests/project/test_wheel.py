"""What is shipped works in an environment that has never seen the repository; ``make test-wheel`` also installs all it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_trains_and_shows_what_it_trained_without_the_repository() -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the dev extra")
    pytest.importorskip("torch", reason="torch comes with the train extra")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    argv = [sys.executable, str(ROOT / ".ci/wheel.py"), "--packages", sysconfig.get_path("purelib")]
    done = subprocess.run(argv, cwd="/", env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" works on its own.\n")
