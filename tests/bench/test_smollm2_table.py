"""``python -m benchmarks smollm2 --table --against JOB``: differences by hand, and of seeds that are not alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning import smollm2


def write(folder: Path, job: str, seed: int, outcomes: list[float], first: int = 0) -> None:
    after = [(f"problem/{first + k}", outcome, False) for k, outcome in enumerate(outcomes)]
    (folder / f"bf16-{job}-{seed}.json").write_text(json.dumps({"after": after}), encoding="utf-8")


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
    rows = cells(smollm2.differences("bf16", [0, 1, 2], "rft"))
    assert set(rows) == {"marft", "grpo"}
    first, second, third, mean = rows["marft"]
    assert first.startswith("+50.0 [+35.0, +6")
    assert (second, third) == ("+0.0 [+0.0, +0.0]", "")
    assert mean.startswith("+25.0 [+17.5, +3") and mean.endswith("(2)")
    assert rows["grpo"][:1] == [""] and rows["grpo"][3].startswith("+0.0 [-3") and rows["grpo"][3].endswith("(1)")


def test_seeds_that_were_not_played_on_the_same_problems_have_no_mean(folder: Path) -> None:
    for seed in (0, 1):
        write(folder, "rft", seed, [1, 0], first=2 * seed)
        write(folder, "marft", seed, [1, 1], first=2 * seed)
    with pytest.raises(ValueError, match=r"same problem in all seeds.*problem/0.*problem/2"):
        smollm2.differences("bf16", [0, 1], "rft")
