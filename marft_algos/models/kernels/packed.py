"""A fused forward pass over whole texts for larger models, in float32 or bfloat16, with gradients of its own.

As ``FusedForward`` it computes what transformers' modules compute, and less of it: what all rows start with runs once,
pads and tokens that nothing is read behind do not run through any linear layer, the last block goes beyond attention
at the wanted positions only, and the gradient of a frozen weight is never formed. Adapters stay beside the weights (to
add them costs a large model more than their thin products do). Of each block five tensors are kept for the backward
pass; norms and activations, which cost little, are computed again. The residual stream, norms and the rotation are
float32 whatever the compute dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from marft_algos.models.attention import flash_fits
from marft_algos.models.kernels.check import agrees
from marft_algos.models.kernels.fused import (
    FusedModel,
    attention,
    rms_inverse,
    shared_columns,
)
from marft_algos.models.kernels.linears import SAME_INPUT, FusedLinear, Unsupported, fuse
from marft_algos.models.switches import fused_passes
from marft_algos.models.weights import Weights

Factors = tuple[Tensor, Tensor] | tuple[None, None]
"""An adapter: [r, in] and, scaled, [out, r]; of layers laid end to end, their ranks added."""


@dataclass(slots=True)
class _Layout:
    """Where the tokens of a batch are: the shared ones first, then those of each row, without pads."""

    batch: int
    shared: int
    """Tokens that all rows start with, computed once."""
    width: int
    """Of the longest row's others."""
    slots: Tensor | None
    """Place of each token in [batch, width]; None where nothing is padded."""
    wanted: Tensor
    """Places among all tokens at which hidden states are wanted."""
    mask: Tensor | None
    """[width, shared + width] of attention; None: causal."""
    named: bool
    """Whether that mask may go by its name, causal and aligned to the lower right: a flash kernel knows no other."""
    rotary: tuple[Tensor, Tensor]
    """Cosines and signed sines [tokens, 1, head_dim], float32."""


