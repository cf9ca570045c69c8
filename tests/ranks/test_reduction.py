"""Sums over lanes: the same bits for 1, 2 and 4 ranks, for every algorithm; out of memory together."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch

from helpers.marks import rest_in_ci
from helpers.teams import Heads, Tabular, put
from helpers.thread_ranks import ThreadRank, together
from helpers.updates import SETTINGS, data_for
from marft_algos.algorithms import base as algorithm
from marft_algos.learner.learner import Learner
from marft_algos.ranks.group import Alone
from marft_algos.ranks.reduction import ReductionSlots
from marft_algos.types import SamplingParams, Trajectory
from marft_envs.errors import ConfigError


def episodes_for(name: str, seed: int) -> list[Trajectory]:
    """Three groups of four, or twelve pairs: more rows than ranks, and other numbers of them in lanes."""
    return data_for(name, seed)[: 24 if algorithm.get(name).prefers else 12]


def scored(policies: Tabular, data: list[Trajectory]) -> list[Trajectory]:
    for d in policies.play(data):
        for t in d.candidates:
            put(t, trainable=True)
            policies.score(t)
        for t in (*d.transitions, *d.candidates):
            put(t.reply, version=policies.version)
    return data


def train(
    name: str, reduction: ReductionSlots, **settings: Any
) -> tuple[dict[str, torch.Tensor], list[dict[str, float]], int]:
    """Two updates; returns the weights of policies and heads, the metrics, and the forward passes of this rank."""
    kind = algorithm.get(name)
    names = ["a0"] if name in ("mat", "reinforce_pp") else ["a0", "a1", "a2", "a3"]
    config = kind.Config(**{"lr": 0.05, "minibatches": 2, "micro_tokens": 64} | SETTINGS.get(name, {}) | settings)
    policies, heads = Tabular(names), Heads(names)
    made = kind(config, SamplingParams(max_new_tokens=8))
    learner = Learner(made, policies, heads, 3, reduction)
    metrics = []
    for iteration in range(2):
        metrics.append(learner.update(scored(policies, episodes_for(name, iteration)), iteration))
        policies.version += 1
    tables = {f"policy {p}": table.detach().clone() for p, table in policies.tables.items()}
    return tables | {f"head {p}": w.detach().clone() for p, w in heads.weights.items()}, metrics, policies.forwards


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])  # more ranks than two: the tests below
@pytest.mark.parametrize("name", rest_in_ci([name for name in algorithm.names() if algorithm.get(name).trains], 6))
def test_weights_and_numbers_are_equal_to_the_bit_for_any_number_of_ranks(name: str, size: int) -> None:
    started = Tabular(["a0", "a1", "a2", "a3"]).tables
    usual, usual_numbers, passes = train(name, ReductionSlots())
    assert any(not torch.equal(usual[f"policy {p}"], started[p]) for p in started if f"policy {p}" in usual)
    weights, numbers, _ = train(name, ReductionSlots(Alone(), 4))
    for key, tensor in weights.items():
        torch.testing.assert_close(tensor, usual[key], rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(numbers, usual_numbers, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5, nan_ok=True)
    found = together(size, lambda rank: (*train(name, ReductionSlots(rank, 4)), rank.calls))
    for theirs, metrics, done, calls in found:
        assert all(torch.equal(theirs[key], weights[key]) for key in weights)
        assert json.dumps(metrics) == json.dumps(numbers)
        assert calls == found[0][3], "a call that another rank does not make is waited for in vain"
        assert 0 < done < passes * 4, "no rank does all of it"


CASES: dict[str, dict[str, Any]] = {
    "fewer rows than ranks": {},
    "stopped": {"kl_stop": 1e-9, "epochs": 3},
    "skipped": {},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", rest_in_ci(["marft", "grpo", "happo", "a2po", "vapo", "at_grpo"], 2))
def test_all_ranks_make_the_same_calls_whatever_they_have_to_do(name: str, case: str) -> None:
    """A call that one rank makes and another does not is waited for until the run ends."""

    def work(rank: ThreadRank) -> tuple[dict[str, int], dict[str, float]]:
        policies, heads = Tabular(["a0", "a1", "a2", "a3"]), Heads(["a0", "a1", "a2", "a3"])
        kind, data = algorithm.get(name), episodes_for(name, 0)
        config = kind.Config(
            **{"lr": 0.05, "minibatches": 1, "micro_tokens": 64} | SETTINGS.get(name, {}) | CASES[case]
        )
        scored(policies, data)
        if case == "fewer rows than ranks":
            data = data[: getattr(config, "group_size", 1)]
        if case == "skipped":
            for turn in (t for d in data for t in (*d.transitions, *d.candidates) if t.agent == "a3"):
                put(turn, trainable=False)
        learner = Learner(kind(config, SamplingParams(max_new_tokens=8)), policies, heads, 3, ReductionSlots(rank, 8))
        return rank.calls, learner.update(data, 0)

    found = together(4, work)
    assert all(calls == found[0][0] for calls, _ in found) and found[0][0]["add"] > 0
    if case == "stopped":
        assert any(value > 0 for key, value in found[0][1].items() if key.endswith("/kl_stopped"))
    if case == "skipped":
        assert not any(key.startswith("policy/a3/") and key.endswith("/steps") and v for key, v in found[0][1].items())


@pytest.mark.parametrize("vtrace", [False, True])
def test_a_rank_computes_the_returns_of_its_share_of_episodes(vtrace: bool) -> None:
    """V-trace's steps are logged, and weigh advantages after whitening, so that every rank takes all of them."""

    def work(rank: ThreadRank) -> tuple[list[int], list[list[float]]]:
        policies, heads, paid = Tabular(["a0", "a1", "a2", "a3"]), Heads(["a0", "a1", "a2", "a3"]), list[int]()
        kind = algorithm.get("marft")
        made = kind(kind.Config(vtrace=vtrace, minibatches=1), SamplingParams(max_new_tokens=8))
        chain_of = made.chain_of
        made.chain_of = lambda d, e: (paid.append(d.number), chain_of(d, e))[1]  # type: ignore[method-assign]
        learner, data = (
            Learner(made, policies, heads, 3, ReductionSlots(rank, 8)),
            scored(policies, data_for("marft", 0)),
        )
        learner.update(data, 0)
        found = learner.estimates
        return paid, [x.tolist() for x in (*found.advantages.values(), *found.returns.values())]

    ((alone, expected),) = together(1, work)
    assert alone == list(range(24)) and expected
    ranks = together(4, work)
    assert all(numbers == expected for _, numbers in ranks)
    assert sorted(n for paid, _ in ranks for n in paid) == sorted(alone * (4 if vtrace else 1))


