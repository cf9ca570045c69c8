"""The newcomer's path, from the pages alone: what they say to save is saved, what they say to type is typed, in time."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
FIRST_TEAM, OWN_TASK, OWN_ALGORITHM, BENCHMARK = "tutorial", "first-task", "first-algorithm", "first-benchmark"


def script(page: str) -> str:
    """What somebody types who follows a page: a shell script that stops at the first error."""
    lines = ["set -eu"]
    for name, language, body in BLOCK.findall((ROOT / f"docs/{page}.md").read_text(encoding="utf-8")):
        if name:
            lines.append(f"cat > {name} <<'END OF FILE'\n{body}END OF FILE")
        elif language == "sh":
            lines.append(body.strip())
    return "\n".join(lines) + "\n"


def follow(page: str, folder: Path, minutes: float) -> str:
    """Types what a page says; returns what was printed, and fails where it takes longer than the page promises."""
    home = folder / "bin"
    home.mkdir(exist_ok=True)
    (home / "marft").write_text(f'#!/bin/sh\nexec {sys.executable} -m marft_algos "$@"\n')
    (home / "marft").chmod(0o755)
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    faulthandler.cancel_dump_traceback_later()  # the limit of time is the page's
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        ["sh", "-c", script(page)],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=60 * minutes,
        check=False,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
    print(f"{page}: {time.monotonic() - began:.0f} s, of which {used:.0f} s of CPU", flush=True)
    assert done.returncode == 0, f"{page}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def scores(folder: Path, run: str) -> tuple[float, float]:
    """The first and the last evaluated success of a run."""
    lines = [json.loads(line) for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["eval/success"] for line in lines if "eval/success" in line]
    return evaluated[0], evaluated[-1]


def test_every_page_of_the_path_has_something_to_type() -> None:
    for page in (FIRST_TEAM, OWN_TASK, OWN_ALGORITHM, BENCHMARK):
        assert script(page).count("marft ") >= 2


@pytest.mark.slow
def test_a_first_team_is_trained_in_five_minutes(tmp_path: Path) -> None:
    follow(FIRST_TEAM, tmp_path, 5)
    before, after = scores(tmp_path, "first-team")
    assert before < 0.4 and after > 0.8


@pytest.mark.slow
def test_a_task_of_ones_own_is_trained_in_fifteen_minutes_and_not_without_its_D(tmp_path: Path) -> None:
    printed = follow(OWN_TASK, tmp_path, 15)
    before, after = scores(tmp_path, "parcels")
    assert "passed" in printed and after > max(before, 0.4)
    assert scores(tmp_path, "deaf")[1] < 0.35


@pytest.mark.slow
def test_an_algorithm_of_ones_own_learns_in_fifteen_minutes_and_is_benchmarked_in_ten(tmp_path: Path) -> None:
    follow(OWN_ALGORITHM, tmp_path, 15)
    before, after = scores(tmp_path, "mine")
    assert after > before + 0.2
    printed = follow(BENCHMARK, tmp_path, 10)
    assert "better-half" in printed and (tmp_path / "runs/bench/report.html").is_file()
