"""A fused forward pass over whole texts for larger models, in float32 or bfloat16, with gradients of its own.

As ``FusedForward`` it computes what transformers' modules compute, and less of it: what all rows start with runs once,
pads and tokens that nothing is read behind do not run through any linear layer, the last block goes beyond attention
at the wanted positions only, and the gradient of a frozen weight is never formed. Adapters stay beside the weights (to
add them costs a large model more than their thin products do). Of each block five tensors are kept for the backward
pass; norms and activations, which cost little, are computed again. The residual stream, norms and the rotation are
float32 whatever the compute dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from marft_algos.models.attention import flash_fits
from marft_algos.models.kernels.check import agrees
from marft_algos.models.kernels.fused import FusedModel, attention, shared_columns
from marft_algos.models.kernels.linears import SAME_INPUT, FusedLinear, Unsupported, fuse
from marft_algos.models.kernels.nodes import FeedForward, Norm, Normed, NormLinear, Rotation, Stacked
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
        norms = [module for module in self.module.modules() if type(module) is type(self.module.norm)]
        self._norms = {norm: Norm(self.scale(norm).float(), self.eps, self.epsilon) for norm in norms}
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
            return self._normed(x, self.module.norm)

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
        rotated, kv = self.heads + self.kv_heads, self.kv_heads
        y = NormLinear.apply(x, self._norms[block.input_layernorm], linears[0], *factors[0])
        qk, v = y.unflatten(-1, (-1, self.head_dim)).split([rotated, kv], dim=1)
        if hasattr(block.self_attn, "q_norm"):
            q, k = qk.float().split([self.heads, kv], dim=1)
            qk = torch.cat([self._normed(q, block.self_attn.q_norm), self._normed(k, block.self_attn.k_norm)], 1)
        q, k = Rotation.apply(qk, *layout.rotary, self.dtype).split([self.heads, kv], dim=1)
        attended = _attend(q, k, v, layout).flatten(1)
        if i == len(self.module.layers) - 1:
            attended, x = attended[layout.wanted], x[layout.wanted]
        rest = [factor for pair in factors[1:] for factor in pair]
        hidden: Tensor = FeedForward.apply(attended, x, self._norms[block.post_attention_layernorm], linears[1:], *rest)
        return hidden

    def _normed(self, x: Tensor, norm: Any) -> Tensor:
        normed: Tensor = Normed.apply(x, self._norms[norm])
        return normed

    def _factors(self, linear: FusedLinear, weights: Weights | None) -> Factors:
        """Returns the adapters on layers that lie end to end as one, with gradients."""
        found = [None if weights is None else weights.factors(name) for name in linear.names]
        if not any(found):
            return None, None
        each = [one or (None, None, 0.0) for one in found]
        scales, factors = [scale for _, _, scale in each], [factor for a, b, _ in each for factor in (a, b)]
        return cast(Factors, Stacked.apply(self.dtype, linear.sizes, scales, *factors))


def _attend(q: Tensor, k: Tensor, v: Tensor, layout: _Layout) -> Tensor:
    """Computes causal attention of all tokens, [tokens, heads, head_dim]."""
    shared, batch, width = layout.shared, layout.batch, layout.width
    parts = [part.split([shared, len(part) - shared]) for part in (q, k, v)]
    before = [part[None].transpose(1, 2) for part, _ in parts]
    rows = [_padded(part, layout).unflatten(0, (batch, width)).transpose(1, 2) for _, part in parts]
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
