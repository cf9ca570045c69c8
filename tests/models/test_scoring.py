"""Scores of chosen tokens in chunks against plain log-softmax: values, entropies, gradients, and what is held."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from marft_algos.models import scoring

N, D, V = 23, 8, 50


def problem(bias: bool, trained: bool) -> tuple[nn.Linear, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(D, V, bias=bias).requires_grad_(trained)
    hidden = torch.randn(N, D, requires_grad=True)
    return head, hidden, torch.randint(V, (N,)), torch.linspace(0.5, 1.5, N)


def plain(head: nn.Linear, hidden: Tensor, targets: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.log_softmax(head(hidden) / heat[:, None], -1)
    return scores[torch.arange(N), targets], -(scores.exp() * scores).sum(-1)


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize(("bias", "trained"), [(False, False), (True, False), (False, True), (True, True)])
def test_chunks_equal_plain_log_softmax_and_its_gradient(
    rows: int, entropy_grad: bool, bias: bool, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scoring.CHUNK, "cpu", rows * V)
    weights = torch.randn(2, N, generator=torch.Generator().manual_seed(1))
    weights[1] *= entropy_grad
    found = []
    for how in (plain, lambda *given: scoring.score(*given, entropy_grad=entropy_grad)):
        head, hidden, targets, heat = problem(bias, trained)
        logprobs, entropies = how(head, hidden, targets, heat)
        (weights[0] @ logprobs + weights[1] @ entropies).backward()
        found.append([logprobs, entropies, hidden.grad, *(p.grad for p in head.parameters() if p.requires_grad)])
    assert len(found[0]) == len(found[1]) == 3 + trained * (1 + bias)
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


def test_the_entropy_gives_no_gradient_unless_it_is_asked_for() -> None:
    given = problem(False, False)
    assert not scoring.score(*given)[1].requires_grad
    assert scoring.score(*given, entropy_grad=True)[1].requires_grad
    with torch.no_grad():
        assert not scoring.score(*given)[0].requires_grad


@pytest.mark.parametrize("trained", [False, True])
def test_nothing_of_the_size_of_all_logits_is_kept_for_the_way_back(
    trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scoring.CHUNK, "cpu", V)
    head, hidden, targets, heat = problem(False, trained)
    held: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
        scoring.score(head, hidden, targets, heat)[0].sum().backward()
    assert held and max(held) < N * V


def test_a_bf16_head_scores_in_float32_and_near_the_plain_one() -> None:
    head, hidden, targets, heat = problem(False, False)
    expected = plain(head, hidden, targets, heat)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, _ = scoring.score(head, hidden, targets, heat)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected[0], rtol=0, atol=0.05)
    logprobs.sum().backward()
    assert hidden.grad is not None and hidden.grad.dtype == torch.float32


@pytest.mark.parametrize("trained", [False, True])
def test_tokens_that_a_head_lets_nobody_say_add_nothing(trained: bool) -> None:
    """A bias of −inf, as of a padded vocabulary: scores, entropies and gradients are those of a head without them."""
    found = []
    for padded in (False, True):
        head, hidden, targets, heat = problem(True, trained)
        targets = targets % (V - 5)
        if padded:
            head.bias.data[V - 5 :] = -torch.inf
        else:
            head.weight.data, head.bias.data = head.weight.data[: V - 5], head.bias.data[: V - 5]
        logprobs, entropies = scoring.score(head, hidden, targets, heat, entropy_grad=True)
        (logprobs.sum() + entropies @ heat).backward()
        assert hidden.grad is not None
        grads = [p.grad[: V - 5] for p in head.parameters() if p.grad is not None]
        found.append([logprobs, entropies, hidden.grad, *grads])
        assert not padded or all(not p.grad[V - 5 :].any() for p in head.parameters() if p.grad is not None)
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
