"""A base of which every rank holds a share: the bits of a whole one, the memory of a share, and nobody waits in vain.

The ranks are processes over gloo; ``MARFT_KERNELS=decode`` lets whole weights run the same passes as shares do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import sharded_ranks
from helpers.rank_processes import processes
from helpers.tiny import save_tiny
from marft_algos.algorithms import base as algorithm
from marft_algos.models import embedded_path
from marft_algos.models.policy import PolicySet
from marft_algos.ranks.group import Alone
from marft_envs.errors import ConfigError

LAYERS = 3
SOME = ("marft", "vapo+checkpointing", "dpo", "at_grpo")
"""Value heads of actions and of tokens, a reference, candidates, and layers that are computed again."""
PARTS = 6
"""In which all algorithms are tested."""
SAME_PASSES = {"MARFT_KERNELS": "decode"}
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Trains on so many ranks; returns what each of them found."""
    root = tmp_path_factory.mktemp("sharding")

    @functools.cache
    def ranks(size: int, arch: str, *names: str, same_passes: bool = False) -> list[dict[str, Any]]:
        model = embedded_path(arch) if arch == "embedded" else root / arch
        if not model.is_dir():
            save_tiny(model, arch, hidden=16, layers=LAYERS)
        out = root / f"{size}-{arch}-{'-'.join(names)}-{same_passes}"
        out.mkdir(exist_ok=True)
        shard = "base" if size > 1 else "whole"
        script = Path(sharded_ranks.__file__)
        done = processes(
            script, size, str(out), str(model), shard, "4", *names, environ=SAME_PASSES if same_passes else {}
        )
        assert not any(one.returncode for one in done), done[0].stderr + done[-1].stderr
        return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(size)]

    return ranks


def check_equal(whole: dict[str, Any], ranks: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    for name in names:
        for rank in ranks:
            found, expected = rank[name]["state"], whole[name]["state"]
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], expected[key]) for key in expected), name
            assert rank[name]["calls"] == ranks[0][name]["calls"], "one that another rank does not make is waited for"
            gathers = [sum(calls.get(call, 0) for call in sharded_ranks.GATHERS) for calls in rank[name]["calls"]]
            layers = whole["played"]["layers"]
            assert gathers == sorted(set(gathers)) and gathers[0] > 0 and not any(n % layers for n in gathers)
        still = {k: x for k, x in whole[name]["state"].items() if k.startswith("idle/") and "lora_B" in k}
        assert still and not any(bool(x.any()) for x in still.values()), "nobody has played with it"
        assert any(bool(x.any()) for k, x in whole[name]["state"].items() if "lora_B" in k)
    stopping = [name for name in names if whole[name]["stops"]]
    assert stopping and all(whole[name]["stopped"] for name in stopping)


@pytest.mark.ci
def test_a_sharded_base_gives_the_bits_of_a_whole_one_and_all_ranks_make_the_same_calls(run: Run) -> None:
    [whole] = run(1, "llama", *SOME, same_passes=True)
    two = run(2, "llama", *SOME)
    check_equal(whole, two, SOME)
    for rank in two:
        assert rank["played"]["first"] == rank["played"]["again"] == whole["played"]["first"]
        assert "engine.wake()" in rank["played"]["refused"] and "--shard whole" in rank["played"]["refused"]
        assert torch.equal(rank["played"]["reference"], whole["played"]["reference"])
        assert torch.equal(rank["played"]["features"], whole["played"]["features"])
    assert "refused" not in whole["played"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["embedded", "qwen2"])
def test_so_it_is_on_four_ranks_and_for_other_models(arch: str, run: Run) -> None:
    names = ("marft", "dpo")
    [whole] = run(1, arch, *names, same_passes=True)
    check_equal(whole, run(4, arch, *names), names)


TRAIN = [name for name in algorithm.names() if algorithm.get(name).trains]


@pytest.mark.slow
@pytest.mark.parametrize("names", [tuple(TRAIN[i::PARTS]) for i in range(PARTS)], ids="+".join)
def test_every_algorithm_makes_the_same_calls_on_all_ranks_and_has_the_bits_of_a_whole_base(
    names: tuple[str, ...], run: Run
) -> None:
    [whole] = run(1, "llama", *names, same_passes=True)
    check_equal(whole, run(2, "llama", *names), names)


@pytest.mark.ci
def test_the_passes_over_a_sharded_base_differ_from_the_fused_ones_by_rounding(run: Run) -> None:
    [same], [fused] = run(1, "llama", *SOME, same_passes=True), run(1, "llama", "marft", "dpo")
    for name in ("marft", "dpo"):
        for key, tensor in fused[name]["state"].items():
            torch.testing.assert_close(tensor, same[name]["state"][key], rtol=0, atol=2e-6)


def test_a_rank_holds_its_share_of_the_layers_and_whole_ones_only_while_it_plays(run: Run) -> None:
    [whole] = run(1, "llama", *SOME, same_passes=True)
    two = run(2, "llama", *SOME)
    layers = whole["played"]["in layers"]
    assert whole["played"]["awake"] == whole["played"]["asleep"]
    for rank in two:
        assert rank["played"]["asleep"] <= whole["played"]["asleep"] - layers // 2
        assert rank["played"]["awake"] == rank["played"]["asleep"] + layers


@pytest.mark.parametrize("changes", [{"full_finetune": True}, {"loaded": True}], ids=["trained itself", "handed over"])
def test_what_cannot_be_sharded_is_refused(changes: dict[str, Any]) -> None:
    if "loaded" in changes:
        changes = {"loaded": PolicySet.build("embedded", {"a": "a"}).base("a")}
    with pytest.raises(ConfigError, match="shard='whole'"):
        PolicySet.build("embedded", {"a": "a"}, shards=Alone(), **changes)
