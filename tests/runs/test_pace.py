"""How fast a run is and who waits: sums that can be done in the head, and what a stranger's file may hold."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marft_algos.config.settings import TrainConfig
from marft_algos.runs import disk
from marft_algos.runs.loggers import Display, brief
from marft_algos.runs.progress import RunProgress


def line(iteration: int, **more: Any) -> dict[str, Any]:
    known = {"iteration": iteration, "return": 0.5, "time_rollout": 6.0, "time_update": 4.0, "time_elapsed": 1.0}
    return {**known, "time_total": 12.0, "time_eval": 2.0, "tokens": 90, "tokens_played": 100, **more}


def workers(iteration: int, *played: float, **more: Any) -> dict[str, Any]:
    rows = [{"name": f"worker {i} on n{i}", "chunks": 1, "tokens": 50, "seconds": s} for i, s in enumerate(played)]
    return line(iteration, **{"engine/workers": len(played), "time_wait": 3.0, "time_players": rows, **more})


def test_shares_are_of_the_time_without_evaluations() -> None:
    lost = {"engine/restarts": 1, "engine/chunks_redone": 2, "engine/chunks_lost": 1}
    said = brief(workers(1, 5.0, 9.0, **lost))
    assert said == "10 tokens/s · 2 workers · learners wait 30% · workers 30% · replaced 1 · redone 2 · lost 1"


def test_ranks_that_play_wait_for_each_other_and_for_nobody_else() -> None:
    said = brief(line(1, **{"engine/ranks": 2, "time_wait": 3.0, "engine/rank_restarts": 1}, time_ranks=[1.0, 3.0]))
    assert said == "10 tokens/s · 2 ranks · wait for each other 20% · restarts 1"


def test_one_process_and_what_is_no_iteration_have_no_pace() -> None:
    assert brief(line(1)) == brief({"iteration": 0, "eval/success": 0.1, "engine/workers": 2}) == ""


@pytest.mark.parametrize("odd", [
    {"time_players": "many"}, {"time_players": [3, {"name": None, "seconds": "x"}]},
    {"time_ranks": ["a", None, 2.0], "engine/ranks": 2},
    {"engine/workers": float("nan"), "engine/ranks": float("inf"), "tokens": [], "tokens_played": {}},
    {"time_total": 0, "time_eval": 5},
])  # fmt: skip
def test_what_a_file_of_others_holds_is_no_error(odd: dict[str, Any]) -> None:
    brief(workers(1, 5.0, 9.0, **odd))


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder's lock."""
    code = f"""
import pathlib, sys
from marft_algos.runs import disk
with disk.held(pathlib.Path({str(tmp_path)!r}), "marft train"):
    print("held", flush=True)
    sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_who_writes_is_known_until_it_ends_however_it_ends(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    here = socket.gethostname()
    assert disk.writer(tmp_path) == (holder.pid, here)
    holder.kill()
    holder.wait()
    assert disk.writer(tmp_path) is None and (tmp_path / disk.FILE).read_text()
    (tmp_path / disk.FILE).write_text(json.dumps({"pid": os.getpid(), "host": "elsewhere"}))
    assert disk.writer(tmp_path) == (os.getpid(), "elsewhere")
    for odd in ("[]", "[" * 100_000, json.dumps({"pid": 10**40, "host": here}), '{"pid": 1e999, "host": "x"}'):
        (tmp_path / disk.FILE).write_text(odd)
        assert disk.writer(tmp_path) is None


def test_the_live_panel_has_the_pace_where_there_is_more_than_one_process() -> None:
    def shown(*lines: dict[str, Any]) -> str:
        console = Console(force_terminal=True, width=120, file=open(os.devnull, "w"))  # noqa: SIM115
        display = Display(5, 0, "relay", console)
        for row in lines:
            display.log(row)
        with console.capture() as text:
            console.print(display)
        return text.get()

    assert "learners wait 30%" in shown(workers(1, 5.0, 9.0)) and "tokens/s" not in shown(line(1))


def test_time_left_and_place_follow_the_budget_where_it_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = TrainConfig(iterations=1_000_000, token_budget=1000, latency_budget=400)
    progress, console = RunProgress(), Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
    clock = iter([0.0, 30.0, 30.0])
    monkeypatch.setattr("marft_algos.runs.loggers.time.monotonic", lambda: next(clock))
    display = Display(limits.iterations, 0, "relay", console, lambda: progress.share(limits))
    progress.iteration, progress.tokens, progress.latency = 5, 250, 300
    display.log({"iteration": 5, "return": 0.5, "time_total": 6.0})
    said = console.export_text()
    assert "iteration 5 (25 % of its budget)" in said, "both budgets end it, and this one is used up later"
    assert "left 1:30" in said, "30 s for a quarter"
    assert progress.share(dataclasses.replace(limits, iterations=10)) == 0.5
    assert progress.share(TrainConfig(iterations=20)) == 0.25
