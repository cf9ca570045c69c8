"""What goes wrong on purpose does so once, where it was planned; outside a drill nothing does."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.drills import sabotage
from benchmarks.drills.stage import DEADLY, MARK, PLAN, STRUCK
from marft_algos.algorithms.marft import MARFT
from marft_algos.extras.cluster.worker import HashedBytes, TransferError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MARK, str(tmp_path))
    return tmp_path


def group(seed: int) -> Any:
    return [SimpleNamespace(episode=SimpleNamespace(seed=seed))]


def test_outside_a_drill_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(MARK, raising=False)
    assert not any(sabotage.Deadly().now() for _ in range(50))
    monkeypatch.setenv(MARK, str(tmp_path))
    assert not any(sabotage.Deadly().now() for _ in range(50)), "nothing is planned"


def test_one_of_several_processes_strikes_once_at_the_planned_call(folder: Path) -> None:
    (folder / PLAN).write_text("3")
    one, other = sabotage.Saboteur(), sabotage.Saboteur()
    assert [one.now(), other.now(), one.now(), one.now(), other.now(), other.now(), one.now()] == [False] * 3 + [
        True,
        *[False] * 3,
    ]
    assert (folder / STRUCK).is_file()


@pytest.mark.parametrize("kind", [sabotage.DamagesEpisodes, sabotage.DamagesWeights, sabotage.Deadly])
def test_what_strikes_in_workers_does_not_count_losses(kind: type[MARFT]) -> None:
    assert kind.surrogate is MARFT.surrogate


def test_episodes_are_damaged_once(folder: Path) -> None:
    (folder / PLAN).write_text("2")
    saboteur = sabotage.DamagesEpisodes()
    arrived = []
    for _ in range(4):
        saboteur.wanted([])
        try:
            arrived.append(HashedBytes.of(b"episodes").checked("they") == b"episodes")
        except TransferError:
            arrived.append(False)
    assert arrived == [True, False, True, True]


def test_an_episode_is_deadly_for_everybody_from_then_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / PLAN).write_text("2")
    killed: list[int] = []
    monkeypatch.setattr(sabotage.os, "kill", lambda pid, number: killed.append(pid))
    first, second = sabotage.Deadly(), sabotage.Deadly()
    first.wanted(group(1))
    first.wanted(group(2))
    assert killed == [os.getpid()]
    second.wanted(group(1))
    second.wanted(group(2))
    assert len(killed) == 2
    (folder / DEADLY).unlink()
    second.wanted(group(2))
    assert len(killed) == 2, "it is mended"


def test_a_bit_of_a_weight_that_the_loss_depends_on_is_flipped() -> None:
    weight = torch.tensor([[0.5, -4.0], [1.0, 2.0]], requires_grad=True)
    before = weight.detach().clone()
    sabotage.Flips().strike((torch.ones(3, 2) @ weight).tanh().sum())
    differs = (weight.detach() != before).nonzero().tolist()
    assert differs == [[0, 1]], "the largest, which no step rounds away"
