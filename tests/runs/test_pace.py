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

from marft_algos.cli import main
from marft_algos.config.settings import TrainConfig
from marft_algos.runs import disk
from marft_algos.runs.loggers import Display
from marft_algos.runs.pace import Pace
from marft_algos.runs.progress import Progress


def line(iteration: int, **more: Any) -> dict[str, Any]:
    known = {"iteration": iteration, "return": 0.5, "time_rollout": 6.0, "time_update": 4.0, "time_elapsed": 1.0}
    return {**known, "time_total": 12.0, "time_eval": 2.0, "tokens": 90, "tokens_played": 100, **more}


def workers(iteration: int, *played: float, **more: Any) -> dict[str, Any]:
    rows = [{"name": f"worker {i} on n{i}", "chunks": 1, "tokens": 50, "seconds": s} for i, s in enumerate(played)]
    return line(iteration, **{"engine/workers": len(played), "time_wait": 3.0, "time_players": rows, **more})


def test_shares_are_of_the_time_without_evaluations() -> None:
    pace = Pace.of([workers(1, 5.0, 9.0), workers(2, 6.0, 8.0, **{"engine/restarts": 1, "engine/chunks_redone": 2})])
    assert pace is not None and (pace.iterations, pace.seconds, pace.rate) == (2, 20.0, 10.0)
    assert pace.learners_wait == pytest.approx(6 / 20)
    assert pace.players_wait == pytest.approx(1 - 28 / 40)
    assert [(p.name, p.tokens, p.seconds) for p in pace.players] == [
        ("worker 0 on n0", 100, 11.0),
        ("worker 1 on n1", 100, 17.0),
    ]
    assert (pace.restarts, pace.redone, pace.lost) == (1, 2, 0)
    assert "2 workers · learners wait 30% · workers 30% · replaced 1 · redone 2" in pace.brief()


def test_ranks_that_play_wait_for_each_other_and_for_nobody_else() -> None:
    ranks = {"engine/ranks": 2, "time_wait": 3.0}
    lines = [line(1, **ranks, time_ranks=[1.0, 3.0]), line(2, **ranks, time_ranks=[2.0, 2.0])]
    pace = Pace.of(lines)
    assert pace is not None and pace.ranks_wait == pytest.approx((3 + 5) / 2 / 20) and list(pace.among) == [3.0, 5.0]
    assert pace.learners_wait == pace.players_wait == 0.0


def test_ages_of_turns_are_averaged_over_iterations() -> None:
    pace = Pace.of(
        [line(1), line(2, **{"behind/1/share": 1.0, "behind/1/gap": 3.0}), line(3, **{"behind/2/share": 0.6})]
    )
    assert pace is not None and pace.behind == pytest.approx({1: 1 / 3, 2: 0.2})


def test_before_the_first_iteration_there_is_no_pace() -> None:
    assert Pace.of([{"iteration": 0, "eval/success": 0.1, "time_total": 3.0}]) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"time_players": "many"},
        {"time_players": [3, {"name": None, "tokens": "x"}, {"name": "[red]\x1b[2J", "tokens": 1, "seconds": 1}]},
        {"time_ranks": ["a", None, 2.0]},
        {"engine/workers": float("nan"), "tokens": [], "tokens_played": {}},
        {"behind//share": 1, "behind/x/share": 1, "behind/1/share": "all"},
        {"time_total": 0, "time_eval": 5},
    ],
)
def test_what_a_stranger_wrote_is_shown_or_left_out(
    odd: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path, [line(1, **odd), line(2, **odd)])
    assert main(["top", str(run), "--once"]) == 0
    out = capsys.readouterr().out
    assert "iteration 2/5" in out and "\x1b" not in out


def folder(tmp_path: Path, lines: list[dict[str, Any]]) -> Path:
    (tmp_path / "config.toml").write_text('env = "relay-v0"\nalgo = "marft"\niterations = 5\n')
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return tmp_path


def test_top_says_who_idles_who_was_lost_and_what_was_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"engine/publish_bytes": 3e6, "time_publish": 0.5, "engine/chunks_lost": 1, "behind/1/share": 1.0}
    restarted = {"engine/rank_restarts": 2, "time_restart": 7.0}
    run = folder(tmp_path, [line(0), *(workers(i, 5.0, 9.0, **more, **restarted) for i in (1, 2, 3))])
    assert main(["top", str(run), "--once", "--last", "2"]) == 0
    rows = {" ".join(text.split()) for text in capsys.readouterr().out.splitlines()}
    assert {
        "who learns waits for episodes 30.0% 30.0%",
        "workers play nothing 30.0% 30.0%",
        "tokens/s 10 10",
        "of a player 5 5",
        "turns 1 update old 100.0% 100.0%",
        "MB 3.00 3.00",
        "chunks lost 1 2",
        "all ranks started again 2 2",
        "and what that took, s 7.0 14.0",
        "worker 1 on n1 2 0 100 6 90.0%",
    } <= rows


def test_a_run_that_is_over_or_that_is_none_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", str(folder(tmp_path, [])), "--once"]) == 0
    assert "no iteration is done yet" in capsys.readouterr().out
    assert main(["top", str(tmp_path / "none"), "--once"]) == 1
    assert "is no run" in capsys.readouterr().err


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
    progress, console = Progress(), Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115
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
