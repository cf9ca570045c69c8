"""Memory that runs out: the work is halved once and gives the same result; then an error names the setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from helpers.sampling import AGENTS, PARAMS, requests
from helpers.teams import Tabular, episode
from helpers.tiny import save_tiny
from marft_algos.algorithms.marft import MARFT, MARFTConfig
from marft_algos.engines import NativeEngine
from marft_algos.learner.learner import Learner
from marft_algos.memory import Budget, OutOfMemory, out_of_memory
from marft_algos.models.policy import PolicySet


def run(budget: Budget, work: Callable[[int], int | None], wanted: int) -> int | None:
    for size in budget.sizes(wanted):
        with budget:
            result = work(size)
    return result


def test_work_is_halved_once_and_then_an_error_names_the_setting() -> None:
    budget = Budget(64, "rows", "--engine-batch")
    tried: list[int] = []

    def work(size: int) -> int:
        tried.append(size)
        if size > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return size

    with pytest.warns(UserWarning, match="going on with 12"):
        assert run(budget, work, 25) == 12  # half of the 25 that there were, not of the 64 allowed
    assert run(budget, work, 100) == 12 and tried == [64, 12, 12]
    budget.size = 20
    with pytest.raises(OutOfMemory, match="--engine-batch below 20"):
        run(budget, work, 100)


def test_other_errors_pass_and_one_row_cannot_be_halved() -> None:
    def broken(size: int) -> None:
        raise RuntimeError("shapes differ")

    def full(size: int) -> None:
        raise MemoryError

    with pytest.raises(RuntimeError, match="shapes differ"):
        run(Budget(8, "rows", "--engine-batch"), broken, 8)
    with pytest.raises(OutOfMemory, match="--micro-tokens"):
        run(Budget(8, "tokens", "--micro-tokens"), full, 1)


def test_where_others_wait_in_the_middle_nothing_is_tried_again() -> None:
    tried: list[int] = []

    def work(size: int) -> int:
        tried.append(size)
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(OutOfMemory, match="Lower --micro-tokens below 25") as caught:
        run(Budget(64, "tokens", "--micro-tokens", again=False), work, 25)
    assert tried == [64] and caught.value.tried == 25 and caught.value.alone


def test_layers_that_cannot_be_gathered_are_an_error_that_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = PolicySet.build("embedded", {"a": "a"}, device="cpu")

    class Base:
        base = policies.base("a")

        def gather(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(policies, "_sharded", {id(Base.base.model): Base()})
    with pytest.raises(
        OutOfMemory, match=r"layers of 'embedded' were gathered.*--quantize nf4 --shard whole"
    ) as caught:
        NativeEngine(policies)
    assert caught.value.alone and not caught.value.tried


def test_a_tensor_that_no_memory_holds_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert out_of_memory(caught.value)
    assert not out_of_memory(RuntimeError("size mismatch"))


def test_the_engine_goes_on_with_smaller_batches_and_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = PolicySet.build(str(save_tiny(tmp_path / "qwen")), AGENTS, device="cpu")
    asked = requests(policies)
    expected = NativeEngine(policies).generate(asked, PARAMS)
    decode = NativeEngine._decode

    def small(self: NativeEngine, rows: list, params: object) -> list:
        if len(rows) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return decode(self, rows, params)  # type: ignore[arg-type]

    monkeypatch.setattr(NativeEngine, "_decode", small)
    with pytest.warns(UserWarning, match="--engine-batch"):
        found = NativeEngine(policies).generate(asked, PARAMS)
    assert [g.action_ids for g in found] == [g.action_ids for g in expected]


def test_an_update_goes_on_in_smaller_pieces_to_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(limit: int) -> torch.Tensor:
        policies = Tabular(["a", "b"])
        data = policies.play([episode([["a"], ["b"]], number=i, rewards=[0.0, float(i % 2)]) for i in range(8)])
        score = policies.logprobs

        def narrow(policy: str, input_ids: torch.Tensor, *rest: object, **named: object) -> object:
            if len(input_ids) > limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return score(policy, input_ids, *rest, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(policies, "logprobs", narrow)
        Learner(MARFT(MARFTConfig(lr=0.1, critic="none")), policies).update(data, 0)
        return policies.tables["a"].detach()

    expected = trained(8)
    with pytest.warns(UserWarning, match="--micro-tokens"):
        torch.testing.assert_close(trained(4), expected)
    with pytest.raises(OutOfMemory, match="--micro-tokens"), pytest.warns(UserWarning, match="going on"):
        trained(1)
