"""Drills: what they touch, when they strike, what they would not let pass; each of them once where time does not count."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drills import rehearsal, stage
from benchmarks.drills.disk import SmallDisk
from benchmarks.drills.drill import main
from benchmarks.drills.faults import FAULT_TESTS, Pace, Strike, by_ranks, moments
from benchmarks.drills.rehearsal import Hit
from benchmarks.drills.stage import Line, Process, Run, running
from marft_envs.errors import ConfigError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
PACE = Pace({"rank": 5.0, "worker": 8.0}, [9.0, 10.0, 11.0, 12.0])
RAY = [name for name, fault_test in FAULT_TESTS.items() if fault_test.role == "worker"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Instead of a training: a shell with a child in a session of its own."""
    shell = tmp_path / "shell"
    shell.write_text("#!/bin/sh\nsetsid sleep 600 &\necho $!\necho $XDG_STATE_HOME\nwait\n")
    shell.chmod(0o700)
    monkeypatch.setattr(stage.sys, "executable", str(shell))
    (tmp_path / "folder").mkdir()
    return Run(tmp_path / "folder", ())


def test_a_drill_ends_all_that_it_has_started_and_touches_nothing_else(started: Run) -> None:
    with subprocess.Popen(["sleep", "600"]) as stranger:
        with running(started) as run:
            assert run.until(lambda: len(run.lines) == 2)
            child = int(run.lines[0].text)
            assert {run.pid, child} <= set(run.look()) and stranger.pid not in run.look()
            assert not run.send(stranger.pid, signal.SIGKILL)
            assert run.lines[1].text.startswith(str(run.folder)), "what the user's own folder remembers is left alone"
        assert run.look() == {} and run.code == -signal.SIGKILL
        assert stranger.poll() is None
        stranger.kill()
    assert not run.send(child, signal.SIGKILL), "it is over"


def test_moments_are_random_lie_in_different_iterations_and_come_again_with_their_seed() -> None:
    drawn = [moments(2, random.Random(seed), PACE, "worker") for seed in range(200)]
    assert drawn[7] == moments(2, random.Random(7), PACE, "worker")
    assert {m.after for pair in drawn for m in pair} == {-1, 0, 1, 2}
    for first, second in drawn:
        assert first.after < second.after
        assert 0 <= first.delay <= 1.0 and 0 <= second.delay <= 1.0
    assert len({m.delay for pair in drawn for m in pair}) == 400
    assert {m.after for seed in range(50) for m in moments(1, random.Random(seed), PACE, "rank", first=0)} == {0, 1, 2}


def test_a_restart_is_noticed_when_the_other_ranks_end_and_a_run_that_ends_has_noticed_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, ())
    for pid, role, first, last in [(1, "rank 0", 0, 12.4), (2, "rank 1", 0, 9.9), (3, "", 0, 30)]:
        run.seen[pid] = Process(pid, role, first, last)
    strike = Strike(10.0, "SIGKILL", 2)
    assert by_ranks(run, strike) is None
    run.seen[4] = Process(4, "rank 0", 14.0, 20.0)
    assert by_ranks(run, strike) == 12.4
    run.seen[1].last = 9.95
    assert by_ranks(run, strike) == 14.0


@pytest.mark.parametrize(
    ("name", "code", "noticed", "over", "said", "fault"),
    [
        ("kill-worker", 0, 3.0, False, "", ""),
        ("kill-worker", 0, None, True, "", ""),
        ("kill-worker", 0, None, False, "", "nobody noticed 'it'"),
        ("kill-worker", 0, 61.0, False, "", "noticed after 61 s, not within 60 s"),
        ("kill-worker", 1, 3.0, False, "", "ended with 1, not with 0"),
        ("full-disk", 0, 3.0, False, "", "ended with 0, not with 1"),
        ("full-disk", 1, 3.0, False, "No space left. What was saved before is\nintact", ""),
        ("full-disk", 1, 3.0, False, "No space left", "did not say 'What was saved before is intact'"),
    ],
)
def test_what_a_drill_does_not_let_pass(
    name: str, code: int, noticed: float | None, over: bool, said: str, fault: str, tmp_path: Path
) -> None:
    run = Run(tmp_path, (), lines=[Line(0.0, text) for text in said.splitlines()])
    faults = [*rehearsal._faults(FAULT_TESTS[name], code, [Hit("it", 1.0, noticed)], over, run)]
    assert len(faults) == bool(fault) and all(fault in found for found in faults)


