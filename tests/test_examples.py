"""The examples run as a user would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_custom_task_is_short_registered_checked_and_trained(tmp_path: Path) -> None:
    source = ROOT / "examples" / "custom_task.py"
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, str(source), "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "success" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "report.html").is_file()
    assert len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 3
