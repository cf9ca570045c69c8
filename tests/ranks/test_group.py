"""Real processes over gloo, on the loopback device: sums, what is gathered, agreed and told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from helpers.rank_processes import processes
from marft_algos.ranks.group import Alone, launched, power_of_two

SCRIPT = """
import os, sys, torch
from marft_algos.ranks.group import join
group = join(float(sys.argv[1]), torch.device("cpu"))
draws = torch.randn(4, 1001, generator=torch.Generator().manual_seed(0)) * 1e4
added = group.add(draws[group.rank].clone())
tree = (draws[0] + draws[1]) + (draws[2] + draws[3]) if group.size == 4 else draws[0] + draws[1]
assert torch.equal(added, tree)
assert group.gather({group.rank: "a" * group.rank}) == [{i: "a" * i} for i in range(group.size)]
assert [group.agree(group.rank == wanted) for wanted in range(group.size + 1)] == [True] * group.size + [False]
assert group.first(f"rank {group.rank}") == "rank 0"
if "dies" in sys.argv:
    if group.rank:
        os._exit(7)
    group.gather(1)
group.close()
print("done", group.rank, group.size)
"""


def run(tmp_path: Path, size: int, *words: str) -> list[subprocess.CompletedProcess[str]]:
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    return processes(script, size, "60", *words)


@pytest.mark.ci
def test_processes_add_gather_agree_and_follow_the_first(tmp_path: Path) -> None:
    done = run(tmp_path, 4)
    assert [one.stdout.strip() for one in done] == [f"done {rank} 4" for rank in range(4)], done[0].stderr


def test_a_rank_that_ends_is_noticed_by_those_who_wait_for_it(tmp_path: Path) -> None:
    waits, dead = run(tmp_path, 2, "dies")
    assert dead.returncode == 7
    assert waits.returncode == 1 and "done" not in waits.stdout and "peer" in waits.stderr.lower()


def test_a_number_of_ranks_that_is_no_power_of_two_is_refused_with_the_next_smaller_one(tmp_path: Path) -> None:
    for one in run(tmp_path, 3):
        assert one.returncode == 1 and "3 ranks cannot train together" in one.stderr and "--nproc 2" in one.stderr


def test_alone_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    group, x = Alone(), torch.ones(2)
    assert group.add(x) is x and group.gather(x) == [x] and group.first(x) is x
    assert group.agree(True) and not group.agree(False)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert launched() == 0


@pytest.mark.parametrize(("count", "fits"), [(0, False), (1, True), (2, True), (3, False), (8, True), (12, False)])
def test_powers_of_two(count: int, fits: bool) -> None:
    assert power_of_two(count) is fits
