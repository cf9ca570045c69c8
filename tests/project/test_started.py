"""``python -m`` of any module here: files of the current folder, which may be a stranger's, stand in for nothing."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.marks import rest_in_ci

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("marft_envs", "marft_algos")
# What `-m` itself imports before there is a module to start (warnings, contextlib, …) is out of reach: docs/trust.md.
HOSTILE = (
    "__future__", "json", "numpy", "argparse", "typing", "dataclasses", "tyro", "torch", "transformers", "tokenizers", "gymnasium",
    "pettingzoo", "pydantic", "subprocess", "resource", "socket", "tempfile", "anyio", "uvicorn", "mcp", "opentelemetry",
    "not_installed",
)  # fmt: skip


def _started(file: Path) -> bool:
    """Whether a file is meant to be started: it has the usual last lines, or is a package's ``__main__``."""
    return file.name == "__main__.py" or any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in ast.parse(file.read_text()).body
    )


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


STARTED = sorted(_module(file) for package in PACKAGES for file in (ROOT / package).rglob("*.py") if _started(file))


def start(module: str, here: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", module, *argv], cwd=here, env=env, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def test_the_other_package_is_not_looked_for_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "marft_envs").mkdir()
    (tmp_path / "marft_envs/__init__.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    done = start("marft_algos", tmp_path, "--version")
    assert not (tmp_path / "ran").exists() and done.stdout.startswith("marft "), done.stderr


def test_the_modules_that_are_started_are_found() -> None:
    assert {"marft_algos", "marft_algos.extras.bench.worker", "marft_envs.workers.untrusted"} <= set(STARTED)


@pytest.mark.parametrize("module", rest_in_ci(STARTED, 2))
def test_no_module_that_is_started_runs_files_of_the_current_folder(module: str, tmp_path: Path) -> None:
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    done = start(module, tmp_path, "--help")
    assert not (tmp_path / "ran").exists(), done.stderr
    assert "No module named" not in done.stderr and "circular import" not in done.stderr, done.stderr


def test_a_module_of_the_current_folder_that_was_typed_is_found(tmp_path: Path) -> None:
    """Behind all others: the environment of records to play again."""
    (tmp_path / "json.py").write_text("import pathlib; pathlib.Path('ran').touch()\n")
    for more in ([], ["--content", "--replay"]):
        (tmp_path / "e.jsonl").write_text(json.dumps({}) + "\n")
        done = start("marft_envs.records.otel", tmp_path, "e.jsonl", *more)
        assert done.returncode == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_program_of_others_keeps_its_folder(tmp_path: Path) -> None:
    """Whoever imports these packages from a program of his own, started with ``-m``, decides himself what comes first."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("import marft_algos, marft_envs\n")
    (tmp_path / "own" / "__main__.py").write_text("import other, sys\n")
    (tmp_path / "other.py").write_text("print('found')\n")
    assert start("own", tmp_path).stdout == "found\n"
