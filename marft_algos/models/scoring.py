"""Scores of chosen tokens: from final hidden states to log-probabilities and entropies, logits a chunk at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

CHUNK = {"cpu": 1 << 20, "cuda": 1 << 27}
"""Logits held at once, by kind of device: on a CPU what its caches hold (4 MiB), on a GPU enough rows for a matrix
product at full speed (512 MiB)."""


def score(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    heat: Tensor,
    entropy_grad: bool = False,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns log-probabilities of ``targets`` and entropies in nats, float32 [N] each, with gradients.

    Nothing of size N x V is ever held, in either direction: each chunk's logits are gone before the next. While a
    frozen head is scored, the gradient of a row with respect to its hidden state is computed along with it, since
    the upstream gradient only scales it; a trained head's chunks are computed again on the way back.

    Args:
        head: the output head, [V, d].
        hidden: [N, d].
        targets: [N] token ids.
        heat: [N] temperatures.
        entropy_grad: let gradients through the entropy.
        softcap: logits z count as c tanh(z / c), before the temperature (Gemma 2).
    """
    dtype = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
    weight: Tensor = head.weight
    bias: Tensor | None = head.bias
    if dtype is not None:
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    found: tuple[Tensor, Tensor] = _Score.apply(hidden, weight, bias, targets, heat, entropy_grad, softcap)
    return found if entropy_grad else (found[0], found[1].detach())


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        heat: Tensor,
        entropy: bool,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = (torch.empty(len(hidden), device=hidden.device) for _ in range(2))
        ctx.trained = weight.requires_grad or (bias is not None and bias.requires_grad)
        ctx.entropy, ctx.cap = entropy, cap
        slopes = [torch.empty_like(hidden) for _ in range(1 + entropy)] if _ahead(ctx, hidden) else []
        for rows in _chunks(hidden, weight):
            logs, bend = _log_softmax(hidden[rows], weight, bias, heat[rows], cap)
            logprobs[rows] = logs.gather(-1, targets[rows, None])[:, 0]
            chances = logs.exp()
            entropies[rows] = -torch.linalg.vecdot(chances, logs)
            if slopes:
                if entropy:
                    slope = _entropy_slope(chances, logs, entropies[rows], heat[rows])
                    slopes[1][rows] = _bent(slope, bend).to(weight.dtype) @ weight
                slope = _slope(chances, targets[rows], heat[rows])
                slopes[0][rows] = _bent(slope, bend).to(weight.dtype) @ weight
        if ctx.trained:
            ctx.save_for_backward(hidden, weight, bias, targets, heat, entropies)
        else:
            ctx.save_for_backward(*slopes)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, up: Tensor, up_entropy: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.trained:
            slopes = ctx.saved_tensors
            down = slopes[0] * up[:, None]
            if ctx.entropy:
                down += slopes[1] * up_entropy[:, None]
            return down.to(slopes[0].dtype), None, None, None, None, None, None
        hidden, weight, bias, targets, heat, entropies = ctx.saved_tensors
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        to_bias = None if bias is None else torch.zeros_like(bias)
        for rows in _chunks(hidden, weight):
            logs, bend = _log_softmax(hidden[rows], weight, bias, heat[rows], ctx.cap)
            chances = logs.exp()
            # First, since the other slope overwrites the chances.
            spread = _entropy_slope(chances, logs, entropies[rows], heat[rows]) if ctx.entropy else None
            slope = _slope(chances, targets[rows], heat[rows]) * up[rows, None]
            if spread is not None:
                slope = slope + spread * up_entropy[rows, None]
            slope = _bent(slope, bend).to(weight.dtype)
            to_hidden[rows] = slope @ weight
            to_weight += slope.T @ hidden[rows]
            if to_bias is not None:
                to_bias += slope.sum(0)
        return to_hidden, to_weight.to(weight.dtype), to_bias, None, None, None, None


def _ahead(ctx: Any, hidden: Tensor) -> bool:
    return not ctx.trained and ctx.needs_input_grad[0]


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    rows = max(1, CHUNK[hidden.device.type] // len(weight))
    return [slice(start, start + rows) for start in range(0, len(hidden), rows)]


def _log_softmax(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, heat: Tensor, cap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Returns log-probabilities, and the slope of capped logits over plain ones: 1 - tanh²."""
    logits, bend = nn.functional.linear(hidden, weight, bias).float(), None
    if cap is not None:
        logits = logits.div_(cap).tanh_()
        bend = 1.0 - logits.square()
        logits = logits.mul_(cap)
    return torch.log_softmax(logits.div_(heat[:, None]), dim=-1), bend


def _bent(slope: Tensor, bend: Tensor | None) -> Tensor:
    return slope if bend is None else slope.mul_(bend)


def _slope(chances: Tensor, targets: Tensor, heat: Tensor) -> Tensor:
    """Slope of log p(target) over the logits: (1[target] − p) / T; overwrites ``chances``."""
    slope = chances.neg_()
    slope[torch.arange(len(targets), device=targets.device), targets] += 1.0
    return slope.div_(heat[:, None])


def _entropy_slope(chances: Tensor, logs: Tensor, entropy: Tensor, heat: Tensor) -> Tensor:
    """Slope of the entropy over the logits: −p (log p + H) / T; overwrites ``logs``."""
    return logs.add_(entropy[:, None]).mul_(chances).div_(-heat[:, None])
