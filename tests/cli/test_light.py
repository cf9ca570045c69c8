"""The command line answers without the packages that train: help, settings and typing errors load no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from marft_algos.algorithms import base as algorithm

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "peft", "safetensors", "tokenizers", "jinja2", "matplotlib")
PROBE = """
import sys
from marft_algos.cli import main
for argv, expected in {commands!r}:
    try:
        code = main(argv)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, (argv, loaded)
    assert code == expected, (argv, code)
    print("{end}", file=sys.stderr)
"""
END = "END OF WHAT IS SAID"


def probe(*commands: tuple[list[str], int], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Types commands in one process, each of which must end with its code and load nothing heavy."""
    text = PROBE.format(commands=commands, heavy=HEAVY, end=END)
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
        ["versus", "--help"],
    ]
    commands += [["bench", "--help"], ["bench", "run", "--help"]]
    shown = probe(*((words, 0) for words in commands), cwd=tmp_path).stdout
    assert "--kl-coef" in shown and "--group-size" in shown and "--swap" in shown


MISTYPED = [
    (["train", "mraft"], 1, "Did you mean 'marft'"),
    (["train", "--iteratoins", "3"], 2, "--iterations"),
    (["train", "--env", "rely-v0"], 1, "Did you mean 'relay-v0'"),
    (["train", "--lr", "fast"], 2, "fast"),
    (["train", "--resume", "runs/none"], 1, "is no run"),
    (["eval", "--episods", "3"], 2, "--episodes"),
    (["eval"], 1, "marft eval RUN"),
    (["eval", "--compare", "runs/a"], 1, "marft eval --compare RUN_A RUN_B"),
]


def test_what_is_mistyped_is_told_without_torch(tmp_path: Path) -> None:
    said = probe(*((words, code) for words, code, _ in MISTYPED), cwd=tmp_path).stderr.split(END)
    for (words, _, message), told in zip(MISTYPED, said, strict=False):
        assert message in told and "[bold]" not in told, words
    assert len(said) == len(MISTYPED) + 1


def test_the_settings_of_every_algorithm_are_read_without_torch(tmp_path: Path) -> None:
    text = (
        "import sys\nfrom marft_algos.config import settings\n"
        f"for name in {algorithm.names()!r}:\n"
        "    settings.build({'algo': name})\n"
        f"    assert not [m for m in {HEAVY!r} if m in sys.modules], name\n"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
