"""A chunk that ended every worker is kept, and ``marft replay`` plays it as the run would have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos import seeds
from marft_algos.cli import main
from marft_algos.extras.cluster import kept
from marft_algos.extras.cluster.worker import pack
from marft_algos.rollout.episodes import Chunk, Prompts, cut
from marft_algos.training.parts import build
from marft_envs.errors import ConfigError


def test_what_is_kept_is_played_as_it_would_have_been(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny(tmp_path / "tiny")
    made = settings(model, tmp_path / "runs", iterations=1, record_every=1, record_episodes=12, chunk=4)
    untrained = build(made)
    weights = {p: (0, pack(untrained.policies.weights(p).tensors)) for p in untrained.policies.policies}
    _, run = train(made)
    chunks = cut(untrained.problems.train(made.seed, 0, 12), 4, 0)
    folder = kept.keep(run.lost, chunks[1], weights)
    assert folder.name == "iteration-000001-chunk-001" and kept.read(folder) == (chunks[1], weights)
    capsys.readouterr()
    assert main(["replay", str(folder)]) == 0
    said = capsys.readouterr().out
    played = list(run.episodes("train", 1))[4:8]
    found = re.findall(r"^ *(\d+)  (\S+) \(seed (\d+)\): .* return (\S+)$", said, re.MULTILINE)
    assert [(task, int(seed)) for _, task, seed, _ in found] == [(e.task_id, e.seed) for e in played]
    assert [float(score) for *_, score in found] == pytest.approx([e.team_return for e in played], rel=1e-2)
    assert "all of them were played" in said


def test_a_chunk_of_an_evaluation_is_kept_too_and_anything_else_is_refused(tmp_path: Path) -> None:
    chunk = Chunk(Prompts([1, 2], [{"split": "test"}, {}]), seeds.EVALUATION, place=3)
    folder = kept.keep(tmp_path / "lost", chunk, {})
    assert folder.name == "evaluation-chunk-003" and kept.read(folder) == (chunk, {})
    shapes = (
        {"options": [None, None]}, {"seeds": ["a", "b"]}, {"seeds": 3}, {"seeds": [1]}, {"seeds": None}, {"options": {}}
    )  # fmt: skip
    known = json.loads((folder / kept.FILE).read_text())
    others = [known | {"prompts": known["prompts"] | shape} for shape in shapes]
    others += [known | {"first": "x"}, known | {"keep": "everything"}, known | {"policies": {"a": None}}]
    odd = ["[" * 100_000, *map(json.dumps, others)]
    for text in (*odd, "", "[]", "{}", '{"policies": {"a": 1}, "prompts": {}}', '{"policies": 3, "prompts": {}}'):
        (folder / kept.FILE).write_text(text)
        with pytest.raises(ConfigError, match="holds no chunk that was kept"):
            kept.read(folder)
    assert main(["replay", str(tmp_path)]) == 1
