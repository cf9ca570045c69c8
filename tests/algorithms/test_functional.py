"""Every formula of functional.py against its closed form."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from helpers.references import gae
from marft_algos import functional as F
from marft_algos.learner.heads import ValueNorm, explained_variance


def test_masked_mean_ignores_what_stands_outside_the_mask() -> None:
    x = torch.tensor([[1.0, 3.0, math.nan], [5.0, math.inf, 7.0]])
    mask = torch.tensor([[True, True, False], [True, False, True]])
    assert F.masked_mean(x, mask).item() == 4.0
    assert F.masked_mean(x, mask, dim=1).tolist() == [2.0, 6.0]
    assert F.masked_mean(x, torch.zeros_like(mask)).item() == 0.0


def test_a_true_zero_advantage_stays_in_the_statistics() -> None:
    x = np.array([0.0, 3.0, 99.0])
    assert F.whiten(x, np.array([True, True, False])).tolist() == [-1.0, 1.0, 0.0]


def test_a_floor_of_sigma_leaves_rare_errors_small() -> None:
    """One of 128 is wrong: σ is .088, and whitening makes the one error 11 times as large as it is; at .1 it is 10."""
    x = np.ones(128)
    x[0] = 0.0
    assert F.whiten(x, floor=0.5) == pytest.approx((x - x.mean()) / 0.5)
    assert F.whiten(x, floor=0.1)[0] == pytest.approx(-127 / 128 / 0.1)
    assert F.whiten(x, floor=0.05).tolist() == F.whiten(x).tolist() == pytest.approx((x - x.mean()) / x.std())
    assert F.whiten(np.ones(3), floor=0.1).tolist() == [0.0] * 3


def test_whitening_centres_only_below_the_smallest_spread() -> None:
    assert F.whiten(np.array([2.0, 2.0])).tolist() == [0.0, 0.0]
    assert np.abs(F.whiten(np.array([2.0, 2.0 + 1e-9]))).max() < 1e-8
    assert F.whiten(np.array([5.0])).tolist() == [0.0]
    assert F.whiten(np.array([1.0, 2.0]), np.array([False, False])).tolist() == [0.0, 0.0]


def test_score_norms_are_between_half_and_all_of_the_gradients_squared_length() -> None:
    logits = torch.randn(200, 7, generator=torch.manual_seed(0)).mul(3).requires_grad_()
    logprobs = torch.log_softmax(logits, -1)[:, 2]
    (gradient,) = torch.autograd.grad(logprobs.sum(), logits)
    true, estimate = gradient.square().sum(-1).numpy(), F.score_norms(logprobs.detach().numpy())
    assert np.all(estimate <= true * (1 + 1e-4)) and np.all(estimate >= true / 2 * (1 - 1e-4))
    assert F.score_norms(np.array([0.0, -1e-12, -800.0])).tolist() == [0.0, pytest.approx(1e-24), 1.0]


@pytest.mark.parametrize("likely", [1, 5, 9])
def test_whitening_by_score_norms_makes_the_variance_of_the_gradient_least(likely: int) -> None:
    """By enumeration: ten samples of a choice of two that hold each as often as it is likely; the likely one pays."""
    share = np.repeat([likely / 10, 1 - likely / 10], [likely, 10 - likely])
    paid = np.repeat([1.0, 0.0], [likely, 10 - likely])
    white = F.whiten(paid, weights=F.score_norms(np.log(share)))
    best = paid[0] - white[0] * paid.std()

    def variance(baseline: float) -> float:
        return float(np.mean((paid - baseline) ** 2 * 2 * (1 - share) ** 2))  # its mean does not depend on the baseline

    assert best == pytest.approx(1 - likely / 10)
    others = np.linspace(-1, 2, 301)
    assert all(variance(best) <= variance(b) + 1e-12 for b in others)
    assert white[0] - white[-1] == pytest.approx(1 / paid.std()), "sigma is around the mean"


def test_weights_that_are_all_zero_leave_the_mean() -> None:
    x = np.array([1.0, 2.0, 6.0])
    assert F.whiten(x, weights=np.zeros(3)) == pytest.approx(F.whiten(x))
    assert F.whiten(x, np.array([True, False, True]), np.array([3.0, 99.0, 1.0]))[1] == 0.0


def test_values_at_masked_positions_change_nothing() -> None:
    rewards, mask = [0.0, 0.0, 0.0, 1.0], [True, True, False, True]
    plain, _ = gae([0.0, 0.0, 1.0], [0.5, 0.4, 0.3], [True] * 3, 0.9, 0.8)
    for junk in (0.0, 9.0, math.nan):
        advantages, returns = gae(rewards, [0.5, 0.4, junk, 0.3], mask, 0.9, 0.8)
        assert advantages[[0, 1, 3]].tolist() == pytest.approx(plain.tolist())
        assert advantages[2] == returns[2] == 0.0


def test_gae_is_the_discounted_sum_of_temporal_differences() -> None:
    rng = np.random.default_rng(0)
    rewards, values, gamma, lam, tail = rng.normal(size=6), rng.normal(size=6), 0.9, 0.7, 0.4
    following = np.append(values[1:], tail)
    delta = rewards + gamma * following - values
    expected = [sum((gamma * lam) ** (u - t) * delta[u] for u in range(t, 6)) for t in range(6)]
    advantages, returns = gae(rewards, values, [True] * 6, gamma, lam, tail)
    assert advantages == pytest.approx(expected)
    assert returns == pytest.approx(np.array(expected) + values)


@pytest.mark.parametrize(("norm", "expected"), [("sum", -6.0), ("token", -2.0), ("word", -3.0)])
def test_action_logprobs_divide_by_one_tokens_or_words(norm: F.Norm, expected: float) -> None:
    logprobs = torch.tensor([[-9.0, -1.0, -2.0, -3.0]])
    mask = torch.tensor([[False, True, True, True]])
    assert F.action_logprobs(logprobs, mask, norm, torch.tensor([2])).item() == expected


@pytest.mark.parametrize("norm", ["sum", "token", "word"])
def test_an_action_without_words_or_tokens_divides_by_one(norm: F.Norm) -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [math.nan, math.nan]])
    mask = torch.tensor([[True, True], [False, False]])
    scored = F.action_logprobs(logprobs, mask, norm, torch.tensor([0, 0]))
    assert torch.isfinite(scored).all() and scored[1].item() == 0.0
    assert scored[0].item() == (-1.5 if norm == "token" else -3.0)


def test_token_normalised_ratio_is_the_geometric_mean_of_token_ratios() -> None:
    new, old = torch.randn(3, 5), torch.randn(3, 5)
    mask = torch.rand(3, 5) < 0.7
    mask[:, 0] = True
    words = torch.ones(3, dtype=torch.long)
    whole = F.ratio(F.action_logprobs(new, mask, "token", words), F.action_logprobs(old, mask, "token", words))
    for b in range(3):
        tokens = F.ratio(new, old)[b][mask[b]]
        assert whole[b].item() == pytest.approx(tokens.prod().item() ** (1 / len(tokens)), rel=1e-5)


def test_ratio_of_far_apart_logprobs_stays_finite() -> None:
    far = F.ratio(torch.tensor([0.0, -1e4]), torch.tensor([-1e4, 0.0]))
    assert torch.isfinite(far).all() and far[0] > 1e6 and far[1] < 1e-6


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "binds"),
    [
        (1.5, 1.0, -1.28, True),
        (1.5, -1.0, 1.5, False),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (1.1, 2.0, -2.2, False),
        (1.25, 1.0, -1.25, False),
    ],
)
def test_clipped_surrogate_on_both_sides(ratio: float, advantage: float, loss: float, binds: bool) -> None:
    r, a = torch.tensor(ratio, requires_grad=True), torch.tensor(advantage)
    out = F.clipped_surrogate(r, a, 0.2, 0.28)
    assert out.item() == pytest.approx(loss)
    assert bool(F.clip_binds(r.detach(), a, 0.2, 0.28)) == binds
    out.backward()
    assert (r.grad == 0) == binds


def test_a_successor_that_is_not_later_is_refused_whatever_else_follows() -> None:
    with pytest.raises(ValueError, match=r"turn 1 names a successor that is not later than itself: \[0, 2\]"):
        F.lambda_returns([None] * 3, [1] * 3, [0.0] * 3, [(), (0, 2), ()], F.Discounts())


@pytest.mark.parametrize(("ratio", "advantage"), [(1.25, 1.0), (0.75, -1.0), (3.0, -1.0)])
def test_at_its_bounds_a_sample_still_gives_a_gradient(ratio: float, advantage: float) -> None:
    r, a = torch.tensor(ratio, requires_grad=True), torch.tensor(advantage)
    F.clipped_surrogate(r, a, 0.25, 0.25, 3.0).backward()
    assert r.grad != 0 and not F.clip_binds(r.detach(), a, 0.25, 0.25, 3.0)


def test_a_preferences_loss_falls_as_steeply_as_the_sigmoid_of_the_margin_says() -> None:
    margins = np.array([-30.0, -1.0, 0.0, 2.0, 30.0])
    losses, slopes = F.preference(margins)
    assert losses == pytest.approx(np.log1p(np.exp(-margins))) and slopes == pytest.approx(1 / (1 + np.exp(margins)))


def test_k3_estimates_the_divergence_from_old_to_new() -> None:
    old, new = torch.log_softmax(torch.randn(6), 0), torch.log_softmax(torch.randn(6), 0)
    exact = (old.exp() * (old - new)).sum()
    assert (old.exp() * F.kl_k3(new, old)).sum().item() == pytest.approx(exact.item(), abs=1e-6)
    assert (F.kl_k3(new, old) >= 0).all() and F.kl_k3(old, old).abs().max() == 0


def test_huber_is_symmetric() -> None:
    errors = torch.linspace(-5, 5, 41)
    assert torch.equal(F.huber(errors, 1.5), F.huber(-errors, 1.5))
    expected = torch.nn.functional.huber_loss(errors, torch.zeros(41), reduction="none", delta=1.5)
    assert torch.allclose(F.huber(errors, 1.5), expected)
    assert F.huber(torch.tensor(-3.0), None).item() == 4.5


@pytest.mark.parametrize("dual", [1.1, 3.0])
def test_dual_clip_bounds_the_loss_of_a_sample_that_was_bad_and_became_likely(dual: float) -> None:
    """max(min(ρA, clip(ρ)A), cA) where A < 0 (arXiv 1912.09729): loss and gradient, ratio by ratio."""
    for rho, advantage in itertools.product((0.1, 0.9, 1.0, 1.15, 1.5, 2.9, 3.1, 400.0), (-2.0, -0.5, 0.0, 0.5, 2.0)):
        r, a = torch.tensor(rho, requires_grad=True), torch.tensor(advantage)
        plain = min(rho * advantage, min(max(rho, 0.8), 1.28) * advantage)
        out = F.clipped_surrogate(r, a, 0.2, 0.28, dual)
        assert out.item() == pytest.approx(-max(plain, dual * advantage) if advantage < 0 else -plain)
        out.backward()
        assert bool(F.clip_binds(r.detach(), a, 0.2, 0.28, dual)) == (r.grad.item() == 0.0 and advantage != 0.0)  # type: ignore[union-attr]
        assert F.clipped_surrogate(r, a, 0.2, 0.28).item() == pytest.approx(-plain), "off: PPO's"


def test_cispo_weighs_the_gradient_of_log_pi_by_the_ratio_up_to_its_cap() -> None:
    for delta, advantage in itertools.product((-3.0, -0.2, 0.0, 0.2, 0.5, 3.0), (-2.0, 0.0, 0.5)):
        new = torch.tensor(delta - 1.0, requires_grad=True)
        F.cispo(F.ratio(new, torch.tensor(-1.0)), torch.tensor(advantage), 0.28).backward()
        assert new.grad.item() == pytest.approx(-min(math.exp(delta), 1.28) * advantage)  # type: ignore[union-attr]


def test_sapo_fades_gradients_out_on_both_sides_and_sooner_where_the_advantage_is_negative() -> None:
    for delta, advantage in itertools.product((-3.0, -0.2, 0.0, 0.2, 0.5, 3.0), (-2.0, 0.0, 0.5)):
        new, tau = torch.tensor(delta - 1.0, requires_grad=True), 2.0 if advantage > 0 else 3.0
        rho = math.exp(delta)
        gate = 1.0 / (1.0 + math.exp(-tau * (rho - 1.0)))
        loss = F.sapo(F.ratio(new, torch.tensor(-1.0)), torch.tensor(advantage), 2.0, 3.0)
        loss.backward()
        assert loss.item() == pytest.approx(-4.0 / tau * gate * advantage)
        weight = 4.0 * gate * (1.0 - gate) * rho
        assert new.grad.item() == pytest.approx(-weight * advantage, abs=1e-6)  # type: ignore[union-attr]
        assert weight <= 2.0 and (delta < 3.0 or weight < 1e-8)


def test_value_loss_takes_the_worse_of_plain_and_clipped() -> None:
    values, returns, old = torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0])
    assert F.value_loss(values, returns, old).tolist() == [0.0, 0.5]
    assert F.value_loss(values, returns, old, clip=0.2).tolist() == pytest.approx([0.32, 0.5])
    assert F.value_loss(values, returns, old, huber_delta=0.5).tolist() == [0.0, 0.375]


def test_joint_factor_multiplies_clipped_ratios() -> None:
    sums = torch.tensor([[0.1, -0.2], [5.0, 0.0], [-5.0, 5.0]])
    assert F.joint_factor(sums).tolist() == pytest.approx([math.exp(-0.1), 2.0, 1.0])
    assert F.joint_factor(torch.zeros(3, 0)).tolist() == [1.0] * 3


def test_whitening_before_the_factor() -> None:
    """M·whiten(A), not whiten(M·A): at M = 1 (a zero-lr update) both agree, else the factor must survive."""
    advantages = torch.from_numpy(F.whiten(np.array([1.0, 2.0, 6.0])))
    unchanged = F.joint_factor(torch.zeros(3, 2))
    assert torch.equal(unchanged.double() * advantages, advantages)
    doubled = F.joint_factor(torch.full((3, 2), math.log(2.0) / 2)).double() * advantages
    assert doubled.std(correction=0).item() == pytest.approx(2.0)


def test_trace_is_the_ratio_cut_at_one() -> None:
    assert F.trace(0.7) == 1.0 and F.trace(math.log(0.25)) == pytest.approx(0.25)


def test_value_norm_not_yet_updated_is_the_identity() -> None:
    norm, x = ValueNorm(), np.array([-3.0, 0.0, 10.0])
    assert norm.normalize(x).tolist() == x.tolist()
    norm.update(np.array([]))
    assert norm.normalize(x).tolist() == x.tolist()


def test_value_norm_debiases() -> None:
    norm, x = ValueNorm(beta=0.99), np.array([1.0, 2.0, 6.0])
    norm.update(x)
    assert norm.statistics == pytest.approx((x.mean(), x.std()))
    assert norm.normalize(x) * x.std() + x.mean() == pytest.approx(x)
    other = ValueNorm(beta=0.99)
    other.load_state_dict(norm.state_dict())
    assert other.statistics == norm.statistics


def test_explained_variance() -> None:
    returns = np.array([0.0, 1.0, 2.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(returns, np.zeros(3)) == 0.0
    assert math.isnan(explained_variance(np.ones(3), np.zeros(3)))


def test_entropy_of_a_uniform_distribution_is_log_n() -> None:
    assert F.entropy(torch.zeros(2, 8, dtype=torch.bfloat16)).tolist() == pytest.approx([math.log(8)] * 2)
    assert F.entropy(torch.tensor([0.0, 1e4])).item() == pytest.approx(0.0)


@pytest.mark.parametrize("lowest", [-math.inf, -1e30])
def test_tokens_that_cannot_be_said_add_nothing_to_the_entropy_nor_to_its_gradient(lowest: float) -> None:
    logits = torch.tensor([[0.5, lowest, 0.0, lowest, -1.0]], requires_grad=True)
    entropy = F.entropy(logits)
    entropy.sum().backward()
    few = torch.tensor([[0.5, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    expected = -(few.softmax(-1) * few.log_softmax(-1)).sum(-1)
    expected.sum().backward()
    assert entropy.item() == pytest.approx(expected.item())
    assert logits.grad is not None and few.grad is not None
    assert logits.grad[0, [0, 2, 4]].tolist() == pytest.approx(few.grad[0].tolist(), abs=1e-6)
    assert logits.grad[0, [1, 3]].tolist() == [0.0, 0.0]


def plain_chain(a: dict[str, Any], d: F.Discounts) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The recursion of ``lambda_returns`` as it is written there: token by token, from the last one."""
    goals, returns = ([np.zeros(n) for n in a["lengths"]] for _ in range(2))

    def blend(k: int, t: int, weight: float) -> float:
        v, g = a["values"][k], returns[k][t]
        return g if v is None else (1.0 - weight) * v[t] + weight * g

    for k in reversed(range(len(goals))):
        v, after, n = a["values"][k], a["successors"][k], a["lengths"][k]
        for t in reversed(range(n)):
            steps = []
            for inside, turn in ((d.lambda_tok, d.lambda_turn), (0.0, 0.0)):
                x = 0.0 if a["token_rewards"][k] is None else a["token_rewards"][k][t]
                if t + 1 < n:
                    steps.append(x + d.gamma_tok * blend(k, t + 1, inside))
                    continue
                ahead = 0.0 if after else a["bootstraps"][k]
                for j in after:
                    ahead += blend(j, 0, turn * a["traces"][j]) / len(after)
                steps.append(x + a["rewards"][k] + d.gamma_turn * ahead)
            goals[k][t] = returns[k][t] = steps[0]
            if v is not None and a["truncated"][k] is not None:
                rho, c = (w[t] for w in a["truncated"][k])
                returns[k][t] = v[t] + rho * (steps[1] - v[t]) + c * (steps[0] - steps[1])
    return [g if v is None else g - v for g, v in zip(goals, a["values"], strict=True)], returns


