"""``--require-real``: where the real packages are promised, a test that was skipped has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ONE = """
import pytest
from tests.conftest import NoData

def test_passes(): pass
def test_skipped(): pytest.skip("no package")
def test_without_data(): raise NoData("no data folder")
@pytest.fixture
def package(): pytest.skip("no package either")
def test_set_up(package): pass
"""
OTHER = """
import pytest
pytest.importorskip("no_such_package_")
def test_never(): pass
"""


def outcome(folder: Path, *options: str) -> str:
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "none.ini",
        *options,
    ]  # fmt: skip
    (folder / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [*command, "."], cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.ci
def test_a_skip_is_a_failure_unless_data_are_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(ONE)
    assert "1 passed, 3 skipped" in outcome(tmp_path)
    said = outcome(tmp_path, "--require-real")
    assert "1 passed" in said and "1 skipped" in said and ("1 failed, " in said or "2 failed" in said)
    (tmp_path / "test_one.py").write_text(OTHER)
    assert "1 error" in outcome(tmp_path, "--require-real")
