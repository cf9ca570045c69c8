"""Benchmarks of speed take the path of a run; that of a GPU runs here on a tiny shape and says what is owed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import shapes
from benchmarks.speed import perf_gpu
from benchmarks.speed.perf_throughput import Bench
from benchmarks.team import Stage, build
from helpers.pretend_gpu import pretend_gpu


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in json.loads((folder / "perf_gpu.json").read_text())["rows"]}


class Unprofiled:
    """Stands in for torch's profiler, which cannot look into pretended tensors."""

    def __init__(self, activities: object) -> None:
        pass

    def __enter__(self) -> Unprofiled:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def key_averages(self) -> list[Any]:
        """No operator."""
        return []


def test_prompts_are_those_of_a_run(tmp_path: Path) -> None:
    """One agent's prompts share their profile, which is run once and not with the causal mask of random prompts."""
    policies = build(str(shapes.save(tmp_path / "model", shapes.tiny(32, 1))), 2)
    stage = Stage(policies, episodes=3, prompt=80, new=5)
    played = stage.play(0)
    stage.close()
    for i in range(2):
        first, second, third = (t.transitions[i].request.prompt_ids for t in played)
        head = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
        assert head > 20 and first != second != third
    assert all(60 <= len(t.transitions[0].request.prompt_ids) <= 90 for t in played)
    assert [len(turn.reply.action_ids) for t in played for turn in t.transitions] == [5] * 6
    assert all(t.transitions[1].turn.sees == (0,) for t in played)


@pytest.mark.slow
def test_it_runs_on_a_cpu_and_says_what_is_owed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    perf_gpu.main(["--device", "cpu", "--episodes", "2", "--new", "4", "--out", str(tmp_path)])
    assert perf_gpu.OWED in capsys.readouterr().out
    rows = rows_of(tmp_path)
    shown = {name for name in perf_gpu.AIMS if "--decode-graph" not in name}
    for name in ("rollout tokens/s", *shown, "most memory, GB"):
        assert rows[name]["value"] > 0 and rows[name]["verdict"] == ""
    assert rows["gap of sampler and learner, a token"]["value"] < 1e-5  # fp32
    assert "not measured" in rows["rollout tokens/s, --decode-graph"]["value"]


@pytest.mark.slow
@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="pretends what this build of torch has")
def test_what_only_a_gpu_measures_runs_on_a_pretended_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(total_memory=24e9, major=9, minor=0)
    for name, answer in {
        "get_device_properties": card,
        "get_device_name": "pretended",
        "max_memory_allocated": 2e9,
        "synchronize": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(perf_gpu, "profile", Unprofiled)
    monkeypatch.setattr(Bench, "machine", (1e10, 1e11))  # its product is one for a real GPU
    # Of a group's backward pass, torch makes zeros that do not pretend.
    parts = [part.__name__ for part in perf_gpu.PARTS if part is not perf_gpu.groups]
    small = ["--parts", *parts, "--shape", "tiny", "--episodes", "3", "--prompt", "24", "--new", "12", "--repeats", "1"]
    with pretend_gpu():
        assert perf_gpu.main(["--device", "cuda", *small, "--out", str(tmp_path)]) == 0
        assert perf_gpu.main(["--device", "cuda", *small, "--captured", "--out", str(tmp_path / "captured")]) == 0
    rows, captured = rows_of(tmp_path), rows_of(tmp_path / "captured")
    assert not [row for row in captured.values() if "FAILED" in str(row["value"])]
    assert captured.keys() == rows.keys() - {
        "rollout tokens/s",
        "rollout, s",
        "share of decoding's roofline",
        "tokens the same as without (bf16 rounds otherwise)",
        "different tokens of a reply (few: the row above says little)",
    }
    assert not [row for row in rows.values() if "FAILED" in str(row["value"])]
    assert rows["device"]["value"] == "pretended"
    assert rows["rollout tokens/s, --decode-graph"]["value"] > 0
    assert rows["share of decoding's roofline, --decode-graph"]["value"] > 0
    assert rows["tokens the same as without (bf16 rounds otherwise)"]["value"] > 0.5
    assert 0 < rows["gap of sampler and learner, a token"]["value"] < 0.1  # bf16


def test_a_part_that_fails_says_so_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nand more")

    def fine(_: object) -> dict[str, float]:
        return {"fine": 1.0}

    def left_out(_: object) -> dict[str, float]:
        raise AssertionError("--parts does not name it")

    monkeypatch.setattr(perf_gpu, "Bench", lambda _: None)
    monkeypatch.setattr(perf_gpu, "PARTS", (broken, fine, left_out))
    assert perf_gpu.main(["--device", "cpu", "--parts", "broken", "fine", "--out", str(tmp_path)]) == 1
    rows = rows_of(tmp_path)
    assert rows["broken"]["value"] == "FAILED: RuntimeError: CUDA error: no kernel image is available"
    assert rows["fine"]["value"] == 1.0
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value", "word"), [
    ("utilisation of the update", 0.3, "MISSED"), ("utilisation of the update", 0.4, "reached"),
    ("utilisation of the update", 0.6, "aim reached"), ("iteration, s", 30.0, "MISSED"),
    ("iteration, s", 20.0, "reached"), ("iteration, s", 9.0, "aim reached"),
])  # fmt: skip
def test_figures_are_judged_by_their_aims(name: str, value: float, word: str) -> None:
    assert perf_gpu.verdict(name, value).startswith(f"{word} (")
