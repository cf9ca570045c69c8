"""Tables of published numbers: what is printed from kept results, and what is said at once where they are not enough."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import checker, gradients, quickstart
from marft_algos.workbench.bench.folder import BenchFolder
from marft_envs.errors import ConfigError

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def test_the_quickstart_is_told_by_seed_and_in_the_mean() -> None:
    solved = ("1" * 30 + "0" * 10, "1" * 20 + "0" * 20, "1" * 40)
    costs = {"tokens": 198_000, "cpu_seconds": 61.2}
    runs = [
        {"command": f"marft train --seed {s}", "before": "10" * 20, "after": bits, **costs}
        for s, bits in enumerate(solved)
    ]
    *_, first, second, third, mean = (
        [cell.strip() for cell in x.split("|")] for x in quickstart.page(runs).splitlines()
    )
    assert first[1:3] == ["0", "0.500 [0.352, 0.648]"] and first[4].startswith("+25.0 [")
    assert second[3].startswith("0.500 [") and third[3].startswith("1.000 [")
    assert mean[1] == "mean of 3" and mean[3].startswith("0.750 [") and mean[3].endswith("0.500 to 1.000")
    low, high = (float(x.strip("[],")) for x in mean[4].split()[1:])
    assert low < 0 < 25 < high, "three runs that end at .5, .75 and 1 show no gain"


def test_packed_checkers_cannot_be_played_and_that_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    with tarfile.open(RESULTS / "checker.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    folder = BenchFolder(tmp_path / "checker")
    rows = [row for row in folder.rows() if row["status"] == "done" and row["kind"] == "train" and row["tokens"]]
    with pytest.raises(ConfigError, match=r"trained runs of .* are not in .*marft bench run") as raised:
        checker.check(folder, rows)
    assert f"{len(rows)} of the {len(rows)}" in str(raised.value)


def test_a_base_model_in_a_folder_that_is_not_there_is_asked_of_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row: dict[str, Any] = {"key": "k"}
    folder = BenchFolder(Path("runs/checker"))
    (folder.runs / "k").mkdir(parents=True)
    (folder.runs / "k/config.toml").write_text("", encoding="utf-8")
    folder.job_file("k").parent.mkdir()
    for models in ("runs/embedded-search", {"a": "embedded", "b": "runs/embedded-search"}):
        folder.job_file("k").write_text(json.dumps({"config": {"models": models}}), encoding="utf-8")
        with pytest.raises(ConfigError, match=r"no folder 'runs/embedded-search'.*make_embedded"):
            checker.check(folder, [row])
    Path("runs/embedded-search").mkdir()
    checker.check(folder, [row])


def test_kept_gradients_are_printed_without_a_run() -> None:
    (first, *_) = sorted(gradients.RESULTS.glob("*.json"))
    found = gradients.read(first)
    assert set(found) == {"reasoner_0", "actor_0"} and np.array(found["actor_0"]).shape == (256, 4)