@pytest.mark.parametrize("rows", [1, 3, 10**9])
def test_the_chain_is_the_plain_loop_to_the_bit(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many turns make a step together: over ragged turns, with and without V, rewards of tokens, traces."""
    monkeypatch.setattr(F, "ROWS", rows)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 9))
        lengths = [int(x) for x in rng.integers(1, 30, n)]
        kept = [[rng.normal(size=k) if rng.random() < 0.7 else None for k in lengths] for _ in range(2)]
        after = [tuple(j for j in range(k + 1, n) if rng.random() < 0.4) for k in range(n)]
        weights = [(rng.random(k), rng.random(k)) if rng.random() < 0.3 * (seed % 2) else None for k in lengths]
        arguments = {
            "values": kept[0],
            "lengths": lengths,
            "rewards": list(rng.normal(size=n)),
            "successors": after,
            "bootstraps": list(rng.normal(size=n)),
            "traces": list(rng.random(n)),
            "token_rewards": kept[1],
            "truncated": weights,
        }
        d = F.Discounts(*(float(rng.choice([0.0, 1.0, 1.0, rng.random()])) for _ in range(4)))
        for found, expected in zip(F.lambda_returns(discounts=d, **arguments), plain_chain(arguments, d), strict=True):
            for x, y in zip(found, expected, strict=True):
                assert x.dtype == np.float64 and x.tolist() == y.tolist()
