"""The output head: from final hidden states to logits, log-probabilities and entropies, logits a chunk at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

CHUNK = {"cpu": 1 << 20, "cuda": 1 << 27}
"""Logits held at once, by kind of device: on a CPU what its caches hold (4 MiB), on a GPU enough rows for a matrix
product at full speed (512 MiB)."""
ROWS = 96
"""Rows of logits held at once at least: with fewer, reading a large vocabulary's weights takes longer than the product
(SmolLM2's 49,152 tokens on a CPU: 1.7 times as long with 21)."""
LOWEST = torch.finfo(torch.float32).min
"""Stands for log 0 = −inf where a log-probability is multiplied by its probability: 0·log 0 is 0, and 0·(−inf) NaN."""


class Fp32Head(nn.Linear):
    """An output head that computes in float32, whatever the rest of the model computes in."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns logits [..., V] of final hidden states [..., d]."""
        with torch.autocast(hidden.device.type, enabled=False):
            return nn.functional.linear(hidden.float(), self.weight, self.bias)


def widen_head(model: PreTrainedModel) -> None:
    """Lets a model's output head compute in float32.

    Weights that are float32 already stay the same tensors; of others there is a copy, and embeddings that were tied to
    them stay as they are.
    """
    head = head_of(model)
    wide = Fp32Head(head.in_features, head.out_features, bias=head.bias is not None, device="meta")
    for name, tensor in head.named_parameters():
        copy = nn.Parameter(tensor.detach().float(), tensor.requires_grad)
        setattr(wide, name, tensor if tensor.dtype == torch.float32 else copy)
    model.set_output_embeddings(wide)


def head_of(model: PreTrainedModel) -> nn.Linear:
    """Returns the output head: hidden states [..., d] to logits [..., V]."""
    return model.get_output_embeddings()


def softcap_of(model: PreTrainedModel) -> float | None:
    """Returns the bound c of logits that are capped smoothly, to c tanh(logit / c) (Gemma 2); None for others."""
    return getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def logits(head: nn.Module, hidden: Tensor, softcap: float | None) -> Tensor:
    """Returns float32 logits [..., V] of final hidden states [..., d]."""
    raw: Tensor = head(hidden).float()
    return raw if softcap is None else raw.div_(softcap).tanh_().mul_(softcap)


def score(
    head: nn.Linear,
    hidden: Tensor,
    targets: Tensor,
    temperature: Tensor,
    *,
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
        temperature: [N].
        entropy_grad: let gradients through the entropy.
        softcap: logits z count as c tanh(z / c), before the temperature (Gemma 2).
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if isinstance(head, Fp32Head):
        dtype = torch.float32
    weight: Tensor = head.weight
    bias: Tensor | None = head.bias
    if dtype is not None:
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    with torch.autocast(device, enabled=False):
        scores: tuple[Tensor, Tensor] = _Score.apply(hidden, weight, bias, targets, temperature, entropy_grad, softcap)
    return scores if entropy_grad else (scores[0], scores[1].detach())


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: Tensor,
        entropy: bool,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        scores, entropies = (
            torch.empty(len(hidden), device=hidden.device),
            torch.empty(len(hidden), device=hidden.device),
        )
        ctx.trained = weight.requires_grad or (bias is not None and bias.requires_grad)
        ctx.entropy, ctx.cap = entropy, cap
        grads = []
        if ctx.needs_input_grad[0] and not ctx.trained:
            grads = [torch.empty_like(hidden) for _ in range(1 + entropy)]
        for rows in _chunks(hidden, weight):
            logprobs, softcap_grad = _log_softmax(hidden[rows], weight, bias, temperature[rows], cap)
            scores[rows] = logprobs.gather(-1, targets[rows, None])[:, 0]
            probs = logprobs.exp()
            entropies[rows] = -torch.linalg.vecdot(probs, logprobs.clamp_(min=LOWEST))
            if grads:
                if entropy:
                    grad = _entropy_grad(probs, logprobs, entropies[rows], temperature[rows])
                    grads[1][rows] = _through_softcap(grad, softcap_grad).to(weight.dtype) @ weight
                grad = _logprob_grad(probs, targets[rows], temperature[rows])
                grads[0][rows] = _through_softcap(grad, softcap_grad).to(weight.dtype) @ weight
        kept = (hidden, weight, bias, targets, temperature, entropies) if ctx.trained else grads
        ctx.save_for_backward(*kept)
        return scores, entropies

    @staticmethod
    def backward(ctx: Any, up: Tensor, up_entropy: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.trained:
            grads = ctx.saved_tensors
            down = grads[0] * up[:, None]
            if ctx.entropy:
                down += grads[1] * up_entropy[:, None]
            return down.to(grads[0].dtype), None, None, None, None, None, None
        hidden, weight, bias, targets, temperature, entropies = ctx.saved_tensors
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        to_bias = None if bias is None else torch.zeros_like(bias)
        for rows in _chunks(hidden, weight):
            logprobs, softcap_grad = _log_softmax(hidden[rows], weight, bias, temperature[rows], ctx.cap)
            probs = logprobs.exp()
            # First, since the gradient of the log-probability overwrites the probabilities.
            entropy_grad = _entropy_grad(probs, logprobs, entropies[rows], temperature[rows]) if ctx.entropy else None
            grad = _logprob_grad(probs, targets[rows], temperature[rows]) * up[rows, None]
            if entropy_grad is not None:
                grad = grad + entropy_grad * up_entropy[rows, None]
            grad = _through_softcap(grad, softcap_grad).to(weight.dtype)
            to_hidden[rows] = grad @ weight
            to_weight += grad.T @ hidden[rows]
            if to_bias is not None:
                to_bias += grad.sum(0)
        return to_hidden, to_weight.to(weight.dtype), to_bias, None, None, None, None


def chunk_rows(device: str, vocabulary: int) -> int:
    """Returns how many rows of logits are held at once."""
    return max(ROWS, CHUNK[device] // vocabulary)


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    rows = chunk_rows(hidden.device.type, len(weight))
    return [slice(start, start + rows) for start in range(0, len(hidden), rows)]


def _log_softmax(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor, cap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Returns log-probabilities [n, V], and the derivative of capped logits by plain ones: 1 - tanh²."""
    raw, softcap_grad = nn.functional.linear(hidden, weight, bias).float(), None
    if cap is not None:
        raw = raw.div_(cap).tanh_()
        softcap_grad = 1.0 - raw.square()
        raw = raw.mul_(cap)
    return torch.log_softmax(raw.div_(temperature[:, None]), dim=-1), softcap_grad


def _through_softcap(grad: Tensor, softcap_grad: Tensor | None) -> Tensor:
    return grad if softcap_grad is None else grad.mul_(softcap_grad)


def _logprob_grad(probs: Tensor, targets: Tensor, temperature: Tensor) -> Tensor:
    """Gradient of log p(target) by the logits: (1[target] − p) / T; overwrites ``probs``."""
    grad = probs.neg_()
    grad[torch.arange(len(targets), device=targets.device), targets] += 1.0
    return grad.div_(temperature[:, None])


def _entropy_grad(probs: Tensor, logprobs: Tensor, entropy: Tensor, temperature: Tensor) -> Tensor:
    """Gradient of the entropy by the logits: −p (log p + H) / T; overwrites ``logprobs``."""
    return logprobs.clamp_(min=LOWEST).add_(entropy[:, None]).mul_(probs).div_(-temperature[:, None])
