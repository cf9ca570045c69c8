"""Ranks that have to hold the same: what counts as the same, and who is named where they do not."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from helpers.thread_ranks import ThreadRank, together
from marft_algos.ranks.consistency import RanksDiffer, check_state, digest
from marft_algos.ranks.group import Alone


def state() -> dict[str, Any]:
    return {
        "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(0)},
        "steps": [{"step": torch.tensor(3.0), "lr": 1e-3}, None],
        "bf16": torch.ones(3, dtype=torch.bfloat16),
    }


def flipped(bit: int) -> dict[str, Any]:
    found = state()
    found["weights"]["a"].view(-1)[4:5].view(torch.int32).bitwise_xor_(1 << bit)
    return found


def test_a_digest_is_of_every_bit_and_not_of_the_order_of_names() -> None:
    wanted = digest(state())
    assert digest(dict(reversed(state().items()))) == wanted
    assert digest({**state(), "bf16": state()["bf16"].clone()}) == wanted
    transposed = state()
    transposed["weights"]["a"] = state()["weights"]["a"].T.contiguous().T  # the same numbers, laid out otherwise
    assert digest(transposed) == wanted
    others = [flipped(bit) for bit in (0, 31)]
    others += [{**state(), "bf16": torch.ones(3, dtype=torch.float16)}, {**state(), "steps": [{"step": 3.0}, None]}]
    others += [{**state(), "weights": {"a": torch.arange(6.0).reshape(3, 2), "b": torch.zeros(0)}}]
    assert len({wanted, *map(digest, others)}) == 6
    assert digest([torch.tensor([0.0])]) != digest([torch.tensor([-0.0])]), "equal numbers, other bits"


@pytest.mark.parametrize(
    ("size", "odd", "named", "open_"),
    [(2, (1,), {0, 1}, True), (4, (2,), {2}, False), (4, (1, 3), {0, 1, 2, 3}, True), (4, (0,), {0}, False)],
)
def test_who_differs_is_named_on_every_rank(size: int, odd: tuple[int, ...], named: set[int], open_: bool) -> None:
    def one(rank: ThreadRank) -> str:
        with pytest.raises(RanksDiffer) as differ:
            check_state(rank, flipped(0) if rank.rank in odd else state(), "runs/x")
        return str(differ.value)

    said = together(size, one)
    assert len(set(said)) == 1
    assert {int(rank) for rank in re.findall(r"rank (\d+) \(", said[0])} == named
    assert ("which is right is open" in said[0]) is open_ and "marft train --resume runs/x" in said[0]


def test_ranks_that_hold_the_same_say_nothing_and_one_process_computes_nothing() -> None:
    together(4, lambda rank: check_state(rank, state(), ""))
    check_state(Alone(), object(), "")
