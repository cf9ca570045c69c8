"""The command line answers without the packages that train: help, settings and typing errors load no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marft_algos.algorithms import base as algorithm

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "peft", "safetensors", "tokenizers", "jinja2", "matplotlib")
PROBE = """
import sys
from marft_algos.cli import main
code = 0
for argv in {commands!r}:
    try:
        code = main(argv)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, (argv, loaded)
    assert code == {code}, (argv, code)
"""


def probe(*commands: list[str], code: int, cwd: Path) -> subprocess.CompletedProcess[str]:
    text = PROBE.format(commands=commands, heavy=HEAVY, code=code)
    env = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", text], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def test_help_loads_no_torch(tmp_path: Path) -> None:
    commands = [
        ["train", "--help"],
        ["train", "grpo", "--help"],
        ["eval", "--help"],
        ["show", "--help"],
        ["plan", "--help"],
        ["versus", "--help"],
    ]
    shown = probe(*commands, ["bench", "--help"], ["bench", "run", "--help"], code=0, cwd=tmp_path).stdout
    assert "--kl-coef" in shown and "--group-size" in shown and "--swap" in shown


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["train", "mraft"], 1, "Did you mean 'marft'"),
        (["train", "--iteratoins", "3"], 2, "--iterations"),
        (["train", "--env", "rely-v0"], 1, "Did you mean 'relay-v0'"),
        (["train", "--lr", "fast"], 2, "fast"),
        (["train", "--resume", "runs/none"], 1, "is no run"),
        (["eval", "--episods", "3"], 2, "--episodes"),
        (["eval"], 1, "marft eval RUN"),
    ],
)
def test_what_is_mistyped_is_told_without_torch(argv: list[str], code: int, message: str, tmp_path: Path) -> None:
    assert message in probe(argv, code=code, cwd=tmp_path).stderr


@pytest.mark.parametrize("names", [algorithm.names()])
def test_the_settings_of_every_algorithm_are_read_without_torch(names: list[str], tmp_path: Path) -> None:
    text = (
        "import sys\nfrom marft_algos.config import settings\n"
        f"for name in {names!r}:\n"
        "    settings.build({'algo': name})\n"
        f"    assert not [m for m in {HEAVY!r} if m in sys.modules], name\n"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_one_run_to_compare_is_answered_in_words(tmp_path: Path) -> None:
    told = probe(["eval", "--compare", "runs/a"], code=1, cwd=tmp_path).stderr
    assert "marft eval --compare RUN_A RUN_B" in told and "[bold]" not in told