def test_every_piece_is_computed_once_and_ranks_share_evenly() -> None:
    done: list[list[int]] = together(4, lambda rank: seen(rank, 16))
    assert sorted(n for numbers in done for n in numbers) == list(range(16))
    assert [len(numbers) for numbers in done] == [4, 4, 4, 4]
    assert all(max(b - a for a, b in itertools.pairwise(n)) == 4 for n in done), "pieces side by side go apart"


def seen(rank: ThreadRank, pieces: int) -> list[int]:
    numbers: list[int] = []
    reduction = ReductionSlots(rank, 8)
    assert reduction.spread(range(pieces), lambda n: numbers.append(n) or n * n) == [n * n for n in range(pieces)]
    return numbers


@pytest.mark.parametrize("pieces", [1, 3, 8, 21])
def test_gradients_are_the_sum_of_the_pieces_in_the_order_of_the_tree(pieces: int) -> None:
    draws = torch.randn(pieces, 5, generator=torch.Generator().manual_seed(0)) * 1e3

    def gradient(reduction: ReductionSlots) -> torch.Tensor:
        x, y = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)

        def work(number: int) -> None:
            ((torch.cat([x, y]) * draws[number]).sum()).backward()

        reduction.gradient([x, y], range(pieces), work)
        return torch.cat([x.grad, y.grad])

    reduction = ReductionSlots(Alone(), 8)
    sums = [torch.zeros(5) for _ in range(8)]
    for number in range(pieces):
        sums[reduction.of(number)] += draws[number]
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    assert torch.equal(gradient(reduction), sums[0])
    torch.testing.assert_close(gradient(ReductionSlots()), draws.sum(0))
    for size in (2, 4, 8):
        assert all(
            torch.equal(found, sums[0]) for found in together(size, lambda rank: gradient(ReductionSlots(rank, 8)))
        )


def test_where_memory_runs_out_on_one_rank_all_of_them_take_smaller_pieces() -> None:
    def work(rank: ThreadRank) -> tuple[dict[str, torch.Tensor], int]:
        policies = Tabular(["a0", "a1", "a2", "a3"])
        short = {"left": int(rank.rank == 1)}
        logprobs = policies.logprobs

        def scarce(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and short["left"]:
                short["left"] = 0
                raise torch.OutOfMemoryError("none left")
            return logprobs(*args, **kwargs)

        policies.logprobs = scarce  # type: ignore[method-assign]
        kind = algorithm.get("grpo")
        learner = Learner(
            kind(kind.Config(lr=0.05), SamplingParams(max_new_tokens=8)), policies, None, 3, ReductionSlots(rank, 2)
        )
        learner.update(scored(policies, data_for("grpo", 0)), 0)
        return {p: t.detach() for p, t in policies.tables.items()}, learner.pieces.size

    with pytest.warns(UserWarning, match="Memory ran out"):
        (one, budget), (other, also) = together(2, work)
    assert budget == also and all(torch.equal(one[p], other[p]) for p in one)


@pytest.mark.parametrize(("size", "count"), [(1, 3), (4, 2), (2, -2)])
def test_lanes_that_cannot_be_dealt_are_refused(size: int, count: int) -> None:
    with pytest.raises(ConfigError, match=r"power of two.*--reduction-slots 8"):
        together(size, lambda rank: ReductionSlots(rank, count))
