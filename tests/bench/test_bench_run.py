"""A tiny benchmark, really run: killed, resumed, with a failed cell; its report; and a check against itself."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from marft_algos.extras.bench import run
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.packed import pack
from marft_algos.runs.folder import RunFolder
from marft_envs.errors import ConfigError

pytestmark = pytest.mark.slow  # real processes, killed and started again

GRID = """
algorithms = ["marft", "grpo", "awr"]
envs = ["relay-v0"]
seeds = [0, 1]
token_budget = 100
controls = ["untrained"]
baseline = "untrained"
contribution = 4

[settings]
eval_episodes = 8
episodes_per_iteration = 16

[algorithm.awr]
algo = "examples.custom_algorithm:AWR"
settings = { beta = 0.7 }
"""
ROOT = Path(__file__).resolve().parents[2]


def start(grid: Path, out: Path) -> subprocess.Popen[str]:
    """`marft bench run` in a process group of its own, so that it can be killed with everything it started."""
    command = [
        sys.executable,
        "-m",
        "marft_algos",
        "bench",
        "run",
        str(grid),
        "--out",
        str(out),
        "--trust",
    ]  # its algorithm is a module
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchFolder, list[str], str]:
    """The benchmark after it was killed with a run under way, and resumed; what was done before, and the second output."""
    out = tmp_path_factory.mktemp("bench") / "tiny"
    grid = out.with_suffix(".toml")
    grid.write_text(GRID)
    first = start(grid, out)
    assert first.stdout is not None
    next(line for line in first.stdout if line.startswith("[1/"))  # one cell is done, the next has started
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()
    before = sorted(p.name for p in (out / "results").glob("*.json"))
    second = start(grid, out)
    said, _ = second.communicate(timeout=500)
    assert second.returncode == 0, said
    return BenchFolder(out), before, said


def test_a_killed_benchmark_goes_on_and_runs_nothing_twice(done: tuple[BenchFolder, list[str], str]) -> None:
    folder, before, said = done
    rows = folder.rows()
    assert len(before) < len(rows) == 8 and {r["status"] for r in rows} == {"done"}
    assert said.count("there already") == len(before) >= 1
    assert sorted({(r["algorithm"], r["seed"]) for r in rows}) == [
        (a, s) for a in ("awr", "grpo", "marft", "untrained") for s in (0, 1)
    ]


def test_a_terminated_benchmark_ends_its_runs_and_they_save_what_they_learned(tmp_path: Path) -> None:
    grid, out = tmp_path / "long.toml", tmp_path / "long"
    grid.write_text(GRID.replace("token_budget = 100", "token_budget = 1000000"))
    process = start(grid, out)
    try:
        end = time.monotonic() + 120
        while not any(len(file.read_text().splitlines()) > 2 for file in out.glob("runs/*/metrics.jsonl")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        process.terminate()  # the benchmark alone, as a scheduler or `kill` does
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130 and "failed" not in said, said
        with pytest.raises(ProcessLookupError):
            for _ in range(300):  # the server of its processes ends a moment after it
                os.killpg(process.pid, 0)
                time.sleep(0.1)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not [*out.glob("results/*.json")]
    steps = {file.name for file in out.glob("runs/*/checkpoints/step_*")}
    assert steps - {"step_000000"}, steps


def test_runs_that_end_while_others_start_keep_their_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status that two threads read at once is lost to one of them: a finished run was told to have failed with 255."""
    monkeypatch.setattr(run, "worker_process", max)  # ends at once, well
    stage = run._Stage(BenchFolder(tmp_path), [], print)
    stage._context.set_forkserver_preload([])
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda i: stage._process(str(i)), range(150))) == {0}


def test_rows_hold_outcomes_problem_by_problem_and_what_they_cost(done: tuple[BenchFolder, list[str], str]) -> None:
    rows = done[0].rows()
    assert len({tuple(r["problems"]) for r in rows}) == 1, "everybody is scored on the same panel"
    for row in rows:
        assert len(row["outcomes"]) == len(row["problems"]) == 8
        assert row["score"] == pytest.approx(sum(row["outcomes"]) / 8)
        assert row["peak_memory"] > 2**20
        if row["algorithm"] == "untrained":
            assert row["tokens"] == row["iterations"] == row["train_score"] == 0
        else:
            # Two turns of at most two tokens in 16 episodes: the budget ends the run, an iteration at most above it.
            assert 100 <= row["tokens"] < 100 + 64 and row["iterations"] == 2
            assert set(row["contribution"]) == {"", "planner_0", "solver_0"}
            played = RunFolder.open(done[0].runs / row["key"]).metrics()[1:]
            area = sum(line["tokens_played"] * line["success"] for line in played) / row["tokens"]
            assert row["train_score"] == pytest.approx(area)


def test_the_report_is_whole_and_stands_alone(done: tuple[BenchFolder, list[str], str]) -> None:
    folder = done[0]
    page = folder.report().read_text()
    assert "http-equiv" in page and "<svg" in page and 'src="' not in page and "no interval: 2 of 3 seeds" in page
    assert f"marft bench run {folder.grid_file}" in page and page.count("marft train --config") == 8
    for name in ("efficiency_tokens", "efficiency_seconds", "iqm", "profiles", "contribution"):
        for kind in ("svg", "png"):
            assert (folder.root / "figures" / f"{name}.{kind}").stat().st_size > 1000
    assert not (folder.root / "figures" / "kl.svg").exists(), "one step a batch: nothing drifts, and no empty figure"
    stored = [json.loads(line) for line in folder.results_file.read_text().splitlines()]
    assert [r["key"] for r in stored] == [r["key"] for r in folder.rows()]
    lines = list(csv.DictReader((folder.root / "summary.csv").read_text().splitlines()))
    assert [x["algorithm"] for x in lines] == ["marft", "grpo", "awr", "untrained"] and all(
        x["mean_low"] == "" for x in lines
    )
    tasks = json.loads((folder.root / "marl_eval.json").read_text())["marft"]
    steps = tasks["relay-v0"]["grpo"]["seed_0"]
    assert steps["step_0"]["step_count"] == 0 and len(steps["absolute_metrics"]["return"]) == 8


def test_packed_results_are_where_another_checkout_goes_on(
    done: tuple[BenchFolder, list[str], str], tmp_path: Path
) -> None:
    folder = done[0]
    stray = folder.result_file("of-a-cell-that-was-in-the-grid-before")
    stray.write_text("{}")
    for name in ("one", "two"):
        assert pack(folder, tmp_path / name) == 8
    stray.unlink()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with tarfile.open(tmp_path / "one") as archive:
        archive.extractall(tmp_path, filter="data")
    there = BenchFolder(tmp_path / folder.root.name)
    assert there.rows() == folder.rows() and not there.runs.exists()
    again = start(there.grid_file, there.root)
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0 and said.count("there already") == 8, said


def test_another_versions_folder_is_refused(done: tuple[BenchFolder, list[str], str], tmp_path: Path) -> None:
    described = json.loads(done[0].bench_file.read_text())
    (tmp_path / "bench.json").write_text(json.dumps(described | {"version": "0.0.1"}))
    with pytest.raises(ConfigError, match=r"made by marft 0\.0\.1"):
        BenchFolder(tmp_path).rows()
    with pytest.raises(ConfigError, match=r"made by marft 0\.0\.1"):
        BenchFolder(tmp_path).prepare({})


# Without running anything --------------------------------------------------------------------------
