"""The parts of a block in decoding, which a growing cache and a step of fixed shape share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from marft_algos.models.kernels.fused import FusedModel, residual_linear, rms_norm


@dataclass(slots=True)
class AdaptedLinear:
    """A linear layer, or several that read the same input laid end to end, with the adapters of some policies."""

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None = None
    """[P * r, in], the adapters' first factors."""
    up: Tensor | None = None
    """[out, P * r], the second ones, scaled."""

    def __call__(self, x: Tensor, policy_of_row: Tensor | None, residual: Tensor | None = None) -> Tensor:
        """[n, in] -> [n, out], added to ``residual`` if there is one."""
        y = residual_linear(x, self.weight, self.bias, residual)
        if self.down is None or self.up is None:
            return y
        thin = F.linear(x, self.down)
        if policy_of_row is not None:  # products with other policies' adapters are dropped
            thin = (thin.unflatten(-1, (policy_of_row.shape[-1], -1)) * policy_of_row[..., None]).flatten(-2)
        return y.addmm_(thin, self.up.T)


@dataclass(slots=True)
class Block:
    """One block: its weights as they are decoded with, and its keys and values."""

    norms: tuple[Tensor, Tensor]
    head_norms: tuple[Tensor, Tensor] | None
    """Of queries and keys, before the rotation (Qwen3)."""
    kv: Tensor
    """[b, 2 * kv_heads, capacity, head_dim]: keys, then values."""
    qkv: AdaptedLinear
    out: AdaptedLinear
    gate_up: AdaptedLinear
    down: AdaptedLinear


class BlockModel(FusedModel):
    """A model that is decoded block by block."""

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        """Returns the RMS norm over the last dimension."""
        return rms_norm(x, scale, self.eps, self.epsilon)

    def rotated(
        self,
        block: Block,
        x: Tensor,
        shape: tuple[int, int],
        rotary: tuple[Tensor, Tensor],
        policy_of_row: Tensor | None,
    ) -> Tensor:
        """Returns rotated queries and keys, and values: [b, heads + 2 * kv_heads, w, head_dim], from [b * w, d]."""
        qkv = block.qkv(self.norm(x, block.norms[0]), policy_of_row).view(*shape, -1, self.head_dim)
        qk = qkv[:, :, : self.heads + self.kv_heads]
        if block.head_norms is not None:
            parts = qk.split([self.heads, self.kv_heads], dim=2)
            for part, scale in zip(parts, block.head_norms, strict=True):
                part.copy_(self.norm(part, scale))
        rolled = qk.roll(self.head_dim // 2, -1)
        qk.mul_(rotary[0]).addcmul_(rolled, rotary[1])
        return qkv.transpose(1, 2)

    def feed_forward(
        self, block: Block, module: Any, attended: Tensor, x: Tensor, policy_of_row: Tensor | None
    ) -> Tensor:
        """Returns what follows attention in a block, [n, d]; ``module`` is transformers' block."""
        x = block.out(attended, policy_of_row, x)
        gate, up = block.gate_up(self.norm(x, block.norms[1]), policy_of_row).chunk(2, dim=-1)
        return block.down(module.mlp.act_fn(gate).mul_(up), policy_of_row, x)


def attend(queries: Tensor, kv: Tensor, mask: Tensor | None) -> Tensor:
    """Computes attention: [b, heads, w, head_dim] -> [b, w, heads, head_dim]."""
    b, heads, w, d = queries.shape
    keys, values = kv.chunk(2, dim=1)
    if w == 1:  # queries that share a key head, as if they were a sequence: keys are not repeated
        grouped = queries.reshape(b, keys.shape[1], -1, d)
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    if mask is not None and keys.is_cuda:  # masks and groups together have no fast kernel there
        keys, values = (t.repeat_interleave(heads // keys.shape[1], dim=1) for t in (keys, values))
    attended = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=keys.shape[1] < heads
    )
    return attended.transpose(1, 2)