class PackedForward(FusedModel):
    """The pass itself; weights of the base are frozen, gradients go to adapters.

    Args:
        model: without adapters.
        dtype: compute dtype.

    Raises:
        Unsupported: see ``FusedModel``; or the result differs from transformers' by more than rounding.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        if not all(isinstance(block.mlp.act_fn, SiLUActivation) for block in self.module.layers):
            raise Unsupported("has another activation than SiLU")
        self._linears = [
            [fuse(f"layers.{i}", block, parts) for parts in SAME_INPUT] for i, block in enumerate(self.module.layers)
        ]
        self._named = self.device.type == "cuda" and "attention" in fused_passes()
        agrees(model, dtype, lambda ids: self.hidden_states(ids, torch.ones_like(ids, dtype=torch.bool)))

    def hidden_states(
        self, ids: Tensor, wanted: Tensor, weights: Weights | None = None, checkpointing: bool = False
    ) -> Tensor:
        """Returns final hidden states [n, d], float32, at the wanted positions, row by row.

        Args:
            ids: [B, T], right-padded with any id.
            wanted: bool [B, T], n of them true.
            weights: whose adapter; None: the base model.
            checkpointing: keep the blocks' inputs only, and compute the rest again on the way back.
        """
        with torch.autocast(self.device.type, enabled=False):
            tokens, layout = self._lay_out(ids, wanted)
            x = self.module.embed_tokens(tokens).float()
            for i in range(len(self.module.layers)):
                if checkpointing and torch.is_grad_enabled():
                    x = checkpoint(self._block, i, x, weights, layout, use_reentrant=False, preserve_rng_state=False)
                else:
                    x = self._block(i, x, weights, layout)
            return _RMSNorm.apply(x, self._scale(self.module.norm), self.eps)

    def _lay_out(self, ids: Tensor, wanted: Tensor) -> tuple[Tensor, _Layout]:
        """Returns the tokens to compute and where they are."""
        batch, length = ids.shape
        _, shared = shared_columns(ids, wanted)
        steps = torch.arange(length, device=ids.device)
        ends = torch.where(wanted, steps + 1, 0).amax(1)  # nothing is read behind a row's last wanted position
        width = max(int(ends.max()) - shared, 1)
        keep, rest = wanted[:, shared : shared + width], ids[:, shared : shared + width]
        steps = steps[shared : shared + width]
        real = steps < ends[:, None]
        slots = None if bool(real.all()) else real.flatten().nonzero()[:, 0]
        places = shared + (keep.flatten() if slots is None else keep[real]).nonzero()[:, 0]
        positions = torch.cat([torch.arange(shared, device=ids.device), steps.expand(batch, -1)[real]])
        cos, sin = self.angles(shared + width)
        mask = torch.arange(shared + width, device=ids.device) <= steps[:, None] if shared else None
        rotary = cos[positions][:, None].float(), sin[positions][:, None].float()
        tokens = torch.cat([ids[0, :shared], rest[real]])
        return tokens, _Layout(batch, shared, width, slots, places, mask, self._named, rotary)

    def _block(self, i: int, x: Tensor, weights: Weights | None, layout: _Layout) -> Tensor:
        """[tokens, d] -> [tokens, d], of the last block the wanted tokens only; float32."""
        block, linears = self.module.layers[i], self._linears[i]
        factors = [self._factors(linear, weights) for linear in linears]
        heads, kv = self.heads, self.kv_heads
        y = _NormLinear.apply(x, self._scale(block.input_layernorm), self.eps, linears[0], *factors[0])
        y = y.unflatten(-1, (-1, self.head_dim))
        q, k, v = y.split([heads, kv, kv], dim=1)
        if hasattr(block.self_attn, "q_norm"):
            q = _RMSNorm.apply(q.float(), self._scale(block.self_attn.q_norm), self.eps)
            k = _RMSNorm.apply(k.float(), self._scale(block.self_attn.k_norm), self.eps)
        q, k = (_rotate(part, layout.rotary).to(self.dtype) for part in (q, k))
        attended = _attend(q, k, v, layout).flatten(1)
        if i == len(self.module.layers) - 1:
            attended, x = attended[layout.wanted], x[layout.wanted]
        scale = self._scale(block.post_attention_layernorm)
        rest = [factor for pair in factors[1:] for factor in pair]
        hidden: Tensor = _FeedForward.apply(attended, x, scale, self.eps, linears[1:], *rest)
        return hidden

    def _scale(self, norm: Any) -> Tensor:
        return self.scale(norm).float()

    def _factors(self, linear: FusedLinear, weights: Weights | None) -> Factors:
        """Returns the adapters on layers that lie end to end as one, with gradients."""
        downs, ups = [], []
        for name, size in zip(linear.names, linear.sizes, strict=True):
            factors = None if weights is None else weights.factors(name)
            if factors is None:
                ups.append(linear.weight.new_zeros(size, 0, dtype=torch.float32))
            else:
                downs.append(factors[0])
                ups.append(factors[1] * factors[2])
        if not downs:
            return None, None
        return torch.cat(downs).to(self.dtype), torch.block_diag(*ups).to(self.dtype)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates [tokens, heads, head_dim]; float32."""
    cos, sin = rotary
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _attend(q: Tensor, k: Tensor, v: Tensor, layout: _Layout) -> Tensor:
    """Computes causal attention of all tokens, [tokens, heads, head_dim]."""
    shared, batch, width = layout.shared, layout.batch, layout.width
    before = [part[None, :shared].transpose(1, 2) for part in (q, k, v)]
    rows = [_padded(part[shared:], layout).unflatten(0, (batch, width)).transpose(1, 2) for part in (q, k, v)]
    if shared:
        rows[1:] = [torch.cat([b.expand(batch, -1, -1, -1), a], 2) for b, a in zip(before[1:], rows[1:], strict=True)]
    mask = layout.mask
    if mask is not None and layout.named and flash_fits(rows[0], rows[1], rows[2]):
        mask = causal_lower_right(*mask.shape)
    attended = attention(rows[0], rows[1], rows[2], mask).flatten(0, 1)
    if layout.slots is not None:
        attended = attended.index_select(0, layout.slots)
    return torch.cat([attention(before[0], before[1], before[2], None)[0], attended]) if shared else attended


def _padded(part: Tensor, layout: _Layout) -> Tensor:
    """Returns the rows' tokens at their places, [batch * width, …], zeros between."""
    if layout.slots is None:
        return part
    return part.new_zeros(layout.batch * layout.width, *part.shape[1:]).index_copy(0, layout.slots, part)


