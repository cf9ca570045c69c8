"""A grid whose runs begin with demonstrations: the setting ``warm_start`` in cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft_algos.config import presets
from marft_algos.config import settings as configs
from marft_algos.extras.bench import worker
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.runs.folder import RunFolder

QUICK = {
    "preset": "toy", "env": "relay-v0", "warm_start": 10, "iterations": 0, "episodes_per_iteration": 64, "eval_every": 0,
    "eval_episodes": 8, "lora_r": 8,
}  # fmt: skip


def made(folder: BenchFolder, key: str, **changes: Any) -> tuple[dict[str, Any], RunFolder]:
    config = configs.build(QUICK | changes, configs.build(presets.get("toy"))).table()
    job = {"key": key, "kind": "train", "config": config, "contribution": 0, "samples": 2, "sources": []}
    result = worker.make(folder, job)
    sampled = worker.sampled(folder, job)
    return result | {"sampled": sampled}, RunFolder.open(folder.runs / key)


@pytest.mark.ci
def test_cells_begin_with_the_warm_start_that_they_ask_for_and_share_it(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path)
    cold, _ = made(folder, "cold", warm_start=0)
    untrained, run = made(folder, "untrained")
    _, trained = made(folder, "trained", iterations=1)
    assert untrained["score"] > cold["score"], "the untrained team of such a grid is the warm-started one"
    assert sum(untrained["sampled"]) > sum(cold["sampled"]), "and is the one that is sampled"
    warm = sorted(path.name for path in folder.runs.iterdir() if path.is_dir() and path.name.startswith("warm-"))
    assert len(warm) == 1
    assert [r.metrics()[0]["eval/success"] for r in (run, trained)] == [untrained["score"]] * 2
    again, _ = made(folder, "trained", iterations=1)
    assert again["iterations"] == 1, "a cell that goes on makes no further one"


@pytest.mark.ci
def test_runs_with_other_batches_begin_alike_if_the_demonstrations_are_counted_apart(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path)
    few = {"warm_start": 1, "eval_episodes": 2}
    for episodes in (4, 8):
        made(folder, f"apart-{episodes}", episodes_per_iteration=episodes, **few)
    assert len(list(folder.runs.glob("warm-*"))) == 2, "two batches, two warm starts"
    for episodes in (4, 8):
        made(folder, f"alike-{episodes}", episodes_per_iteration=episodes, warm_episodes=6, **few)
    warm = [RunFolder.open(path) for path in folder.runs.glob("warm-*")]
    assert sorted(configs.load(run.config_file).episodes_per_iteration for run in warm) == [4, 6, 8]


@pytest.mark.ci
def test_another_seed_has_a_warm_start_of_its_own(tmp_path: Path) -> None:
    folder = BenchFolder(tmp_path)
    for seed in (0, 1):
        made(folder, str(seed), seed=seed, warm_start=1, episodes_per_iteration=4, eval_episodes=2)
    assert len([path for path in folder.runs.iterdir() if path.name.startswith("warm-") and path.is_dir()]) == 2
