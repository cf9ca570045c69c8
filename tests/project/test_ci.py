"""The workflow in .github runs targets that the Makefile has, on every Python that the project says it runs on."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
JOB: dict[str, Any] = WORKFLOW["jobs"]["make"]
MATRIX: dict[str, Any] = JOB["strategy"]["matrix"]
RUNS = [(python, target) for python in MATRIX["python"] for target in MATRIX["target"]]
RUNS += [(run["python"], run["target"]) for run in MATRIX["include"]]
"""Python and target of everything that runs."""


def test_nothing_is_typed_but_make_and_targets_that_exist() -> None:
    assert list(WORKFLOW["jobs"]) == ["make"]
    (typed,) = [step["run"] for step in JOB["steps"] if "run" in step]
    assert typed.startswith("make ${{ matrix.target }} PYTHON=python ") and "$PIP_ARGS" in typed
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {target for _, target in RUNS} <= targets


def test_every_python_of_the_classifiers_is_linted_and_tested_with_and_without_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "
    wanted = {line.removeprefix(prefix) for line in project["classifiers"] if line.startswith(prefix)}
    for target in ("lint", "test-base", "test"):
        assert {python for python, ran in RUNS if ran == target} == wanted
    assert {"test-real", "test-adapters", "test-all"} <= {target for _, target in RUNS}


@pytest.mark.parametrize(("extras", "torch_first"), [("all", True), ("dev", False)])
def test_make_installs_with_the_constraints_torch_first(tmp_path: Path, extras: str, torch_first: bool) -> None:
    argv = ["make", "-n", "setup", f"VENV={tmp_path / 'venv'}", f"EXTRAS={extras}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    installs = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert all("-c constraints.txt" in line for line in installs)
    assert [line.split()[-1] for line in installs] == ["torch"] * torch_first + [f"'.[{extras}]'"]


def files(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / ".ci/files.py"), *map(str, words)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.py", "x = 1 \n", "blanks"),
        ("a.py", "x = 1", "newline"),
        ("a.py", "x = 1\n\n", "newline"),
        ("a.md", "a\n" + 7 * "<" + " HEAD\nb\n", "conflict"),
        ("a.pem", "-----BEGIN RSA " + "PRIVATE KEY-----\n", "private key"),
        ("a.yml", "a: [\n", "cannot be read"),
        ("a.toml", "a = \n", "cannot be read"),
        ("a.json", "{\n", "cannot be read"),
        ("a.bin", "\0" * 2_000_001, "2,000,001 bytes"),
    ],
)
def test_a_file_that_must_not_be_committed_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    done = files(tmp_path / name)
    assert done.returncode == 1 and f"{tmp_path / name}: " in done.stdout and said in done.stdout


def test_ends_of_lines_and_of_files_can_be_mended(tmp_path: Path) -> None:
    text, binary = tmp_path / "a.py", tmp_path / "a.bin"
    text.write_text("x = 1\t \n\ny = 2  \n\n\n")
    binary.write_bytes(b"\0 \n\n")
    assert files("--fix", text, binary).returncode == 0
    assert text.read_text() == "x = 1\n\ny = 2\n" and binary.read_bytes() == b"\0 \n\n"