def _product(x: Tensor, linear: FusedLinear, factors: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """Returns x (W + B A)ᵀ + bias, and x Aᵀ."""
    a, b = factors
    y = F.linear(x, linear.weight.to(x.dtype), None if linear.bias is None else linear.bias.to(x.dtype))
    if a is None or b is None:
        return y, None
    thin = F.linear(x, a)
    return y.addmm_(thin, b.T), thin


def _product_grad(
    up: Tensor, x: Tensor, linear: FusedLinear, factors: Sequence[Tensor | None], thin: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns the gradients of ``_product`` by x, A and B."""
    a, b = factors
    to_x = up @ linear.weight.to(up.dtype)
    if a is None or b is None or thin is None:
        return to_x, None, None
    to_thin = up @ b
    to_x.addmm_(to_thin, a)
    return to_x, to_thin.T @ x, (thin.T @ up).T  # this way round: the product is wide, not tall


def _norm(x: Tensor, scale: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x · scale / rms(x) over the last dimension, and 1 / rms(x)."""
    root = rms_inverse(x, eps)
    return (x * root).mul_(scale), root


def _norm_grad(up: Tensor, x: Tensor, root: Tensor, scale: Tensor) -> Tensor:
    down = up * scale
    along = torch.linalg.vecdot(down, x)[..., None].mul_(root.square()).div_(x.shape[-1])
    return down.addcmul_(x, along, value=-1).mul_(root)


class _RMSNorm(torch.autograd.Function):
    """x · scale / rms(x); the scale is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: Tensor) -> Tensor:
        y, root = _norm(x, scale, eps)
        ctx.save_for_backward(x, root, scale)
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, None, None]:
        return _norm_grad(up, *ctx.saved_tensors), None, None


class _NormLinear(torch.autograd.Function):
    """A norm and the linear layers that read it, with gradients to x, A and B."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, eps: Tensor, linear: FusedLinear, a: Tensor | None, b: Tensor | None
    ) -> Tensor:
        normed, root = _norm(x, scale, eps)
        y, thin = _product(normed.to(linear.weight.dtype), linear, (a, b))
        ctx.save_for_backward(x, root, scale, a, b, thin)
        ctx.linear = linear
        return y

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, root, scale, a, b, thin = ctx.saved_tensors
        normed = (x * root).mul_(scale).to(up.dtype)
        to_normed, to_a, to_b = _product_grad(up, normed, ctx.linear, (a, b), thin)
        to_x = _norm_grad(to_normed.float(), x, root, scale) if ctx.needs_input_grad[0] else None
        return to_x, None, None, None, to_a, to_b


class _FeedForward(torch.autograd.Function):
    """What follows attention in a block: its output, and the gated feed-forward behind a norm, both residual."""

    @staticmethod
    def forward(
        ctx: Any, attended: Tensor, x: Tensor, scale: Tensor, eps: Tensor, linears: list[FusedLinear], *factors: Any
    ) -> Tensor:
        out, gate_up, down = linears
        y, thin_out = _product(attended, out, factors[:2])
        x = x + y
        normed, root = _norm(x, scale, eps)
        both, thin_gate = _product(normed.to(attended.dtype), gate_up, factors[2:4])
        gate, up = both.chunk(2, dim=-1)
        y, thin_down = _product(F.silu(gate).mul_(up), down, factors[4:])
        ctx.save_for_backward(attended, x, root, scale, both, thin_out, thin_gate, thin_down, *factors)
        ctx.linears = linears
        return x + y

    @staticmethod
    def backward(ctx: Any, to_hidden: Tensor) -> tuple[Tensor | None, ...]:
        attended, x, root, scale, both, thin_out, thin_gate, thin_down, *factors = ctx.saved_tensors
        out, gate_up, down = ctx.linears
        gate, up = both.chunk(2, dim=-1)
        gated = F.silu(gate)
        to_gated, *to_down = _product_grad(to_hidden.to(both.dtype), gated * up, down, factors[4:], thin_down)
        to_both = torch.empty_like(both)
        to_gate, to_up = to_both.chunk(2, dim=-1)
        torch.mul(to_gated, gated, out=to_up)
        to_gate.copy_(torch.ops.aten.silu_backward(to_gated.mul_(up), gate))
        normed = (x * root).mul_(scale).to(both.dtype)
        to_normed, *to_gate_up = _product_grad(to_both, normed, gate_up, factors[2:4], thin_gate)
        to_x = _norm_grad(to_normed.float(), x, root, scale).add_(to_hidden)
        to_attended, *to_out = _product_grad(to_x.to(both.dtype), attended, out, factors[:2], thin_out)
        return to_attended, to_x, None, None, None, *to_out, *to_gate_up, *to_down
