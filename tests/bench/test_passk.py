"""pass@k over seeds and problems: counts of evaluations against drawing every k of the samples."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import passk
from helpers.viewed import episode, write_lines
from marft_envs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
RIGHT = {"ours-0": [4, 1], "ours-1": [3, 0], "ours-2": [2, 2], "base-0": [1, 0], "base-1": [2, 0], "base-2": [0, 1]}


def written(folder: Path, right: dict[str, list[int]], samples: int = 4) -> list[Path]:
    for name, counts in right.items():
        lines = [episode(seed, i < c) for seed, c in enumerate(counts) for i in range(samples)]
        write_lines(folder / name / "episodes.jsonl", lines)
    return [folder / name for name in right]


def test_shares_are_those_of_all_draws_and_differences_are_paired(tmp_path: Path) -> None:
    samples, counts = passk.counted(written(tmp_path, RIGHT))
    assert samples == 4 and counts == RIGHT

    def drawn(c: int, k: int) -> float:
        """The share of all draws of k of four samples, of which c are right, that hold a right one."""
        return float(np.mean([any(i < c for i in draw) for draw in combinations(range(4), k)]))

    head, *body = passk.rows(samples, counts, "base")
    assert head == ["k", "base", "ours", "ours less base"] and [line[0] for line in body] == ["1", "2", "4"]
    for k, *told, gap in body:
        means = [
            100 * np.mean([drawn(c, int(k)) for name, one in RIGHT.items() for c in one if name.startswith(row)])
            for row in ("base", "ours")
        ]
        assert told == [f"{mean / 100:.3f}" for mean in means]
        assert gap.startswith(f"{means[1] - means[0]:+.1f} [")
    fewer = {name: one for name, one in counts.items() if name != "ours-2"}
    assert passk.rows(samples, fewer, "base")[0] == ["k", "base", "ours"], "other seeds are no pairs"
    once = {**counts, "start-0": [0, 0]}
    head, first, *_ = passk.rows(samples, once, "base")
    assert head[-1] == "start less base" and first[-1].startswith(f"{-100 * float(first[1]):+.1f} ["), (
        "against each seed"
    )
    with pytest.raises(ConfigError, match=r"No evaluation is of the row 'bas'.*base"):
        passk.rows(samples, counts, "bas")


def test_evaluations_of_other_problems_or_with_lost_samples_are_refused(tmp_path: Path) -> None:
    first, second = written(tmp_path, {"ours-0": [4, 1], "base-0": [1, 0, 2]})
    with pytest.raises(ConfigError, match="differ in problems or samples"):
        passk.counted([first, second])
    lines = (first / "episodes.jsonl").read_text().splitlines()
    write_lines(first / "episodes.jsonl", lines[:-1])
    with pytest.raises(ConfigError, match="no infrastructure errors"):
        passk.counted([first])
    with pytest.raises(ConfigError, match=r"Cannot read .*nowhere.*Expected a file of counts, or folders"):
        passk.counted([tmp_path / "nowhere"])


def test_the_page_says_what_is_stored() -> None:
    stored = json.loads((ROOT / "benchmarks/results/passk.json").read_text())
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8").replace("−", "-")
    head, *body = passk.rows(stored["samples"], stored["right"], "r4")
    assert head == ["k", "m4", "r4", "untrained", "m4 less r4", "untrained less r4"]
    shown = [line for line in body if f"| {' | '.join((line[0], line[3], line[1], line[2], line[4]))} |" in page]
    assert [line[0] for line in shown] == ["1", "4", "8", "16", "64"]
    assert body[-1][5] == "+3.5 [+0.3, +6.9]" and "solves 3.5 points [0.3, 6.9] fewer" in " ".join(page.split())
