"""What a training shows at a terminal stays whole, whatever libraries say meanwhile: notes above the table, no logs."""

from __future__ import annotations

import os
import pty
import re
import select
from pathlib import Path

import pytest

from helpers import preloaded

TYPED = """
import os
import sys

terminal = os.open(sys.argv.pop(1), os.O_RDWR | os.O_NOCTTY)
for stream in range(3):
    os.dup2(terminal, stream)
sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", 1), open(2, "w", 1)

from marft_algos.cli import main

sys.exit(main(sys.argv[1:]))
"""
"""``marft`` at another terminal."""
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
    (folder / "typed.py").write_text(TYPED)
    environ = {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = preloaded.Started(folder, "typed.py", os.ttyname(theirs), *argv, **environ)
    written = b""
    while process.runs() or select.select([ours], [], [], 0)[0]:  # the other side is open here, too
        if select.select([ours], [], [], 0.05)[0]:
            written += os.read(ours, 1 << 16)
    done = process.wait(60)
    os.close(theirs)
    os.close(ours)
    text = written.decode()
    assert done.returncode == 0, text[-3000:] + done.stderr
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.ci
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