class Pretended(Run):
    """A run that has ended, and whose checkpoint may be another one."""

    def start(self) -> Run:
        self.started = time.monotonic()
        return self

    def wait(self) -> int:
        self.ended = time.monotonic()
        return 0

    def struck(self) -> float | None:
        return time.monotonic()

    def digest(self) -> str:
        return "same" if "--retries" not in self.words else "other"

    def end(self) -> None:
        pass


def test_other_weights_are_a_failure_and_the_exit_code_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="needs the extra 'cluster'")
    monkeypatch.setattr(rehearsal, "Run", Pretended)
    monkeypatch.setattr(rehearsal.Rehearsal, "_pace", lambda self, kind: PACE)
    monkeypatch.setitem(FAULT_TESTS, "deadly-chunk", replace(FAULT_TESTS["deadly-chunk"], code=0, says=()))
    out = tmp_path / "out.json"
    assert main(["damaged-episode", "--times", "2", "--out", str(out)]) == 0
    assert main(["deadly-chunk", "--out", str(out)]) == 1
    said = capsys.readouterr().out
    assert "damaged-episode: 2 of 2 as promised" in said and "deadly-chunk: 0 of 1 as promised" in said
    assert "FAILED: the weights are not those of the undisturbed run" in said
    written = json.loads(out.read_text())
    assert written["damaged-episode"]["equal"] == 2 and written["deadly-chunk"]["as_promised"] == 0
    assert written["damaged-episode"]["command"].startswith("python -m benchmarks drill damaged-episode --times 2")


def test_without_a_name_drills_are_listed_and_an_unknown_one_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed and fault_test.then in listed for name, fault_test in FAULT_TESTS.items())
    with pytest.raises(ConfigError, match="Did you mean 'kill-worker'"):
        main(["kill-wroker"])


@pytest.mark.parametrize("text", ["[]", "no json", None])
def test_where_results_cannot_be_written_is_said_before_anything_fails(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal.Rehearsal, "digest", None)
    out = tmp_path / "out.json" if text is not None else tmp_path / "nowhere" / "out.json"
    if text is not None:
        out.write_text(text)
    with pytest.raises(ConfigError, match="Expected"):
        main(["kill-rank", "--out", str(out)])


def test_a_small_disk_is_full_for_those_on_it_and_there_is_room_again(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path)
        disk.__enter__()
    except ConfigError as refused:
        pytest.skip(str(refused))
    try:
        (disk.view / "before").write_text("there")
        assert not (tmp_path / "before").exists(), "others do not see it"
        SmallDisk.fill(disk.view, 4096)
        with pytest.raises(OSError) as full:
            (disk.view / "more").write_bytes(b"x" * 100_000)
        assert full.value.errno == errno.ENOSPC
        (disk.view / "more").unlink()
        SmallDisk.free(disk.view)
        written = subprocess.run([*disk.first, "sh", "-c", f"cat {tmp_path}/before"], capture_output=True, check=True)
        assert written.stdout == b"there"
    finally:
        disk.__exit__()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULT_TESTS)
def test_every_drill_does_what_it_promises(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    if name in RAY:
        pytest.importorskip("ray", reason="needs the extra 'cluster'")
    code: Any = main([name, "--seed", str(os.getpid())])
    assert code == 0, capfd.readouterr()
