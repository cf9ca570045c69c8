"""The benchmark of a GPU runs here on a tiny shape, says that a GPU's figures are owed, and judges by its aims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import perf_gpu

pytestmark = pytest.mark.slow


def test_it_runs_on_a_cpu_and_says_what_is_owed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    perf_gpu.main(["--device", "cpu", "--episodes", "2", "--new", "4", "--out", str(tmp_path)])
    assert perf_gpu.OWED in capsys.readouterr().out
    rows = {row["what"]: row for row in json.loads((tmp_path / "perf_gpu.json").read_text())["rows"]}
    for name in ("rollout tokens/s", *perf_gpu.AIMS, "most memory, GB"):
        assert rows[name]["value"] > 0 and rows[name]["verdict"] == ""


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("utilisation of the update", 0.3, "MISSED"),
        ("utilisation of the update", 0.4, "reached"),
        ("utilisation of the update", 0.5, "aim reached"),
        ("iteration, s", 30.0, "MISSED"),
        ("iteration, s", 20.0, "reached"),
        ("iteration, s", 11.0, "aim reached"),
    ],
)
def test_figures_are_judged_by_their_aims(name: str, value: float, word: str) -> None:
    assert perf_gpu.verdict(name, value).startswith(f"{word} (")
