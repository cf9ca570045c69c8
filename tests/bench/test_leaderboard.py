"""The site's leaderboard, and the files that it shows: packed benchmarks made up here; no run is made."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft_algos.cli import main
from marft_algos.config import settings as configs
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.grid_runs import GridRun
from website import leaderboard

PROBLEMS = 60
BUDGET = 1000
Levels = Mapping[str, Sequence[float]]
"""Label -> share of problems that each seed solves."""
LEVELS = {"grpo": (0.9, 0.92, 0.88), "rloo": (0.91, 0.89, 0.9), "untrained": (0.25, 0.25, 0.25)}


def config(label: str, seed: int, **changes: Any) -> dict[str, Any]:
    algo = label if label in ("grpo", "rloo") else "marft"
    iterations = {"iterations": 0} if label == "untrained" else {}
    return configs.build(
        {"env": "relay-v0", "algo": algo, "token_budget": BUDGET, "eval_episodes": PROBLEMS, "seed": seed}
        | iterations
        | changes
    ).table()


def outcomes(level: float, seed: int, problems: int = PROBLEMS) -> list[float]:
    solved = np.zeros(problems)
    solved[np.random.default_rng(seed).permutation(problems)[: round(level * problems)]] = 1
    return [float(y) for y in solved]


def result(table: Mapping[str, Any], solved: list[float]) -> dict[str, Any]:
    names = [f"relay-{i}" for i in range(len(solved))]
    score, tokens = sum(solved) / len(solved), 0 if table["iterations"] == 0 else BUDGET + 20
    point = {"iteration": 2, "tokens": tokens, "seconds": 1.0, "score": score, "outcomes": solved}
    drift = [{"tokens": BUDGET - 100}, {"tokens": tokens}] if tokens else []
    found = {"problems": list(names), "outcomes": solved, "infrastructure_errors": 0, "score": score, "tokens": tokens}
    return found | {"seconds": 1.0, "peak_memory": 1, "curve": [point], "drift": drift}


def benchmark(root: Path, levels: Levels = LEVELS, seeds: Sequence[int] = (0, 1, 2), **changes: Any) -> BenchFolder:
    """Writes the folder of a benchmark that has been run."""
    folder = BenchFolder(root)
    folder.prepare({"algorithms": list(levels), "baseline": "untrained"})
    grid_runs = []
    for label, shares in levels.items():
        for seed, share in zip(seeds, shares, strict=True):
            grid_run = GridRun("main", label, "relay-v0", "", seed, config=config(label, seed, **changes))
            grid_runs.append(grid_run)
            folder.write_result(grid_run.key, result(grid_run.config, outcomes(share, seed + 10 * len(grid_runs))))
    folder.write_stage("main", [grid_run.row() for grid_run in grid_runs])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> BenchFolder:
    return benchmark(tmp_path / "mine")


def first(folder: BenchFolder) -> str:
    return str(folder.described()["stages"]["main"][0]["key"])


def packed(folder: BenchFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packs a benchmark, as one types it beside its folder."""
    monkeypatch.chdir(folder.root.parent)
    assert main(["bench", "pack", folder.root.name]) == 0
    return folder.root.parent / f"{folder.root.name}.tar.xz"


def test_entries_are_sorted_by_score_and_compared_with_the_baseline_of_their_file(
    folder: BenchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed(folder, monkeypatch)
    pack = leaderboard.read(file)
    [board] = pack.boards
    assert (pack.name, pack.results, board.file) == ("mine.tar.xz", 9, "mine.tar.xz")
    assert (board.env, board.setting) == ("relay-v0", "relay-v0")
    assert f"{BUDGET:,} sampled tokens; evaluated on {PROBLEMS} episodes" in board.facts
    assert board.facts.endswith("baseline untrained.")
    assert [(line.algorithm, level) for line, level, _ in board.rows] == [
        ("grpo", True),
        ("rloo", True),
        ("untrained", False),
    ]
    monkeypatch.setattr(leaderboard, "FILES", [file])
    [(_, _, text)] = leaderboard.pages()
    assert pack.sha256 in text and "9 results" in text and board.facts in text
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><td>.*?</tr>", text)]
    rows = {row[0]: row[1:] for row in cells}
    assert list(rows) == ["grpo", "rloo", "untrained"]
    assert rows["grpo"][0].startswith("0.900 [") and rows["untrained"][0].startswith("0.250 [")
    assert ["≈" in row[0] for row in rows.values()] == [True, True, False]
    assert rows["untrained"][2] == "–" and rows["grpo"][2].startswith("+65.0 [")
    assert [row[3:5] for row in rows.values()] == [["3", "1 020"], ["3", "1 020"], ["3", "0"]]


def test_a_run_without_a_result_is_no_seed(folder: BenchFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.result_file(first(folder)).unlink()
    pack = leaderboard.read(packed(folder, monkeypatch))
    assert pack.results == 8
    [board] = pack.boards
    assert {line.algorithm: line.seeds for line, _, _ in board.rows} == {"grpo": 2, "rloo": 3, "untrained": 3}


def test_equal_results_make_an_equal_file_that_holds_them_and_no_runs(
    folder: BenchFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = packed(folder, monkeypatch)
    assert capsys.readouterr().out.startswith("9 results: mine.tar.xz")
    before = file.read_bytes()
    (folder.root / "runs/of-mine").mkdir()
    assert packed(folder, monkeypatch).read_bytes() == before
    with tarfile.open(file) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names)) == 2 + 2 * 9 and "mine/bench.json" in names
