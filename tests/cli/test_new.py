"""``marft new env NAME``: what it writes installs, is found, keeps the rules, and its tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from marft_algos.cli import main

ROOT = Path(__file__).resolve().parents[2]


def ran(folder: Path, *words: str, path: str) -> str:
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.ci
def test_a_new_project_installs_is_found_and_its_own_tests_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hatchling", reason="hatchling comes with the dev extra")
    monkeypatch.chdir(tmp_path)
    assert main(["new", "env", "ticket-desk"]) == 0
    assert "marft check ticket-desk-v0" in capsys.readouterr().out
    workflow = yaml.safe_load((tmp_path / "ticket-desk/.github/workflows/check.yml").read_text())["jobs"]["check"]
    typed = [step["run"] for step in workflow["steps"] if "run" in step]
    assert typed == ['pip install -e ".[dev]"', "marft check ticket-desk-v0", "python -m pytest"], "as below"
    assert workflow["steps"][1]["with"]["python-version"] == "${{ matrix.python }}"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", "site")
    ran(tmp_path, *pip, "./ticket-desk", path="")
    path = f"{tmp_path / 'site'}{os.pathsep}{ROOT}"
    assert "ticket-desk-v0" in ran(tmp_path, "-m", "marft_algos", "envs", path=path)
    assert "checks passed" in ran(tmp_path, "-m", "marft_algos", "check", "ticket-desk-v0", path=path)
    assert "6 passed" in ran(tmp_path / "ticket-desk", "-m", "pytest", "-q", "-p", "no:cacheprovider", path=path)


@pytest.mark.parametrize("name", ["Ticket", "ticket_desk", "../out", "3d", "class", "a--b", ""])
def test_what_names_no_project_is_refused(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "env", name]) == 1
    assert "names no project" in capsys.readouterr().err and not list(here.iterdir())


def test_what_is_there_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "desk").mkdir()
    (here / "desk/mine.txt").write_text("mine")
    assert main(["new", "env", "desk"]) == 1
    assert "exists already" in capsys.readouterr().err and len(list((here / "desk").iterdir())) == 1
