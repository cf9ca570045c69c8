"""``python -m benchmarks smollm2 --table --against JOB``: differences by hand, and of seeds that are not alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.learning import smollm2
from marft_algos.extras.bench import tables
from marft_algos.extras.bench.statistics import estimate
from marft_envs.errors import ConfigError


def write(
    folder: Path,
    job: str,
    seed: int,
    outcomes: Sequence[float],
    first: int = 0,
    setting: str = "bf16",
    before: Sequence[float] = (),
) -> None:
    sides = {"before": before, "after": outcomes}
    records = {when: [(f"problem/{first + k}", x, False) for k, x in enumerate(side)] for when, side in sides.items()}
    result = {**records, "evaluations": {"0": 0.5, "12": 0.625, "24": 0.75}, "cpu_seconds": 60, "swapped": None}
    (folder / f"{setting}-{job}-{seed}.json").write_text(json.dumps(result), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(smollm2, "RESULTS", tmp_path)
    return tmp_path


def cells(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return {job: rest for job, *rest in rows}


def test_differences_are_paired_by_problem_and_their_mean_is_over_the_seeds_there_are(folder: Path) -> None:
    for seed in (0, 1):
        write(folder, "rft", seed, [1, 1, 0, 0] * 10)
    write(folder, "marft", 0, [1, 1, 1, 1] * 10)
    write(folder, "marft", 1, [1, 1, 0, 0] * 10)
    write(folder, "grpo", 1, [0, 0, 1, 1] * 10)
    rows = cells(smollm2.differences(["bf16"], [0, 1, 2], "rft"))
    assert set(rows) == {"marft", "grpo"}
    first, second, third, mean = rows["marft"]
    assert first.startswith("+50.0 [+35.0, +6")
    assert (second, third) == ("+0.0 [-8.8, +8.8]", "")
    assert mean == "+25.0 (2)", "two seeds say next to nothing of others"
    assert rows["grpo"][0] == rows["grpo"][3] == "" and rows["grpo"][1].startswith("+0.0 [-3")


def test_a_mean_over_three_seeds_has_the_interval_of_seeds_and_problems(folder: Path) -> None:
    """Runs that gain 0, 10 and 50 points say little of a fourth; a bootstrap over their problems would."""
    better = [[1, 1, 0, 0] * 10, [1, 1, 0, 0] * 8 + [1, 1, 1, 1] * 2, [1, 1, 1, 1] * 10]
    for seed in range(3):
        write(folder, "rft", seed, [1, 1, 0, 0] * 10)
        write(folder, "marft", seed, better[seed])
    (row,) = cells(smollm2.differences(["bf16"], [0, 1, 2], "rft")).values()
    found = estimate([np.array(better) - np.array([1.0, 1, 0, 0] * 10)], difference=True)
    assert row[3] == f"{tables.points(found)} (3)" and row[3].startswith("+20.0 [-")


def test_pooled_runs_are_those_of_all_settings(folder: Path) -> None:
    for setting, solved in (("bf16", 20), ("gpu", 40)):
        for seed in (0, 1):
            write(folder, "rft", seed, [0] * 40, setting=setting)
            write(folder, "marft", seed, [1] * solved + [0] * (40 - solved), setting=setting)
    (row,) = cells(smollm2.differences(["bf16", "gpu"], [0, 1], "rft")).values()
    assert row[2].startswith("+100.0") and row[4].startswith("+75.0 [") and row[4].endswith("(4)")


def test_runs_of_two_settings_are_paired_by_job_seed_and_problem(folder: Path) -> None:
    for seed in (0, 1, 2):
        write(folder, "rft", seed, [1, 0] * 20)
        write(folder, "rft", seed, [1, 1] * 20, setting="gpu")
        write(folder, "marft", seed, [1, 0] * 20, setting="gpu")
    rows = cells(smollm2.across(("bf16", ""), ("gpu", ""), [0, 1, 2]))
    assert list(rows) == ["gpu:rft over bf16:rft"] and rows["gpu:rft over bf16:rft"][3].startswith("+50.0 [")
    rows = cells(smollm2.across(("bf16", "rft"), ("gpu", "marft"), [0, 1, 2]))
    assert rows["gpu:marft over bf16:rft"][3].startswith("+0.0 [-")
    with pytest.raises(ConfigError, match="No result"):
        smollm2.across(("bf16", "grpo"), ("gpu", "grpo"), [0])
    with pytest.raises(ConfigError, match="One side"):
        smollm2.across(("bf16", "rft"), ("gpu", ""), [0])


def test_a_gain_has_a_mean_over_seeds(folder: Path) -> None:
    for seed in range(3):
        write(folder, "marft", seed, [1, 1, 1, 0] * 10, before=[1, 1, 0, 0] * 10)
    row = cells(smollm2.report("bf16", [0, 1, 2]))["marft"]
    assert row[3].startswith("+25.0 [+") and row[4] == "0.625; 0.625; 0.625"


def test_seeds_that_were_not_played_on_the_same_problems_have_no_mean(folder: Path) -> None:
    for seed in (0, 1):
        write(folder, "rft", seed, [1, 0], first=2 * seed)
        write(folder, "marft", seed, [1, 1], first=2 * seed)
    with pytest.raises(ConfigError, match="not scored on the same problems"):
        smollm2.differences(["bf16"], [0, 1], "rft")
