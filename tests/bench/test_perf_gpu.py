"""Benchmarks of speed take the path of a run; that of a GPU runs here on a tiny shape and says what is owed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import shapes
from benchmarks.speed import perf_gpu, perf_iteration
from benchmarks.team import Stage, build
from marft_envs import ConfigError


def test_prompts_are_those_of_a_run(tmp_path: Path) -> None:
    """One agent's prompts share their profile, which is run once and not with the causal mask of random prompts."""
    policies = build(str(shapes.save(tmp_path / "model", shapes.tiny(32, 1))), 2)
    stage = Stage(policies, episodes=3, prompt=80, new=5)
    played = stage.play(0)
    stage.close()
    for i in range(2):
        first, second, third = (t.transitions[i].prompt_ids for t in played)
        head = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        assert head > 20 and first != second != third
    assert all(60 <= len(t.transitions[0].prompt_ids) <= 90 for t in played)
    assert [len(turn.action_ids) for t in played for turn in t.transitions] == [5] * 6
    assert all(t.transitions[1].sees == (0,) for t in played)


def test_the_reference_is_named_where_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"math_dual\.json is not there. --reference takes a checkout"):
        perf_iteration.prepare(tmp_path, tmp_path / "nowhere", 1024)


@pytest.mark.slow
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
