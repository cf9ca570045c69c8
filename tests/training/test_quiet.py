"""What a training shows at a terminal stays whole, whatever libraries say meanwhile: notes above the table, no logs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOUD = """
import logging
import warnings

import marft_envs
import numpy as np


def make(**kwargs):
    env = marft_envs.make("relay-v0", **kwargs)
    task = env.unwrapped.task
    on_round = task.on_round

    def loud(*args):
        logging.getLogger("httpx").info("HTTP Request: POST /v1/chat/completions")
        logging.getLogger("urllib3.connectionpool").warning("Connection pool is full")
        warnings.warn("is deprecated", FutureWarning)
        np.log(np.zeros(1))
        return on_round(*args)

    task.on_round = loud
    return env


marft_envs.register("loud-v0", make, None, "A team whose world has loud libraries.")
"""


def at_a_terminal(folder: Path, *argv: str) -> str:
    """What a command writes to a terminal of 80 columns, which sees colours and a table that is drawn again and again."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-m", "marft_algos", *argv], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    try:
        while piece := os.read(ours, 1 << 16):
            written += piece
    except OSError:  # Linux: the other side has closed
        pass
    os.close(ours)
    text = written.decode()
    assert process.wait(60) == 0, text[-3000:]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_libraries_do_not_speak_into_the_table_of_a_training(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    short = ("--iterations", "2", "--episodes-per-iteration", "8", "--eval-episodes", "4", "--eval-every", "1")
    text = at_a_terminal(tmp_path, "train", "--preset", "toy", "--env", "loud:loud-v0", "--trust", *short)
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    drawn = [line for line in lines if line[0] in "│╭╰"]
    assert len(drawn) > 20 and all(line[-1] in "│╮╯" and len(line) <= 80 for line in drawn)
    said = [line for line in lines if line not in drawn]
    assert not [line for line in said if re.search(r"HTTP Request|\.py:\d|warnings\.warn|np\.log", line)]
    notes = [line for line in said if line.startswith("note: ")]
    assert {re.split(r"[:(]", note)[1].strip() for note in notes} >= {"FutureWarning", "RuntimeWarning"}
    assert any(line.startswith("report:") for line in said)
