"""Pure mathematics of multi-agent fine-tuning: credit over turns and tokens, ratios, losses.

Nothing here knows an agent, a policy or a tokenizer. Credit works on numpy in float64 over an explicit successor
relation; losses work on torch tensors in fp32 and never mask by value.
Sources: MARFT (arXiv 2504.16129), GAE (1506.02438), PPO (1707.06347), HAPPO (2109.11251), A2PO (2302.06205),
GSPO (2507.18071), MAPPO (2103.01955), VAPO (2504.05118), V-trace (1802.01561).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from marft_algos.lazy import Tensor, torch

Norm = Literal["sum", "token", "word"]
Array = NDArray[np.float64]
Reals = NDArray[np.floating]

LOG_RATIO_LIMIT = 20.0
"""exp(20) is far beyond any clip range; the bound keeps 0 * inf out of sums over long texts."""
ROWS = 256
"""Turns from which on a step through all of them is faster than going through each."""
MIN_STD = 1e-8
"""Below this spread whitening only centres: dividing would blow rounding noise up to size 1."""


# --- credit ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Discounts:
    """γ and λ, for tokens inside a response and for the step from one turn to the next."""

    gamma_tok: float = 1.0
    gamma_turn: float = 1.0
    lambda_tok: float = 1.0
    lambda_turn: float = 1.0


def lambda_returns(
    values: Sequence[Reals | None],
    lengths: Sequence[int],
    rewards: Sequence[float],
    successors: Sequence[Sequence[int]],
    discounts: Discounts,
    *,
    bootstraps: Sequence[float] | None = None,
    traces: Sequence[float] | None = None,
    token_rewards: Sequence[Reals | None] | None = None,
    truncated: Sequence[tuple[Reals, Reals] | None] | None = None,
) -> tuple[list[Array], list[Array]]:
    """λ-returns over a graph of turns.

    Turn k has ``lengths[k]`` decision points (its tokens, or 1 at action level), each of which has the reward x[k,t] at
    once. After the last of them the turn gets ``rewards[k]``, and hands over to all of ``successors[k]`` at once (their
    mean); an empty tuple ends the chain:

        last token:  G[k,L] = x[k,L] + r[k] + γ_turn · mean_j [ (1 − λ_turn·c_j)·V[j,1] + λ_turn·c_j·G[j,1] ]
        before it:   G[k,t] = x[k,t] + γ_tok · [ (1 − λ_tok)·V[k,t+1] + λ_tok·G[k,t+1] ]

    Where others sampled the turns than are judged, ``truncated`` makes V-trace of it (arXiv 1802.01561, eq. 1, with λ
    in c as in its remark 2), each decision a step. With G¹ the right side above at λ = 0, and G^λ as it stands there,

        G = V + ρ·(G¹ − V) + c·(G^λ − G¹)        A = G^λ − V

    so that G − V = ρδ + γλc·(G⁺ − V⁺), and A has the weights of later steps only: the decision's own is the loss's.
    ρ = c makes A = δ + γλc⁺·A⁺, A2PO's trace (arXiv 2302.06205, eq. 3); ρ = c = 1 changes nothing.

    Args:
        values: Per turn [lengths[k]], V read before that token is known; None where no critic looked: the return
            then passes through unchanged.
        lengths: Decision points per turn, at least 1.
        rewards: Of each turn, between it and its successors.
        successors: Per turn the indices of the turns that follow; every index is larger than the turn's own.
        discounts: γ and λ.
        bootstraps: Per turn the value beyond the end of the chain, used where there is no successor (0 by default).
        traces: Per turn the factor c_j on λ_turn when j is looked back from (A2PO's trace; 1 by default).
        token_rewards: Per turn [lengths[k]] x, the reward of each decision point; None: none.
        truncated: Per turn [lengths[k]] ρ and c of its steps, see ``truncate``; without them, or without V: 1.

    Returns:
        Advantages (G − V, or V-trace's A) and returns G, per turn [lengths[k]], float64.
    """
    floats = [None if v is None else np.asarray(v, dtype=np.float64) for v in values]
    targets, returns = [np.zeros(0)] * len(lengths), [np.zeros(0)] * len(lengths)
    for level in _levels(successors):
        plain: dict[int, Array] = {}
        for k in level:
            ahead = near = bootstraps[k] if bootstraps is not None else 0.0
            if successors[k]:
                ahead = near = 0.0
                for j in successors[k]:
                    weight = discounts.lambda_turn * (1.0 if traces is None else traces[j])
                    ahead += _blend(floats[j], returns[j], weight) / len(successors[k])
                    near += _blend(floats[j], returns[j], 0.0) / len(successors[k])
            earned, v = None if token_rewards is None else token_rewards[k], floats[k]
            x = np.zeros(lengths[k]) if earned is None else np.array(earned, dtype=np.float64)
            x[-1] += rewards[k]
            if truncated is None or v is None or (weights := truncated[k]) is None:
                x[-1] += discounts.gamma_turn * ahead
                plain[k] = x
            else:
                targets[k], returns[k] = _corrected(v, x, discounts, (ahead, near), weights)
        for k, g in zip(plain, _inside([floats[k] for k in plain], list(plain.values()), discounts), strict=True):
            targets[k] = returns[k] = g
    return [y.copy() if v is None else y - v for y, v in zip(targets, floats, strict=True)], returns


def _levels(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Turns by the length of what follows them, the last ones first: those of a level do not depend on each other."""
    heights, levels = [0] * len(successors), list[list[int]]()
    for k in range(len(successors) - 1, -1, -1):
        if successors[k] and min(successors[k]) <= k:
            raise ValueError(f"turn {k} names a successor that is not later than itself: {list(successors[k])}")
        heights[k] = max((heights[j] + 1 for j in successors[k]), default=0)
        levels += [[] for _ in range(len(levels), heights[k] + 1)]
        levels[heights[k]].append(k)
    return levels


def _blend(values: Array | None, returns: Array, weight: float) -> float:
    """(1 − w)·V + w·G of a turn's first decision; G alone where there is no V."""
    g = float(returns[0])
    return g if values is None else (1.0 - weight) * float(values[0]) + weight * g


def _inside(values: Sequence[Array | None], earned: Sequence[Array], d: Discounts) -> list[Array]:
    """G of turns that do not depend on each other; the last of ``earned`` holds what follows. All ways add alike."""
    gamma, rest = d.gamma_tok, dict[int, tuple[float, Array]]()
    found = {k: x for k, x in enumerate(earned) if len(x) == 1}  # all of them at action level
    for k in [k for k in range(len(earned)) if k not in found]:
        v, x = values[k], earned[k]
        lam, ahead = (1.0, np.zeros(len(x))) if v is None else (d.lambda_tok, (1.0 - d.lambda_tok) * v)
        if gamma == lam == 1.0 and not ahead[1:].any():
            found[k] = np.add.accumulate(x[::-1], out=x[::-1])[::-1]
        else:
            rest[k] = lam, ahead
    if len(rest) >= ROWS:
        found |= zip(rest, _together([earned[k] for k in rest], rest.values(), gamma), strict=True)
        rest = {}
    for k, (lam, ahead) in rest.items():
        returns = [g := float(earned[k][-1])]
        for x, value in zip(earned[k][-2::-1].tolist(), ahead[:0:-1].tolist(), strict=True):
            returns.append(g := x + gamma * (value + lam * g))
        found[k] = np.array(returns[::-1])
    return [found[k] for k in range(len(earned))]


def _together(earned: Sequence[Array], rest: Collection[tuple[float, Array]], gamma: float) -> list[Array]:
    """``_inside`` for many turns: a step goes through all that are long enough, the longest first."""
    lengths = np.array([len(x) for x in earned])
    order, ends = np.argsort(-lengths, kind="stable"), lengths.cumsum()
    flat, ahead = np.concatenate(earned), np.concatenate([ahead for _, ahead in rest])
    lam, at = np.array([lam for lam, _ in rest])[order], ends[order] - 1
    g = flat[at]
    for n in np.searchsorted(-lengths[order], -np.arange(1, lengths.max())):
        behind, at = at[:n], at[:n] - 1
        flat[at] = g = flat[at] + gamma * (ahead[behind] + lam[:n] * g[:n])
    return np.split(flat, ends[:-1])


def _corrected(
    values: Array, x: Array, d: Discounts, beyond: tuple[float, float], weights: tuple[Reals, Reals]
) -> tuple[Array, Array]:
    """G^λ and G = V + ρ·(G¹ − V) + c·(G^λ − G¹) of a turn's decisions; ``beyond``: what the two hand over to."""
    gamma, lam, ahead = d.gamma_tok, d.lambda_tok, (1.0 - d.lambda_tok) * values
    goal, one_step = (float(x[-1] + d.gamma_turn * y) for y in beyond)
    near, blended, g, found = 0.0, 0.0, 0.0, list[tuple[float, float]]()
    steps = zip(*(np.asarray(y)[::-1].tolist() for y in (x, values, ahead, *weights)), strict=True)
    for t, (earned, v, v_ahead, rho, c) in enumerate(steps):
        if t:
            goal, one_step = earned + gamma * (blended + lam * g), earned + gamma * (near + 0.0 * g)
        g = v + rho * (one_step - v) + c * (goal - one_step)
        near, blended = v, v_ahead
        found.append((goal, g))
    goals, returns = np.array(found[::-1]).T.copy()
    return goals, returns


def whiten(x: Reals, mask: NDArray[np.bool_] | None = None, weights: Reals | None = None, floor: float = 0.0) -> Array:
    """(x − b)/max(σ, floor) with the statistics of the entries in ``mask``; 0 elsewhere. σ < 1e-8: centred only.

    A true zero inside the mask is an entry like any other.

    Args:
        x: Of any shape.
        mask: Of the same shape; None: every entry counts.
        weights: Of the same shape, for b, which is the mean without them; it is, too, where all of them are 0. σ is
            around the mean, whatever b is.
        floor: Least σ to divide by.
    """
    x = np.asarray(x, dtype=np.float64)
    valid = np.ones(x.shape, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    if not valid.any():
        return np.zeros_like(x)
    w = None if weights is None else np.asarray(weights, dtype=np.float64)[valid]
    centre, std = np.average(x[valid], weights=w if w is not None and w.any() else None), max(x[valid].std(), floor)
    return np.where(valid, (x - centre) / (std if std >= MIN_STD else 1.0), 0.0)


def score_norms(logprobs: Reals) -> Array:
    """Estimates how long the gradient of each token's log-prob is, squared: (1 − π(y))².

    In the logits it is (1 − π(y))² + Σ_{v≠y} π(v)², between once and twice this; what the layers below make of it is
    taken to be alike for all tokens. An average weighted by it is nearly the baseline of least variance (Greensmith et
    al., 2004; OPO, arXiv 2505.23585, has the number of tokens in this place, to which all tokens are alike).

    Args:
        logprobs: [L] of sampled tokens.

    Returns:
        [L], from 0 (nothing else was likely) to 1.
    """
    return np.expm1(np.asarray(logprobs, dtype=np.float64)) ** 2


def trace(log_ratio_sum: float) -> float:
    """Returns A2PO's c = min(1, ρ) for a turn whose policy was already updated (arXiv 2302.06205, eq. 3)."""
    return math.exp(min(0.0, log_ratio_sum))


def truncate(log_ratios: Reals | float, bound: float) -> Array:
    """Returns V-trace's min(bound, π/μ) of steps with these log-ratios (arXiv 1802.01561, eq. 1)."""
    return np.minimum(np.exp(np.minimum(np.asarray(log_ratios, dtype=np.float64), LOG_RATIO_LIMIT)), bound)


def outer_factor(log_ratio_sum: float, eps: float) -> float:
    """Returns A2PO's clip(Π ρ^j, 1 ± ε_o) of the turns whose policy was already updated (arXiv 2302.06205, eq. 6)."""
    return min(max(math.exp(min(log_ratio_sum, LOG_RATIO_LIMIT)), 1.0 - eps), 1.0 + eps)


def length_adaptive_lambda(length: int, alpha: float) -> float:
    """VAPO's λ = max(0.95, 1 − 1/(α·length)) of a response (arXiv 2504.05118); unclamped it is negative below 1/α."""
    return max(0.95, 1.0 - 1.0 / (alpha * length))


def effective_samples(weights: Reals) -> float:
    """(Σw)²/(n·Σw²): the share of n samples that is left when they weigh w ≥ 0; 1 when all weigh the same."""
    w = np.asarray(weights, dtype=np.float64)
    return float(w.sum() ** 2 / (len(w) * np.square(w).sum()))


def preference(margins: Reals) -> tuple[Array, Array]:
    """DPO's loss −log σ(m) of each margin m, and σ(−m), how steeply it falls there."""
    losses = np.logaddexp(0.0, -np.asarray(margins, dtype=np.float64))
    return losses, np.exp(-np.asarray(margins, dtype=np.float64) - losses)


# --- probabilities and ratios -----------------------------------------------------------------------------------


def masked_mean(x: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Returns the mean of x over ``mask`` (along ``dim``, else over all); 0 where nothing is valid."""
    kept = torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))
    return kept.sum(dim) / mask.sum(dim).clamp(min=1)  # over all for None


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Returns the sum over the last dimension of what ``mask`` keeps, whatever stands elsewhere."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum(-1)


def entropy(logits: Tensor) -> Tensor:
    """Returns the entropy in nats of softmax(logits) over the last dimension, in fp32; a logit of −inf adds nothing."""
    logp = torch.log_softmax(logits.float(), dim=-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)  # 0·log 0 is 0, and 0·(−inf) is NaN


def action_logprobs(logprobs: Tensor, mask: Tensor, norm: Norm, n_words: Tensor) -> Tensor:
    """Returns log π(a) of whole actions: (1/Z)·Σ_t log π(y_t), Z = 1, tokens or words; Z is never 0.

    With Z = tokens, the exponential of a difference of two of these is GSPO's sequence ratio.

    Args:
        logprobs: [B, T] of tokens.
        mask: [B, T] bool, True at the action's tokens.
        norm: What Z is.
        n_words: [B] whitespace-separated words of each action.

    Returns:
        [B], 0 for an empty action.
    """
    total = masked_sum(logprobs, mask)
    if norm == "sum":
        return total
    size = mask.sum(-1) if norm == "token" else n_words
    return total / size.clamp(min=1)


def ratio(new: Tensor, old: Tensor) -> Tensor:
    """π_θ/π_old from log-probabilities, token by token or action by action."""
    return (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def kl_k3(new: Tensor, old: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(π_old‖π_θ) per sampled token: r − 1 − log r with r = π_θ/π_old. Never negative."""
    delta = (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(delta) - delta


def joint_factor(log_ratio_sums: Tensor) -> Tensor:
    """Returns HAPPO's M = Π_p clip(exp Δ_p, 1/2, 2) over the policies already updated (arXiv 2109.11251).

    Args:
        log_ratio_sums: [..., P], Δ_p summed over policy p's turns in the round; 0 where p was absent.

    Returns:
        [...], 1 when P is 0.
    """
    bound = math.log(2.0)
    return log_ratio_sums.clamp(-bound, bound).sum(-1).exp()


# --- losses -----------------------------------------------------------------------------------------------------


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Returns PPO's −min(ρA, clip(ρ, 1 − ε_l, 1 + ε_h)A), elementwise.

    With ``dual`` c it is −max(min(…), cA) where A < 0, as there nothing bounds ρ (dual clip, arXiv 1912.09729).
    """
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages)
    if dual is None:
        return -surrogate
    return -torch.where(advantages < 0, torch.maximum(surrogate, dual * advantages), surrogate)


def clip_binds(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Returns True where a clipped branch is chosen, i.e. where the sample gives no gradient."""
    worse = (ratio < 1.0 - low) if dual is None else (ratio < 1.0 - low) | (ratio > dual)
    return ((ratio > 1.0 + high) & (advantages > 0)) | (worse & (advantages < 0))


def cispo(ratio: Tensor, advantages: Tensor, high: float) -> Tensor:
    """Returns CISPO's −sg(min(ρ, 1 + ε_h))·A·log ρ, elementwise: REINFORCE with a capped importance weight.

    Every sample gives a gradient, which is that of log π, as log ρ differs from it by a constant. There is no lower
    bound, as in the paper's experiments (MiniMax-M1, arXiv 2506.13585, eq. 4).
    """
    return -ratio.detach().clamp(max=1.0 + high) * advantages * ratio.log()


def sapo(ratio: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """Returns SAPO's −(4/τ)·σ(τ(ρ − 1))·A, elementwise, τ by the sign of A (arXiv 2511.20347).

    The gradient is that of ρA times 4σ(1 − σ): 1 at ρ = 1, and falling to 0 on both sides.
    """
    tau = torch.where(advantages > 0, tau_pos, tau_neg)
    return -4.0 / tau * torch.sigmoid(tau * (ratio - 1.0)) * advantages


def huber(error: Tensor, delta: float | None) -> Tensor:
    """e²/2 up to |e| = δ, linear beyond, the same on both sides; None: e²/2 everywhere."""
    if delta is None:
        return 0.5 * error.square()
    size = error.abs()
    return torch.where(size <= delta, 0.5 * size.square(), delta * (size - 0.5 * delta))


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None = None, huber_delta: float | None = None
) -> Tensor:
    """Returns the critic's loss, elementwise: the worse of the plain and the clipped prediction (PPO's value clipping).

    Args:
        values: V_θ, any shape.
        returns: Targets G, not whitened.
        old_values: V at collection time.
        clip: Radius around ``old_values``; None: no clipping.
        huber_delta: Where the loss turns linear; None: never.
    """
    loss = huber(values - returns, huber_delta)
    if clip is None:
        return loss
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(loss, huber(clipped - returns, huber_delta))
