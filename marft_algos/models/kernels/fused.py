"""A fused forward pass over whole texts for scoring, training and the critics' features, with gradients of its own.

It computes what transformers' modules compute, and less of it: the last block's output and feed-forward run at the
positions whose hidden states are wanted, and nowhere else; keys are not repeated for the queries that share them; an
RMS norm is one node of the graph; adapters are added to the weights, and the gradient of a weight is never formed:
those of an adapter's factors come from thin products with the linear layer's input and the gradient of its output. It
is for float32 models of the families below; ``FusedForward`` compares itself with transformers on the very model first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from marft_algos.models.kernels.check import agrees
from marft_algos.models.kernels.linears import Unsupported
from marft_algos.models.weights import Weights

FAMILIES = frozenset({"Qwen2Model", "Qwen3Model", "LlamaModel", "MistralModel", "GemmaModel"})
ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles do not depend on how long the sequence is."""
MIN_PREFIX = 8
"""Shared tokens from which a pass of their own pays."""


def shared_columns(ids: Tensor, wanted: Tensor) -> tuple[int, int]:
    """Returns the first column in which anything is wanted, 0 where nothing is, and how many before it all rows share.

    Args:
        ids: [B, T].
        wanted: bool [B, T].
    """
    columns = wanted.any(0).nonzero()
    first = int(columns[0]) if len(columns) else 0
    return first, prefix_length(ids[:, : first or 1].tolist(), limit=first)


def prefix_length(rows: Sequence[list[int]], limit: int) -> int:
    """Returns how many first tokens all rows share, at most ``limit``; 0 where sharing would save nothing."""
    low, high = min(rows), max(rows)  # in lexicographic order: what these two share, all share
    shared = 0
    for a, b in zip(low[:limit], high[:limit], strict=False):
        if a != b:
            break
        shared += 1
    return shared if len(rows) > 1 and shared >= MIN_PREFIX else 0


class FusedModel:
    """A model without its head, of one of the families that the fused passes know.

    Args:
        model: without adapters.
        dtype: compute dtype.

    Raises:
        Unsupported: another architecture, or a variant that is not computed here.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self.module = cast(Any, model.base_model)
        self.dtype = dtype
        config = model.config.get_text_config()
        _check(self.module, config)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.module.layers[0].self_attn.head_dim
        self.epsilon = float(config.rms_norm_eps)
        self.eps = torch.tensor(self.epsilon, device=self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.module.embed_tokens.weight.device

    def scale(self, norm: nn.Module) -> Tensor:
        """Returns a norm's factors: its weight, for Gemma 1 + its weight."""
        weight = cast(Tensor, norm.weight).detach()
        return (weight.float() + 1.0 if type(self.module).__name__ == "GemmaModel" else weight).to(self.dtype)

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and signed sines of the rotary embedding, [length, head_dim] each."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        cos, sin = self.module.rotary_emb(like, torch.arange(length, device=self.device)[None])
        half = self.head_dim // 2
        return cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)


class FusedForward(FusedModel):
    """The pass itself; weights of the base are frozen, gradients go to adapters.

    Raises:
        Unsupported: see ``FusedModel``; or the result differs from transformers' by more than rounding.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, torch.float32)
        agrees(model, torch.float32, lambda ids: self.hidden_states(ids, torch.ones_like(ids, dtype=torch.bool)))

    def hidden_states(self, ids: Tensor, wanted: Tensor, weights: Weights | None = None) -> Tensor:
        """Returns final hidden states [n, d] at the wanted positions, row by row.

        What all rows start with, before anything is wanted, runs once.

        Args:
            ids: [B, T], right-padded with any id.
            wanted: bool [B, T], n of them true.
            weights: whose adapter; None: the base model.
        """
        batch, length = ids.shape
        first, shared = shared_columns(ids, wanted)
        rest, keep, first = ids[:, shared:], wanted[:, shared:], first - shared
        steps = torch.arange(length, device=ids.device)
        positions = torch.cat([steps[:shared], steps[shared:].repeat(batch)])
        cos, sin = self.angles(length)
        rotary = cos[positions][:, None], sin[positions][:, None]
        x = self.module.embed_tokens(torch.cat([ids[0, :shared], rest.flatten()]))
        for i, block in enumerate(self.module.layers):
            last, name, mlp = i == len(self.module.layers) - 1, f"layers.{i}.", block.mlp
            queries, keys, values = self._project(weights, f"{name}self_attn.", block, x, rotary)
            before, attended = _attend(queries, keys, values, batch, shared, first if last else 0)
            if last:
                attended, x = attended[keep[:, first:]], x[shared:].view(*rest.shape, -1)[keep]
            else:
                attended = torch.cat([before, attended.flatten(0, 1)]) if shared else attended.flatten(0, 1)
            x = _linear(weights, f"{name}self_attn.o_proj", block.self_attn.o_proj, attended.flatten(1), x)
            y = self._norm(x, block.post_attention_layernorm)
            gate = _linear(weights, f"{name}mlp.gate_proj", mlp.gate_proj, y)
            up = _linear(weights, f"{name}mlp.up_proj", mlp.up_proj, y)
            x = _linear(weights, f"{name}mlp.down_proj", mlp.down_proj, _gated(mlp.act_fn, gate, up), x)
        return self._norm(x, self.module.norm)

    def _project(
        self, weights: Weights | None, name: str, block: Any, x: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries and keys, and values: [tokens, heads, head_dim] each."""
        attention, (cos, sin) = block.self_attn, rotary
        y = self._norm(x, block.input_layernorm)
        q = _linear(weights, f"{name}q_proj", attention.q_proj, y).unflatten(-1, (-1, self.head_dim))
        k = _linear(weights, f"{name}k_proj", attention.k_proj, y).unflatten(-1, (-1, self.head_dim))
        v = _linear(weights, f"{name}v_proj", attention.v_proj, y).unflatten(-1, (-1, self.head_dim))
        if hasattr(attention, "q_norm"):
            q, k = self._norm(q, attention.q_norm), self._norm(k, attention.k_norm)
        half = self.head_dim // 2
        q = torch.addcmul(q * cos, q.roll(half, -1), sin)
        k = torch.addcmul(k * cos, k.roll(half, -1), sin)
        return q, k, v

    def _norm(self, x: Tensor, norm: nn.Module) -> Tensor:
        normed: Tensor = _RMSNorm.apply(x, self.scale(norm), self.eps)
        return normed


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, batch: int, shared: int, first: int
) -> tuple[Tensor, Tensor]:
    """Computes causal attention; the shared tokens and each row's others lie end to end in the arguments.

    Returns:
        Of the shared tokens, [shared, heads, head_dim], and of each row's others from ``first`` on, [batch, others -
        first, heads, head_dim].
    """
    before = [part[None, :shared].transpose(1, 2) for part in (queries, keys, values)]
    q, k, v = (part[shared:].unflatten(0, (batch, -1)).transpose(1, 2) for part in (queries, keys, values))
    end, mask = shared + k.shape[2], None
    if shared:
        k, v = (torch.cat([b.expand(batch, -1, -1, -1), a], 2) for b, a in zip(before[1:], (k, v), strict=True))
    if shared or first:
        columns = torch.arange(end, device=q.device)
        mask = columns <= columns[shared + first :, None]
    attended = attention(q[:, :, first:], k, v, mask)
    return attention(before[0], before[1], before[2], None)[0] if shared else queries[:0], attended


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, heads, …] to [batch, …, heads, head_dim]; causal without a mask."""
    grouped = q.shape[1] != k.shape[1]
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    return attended.transpose(1, 2)


def _linear(weights: Weights | None, name: str, linear: nn.Linear, x: Tensor, residual: Tensor | None = None) -> Tensor:
    factors = None if weights is None else weights.factors(name)
    if factors is None:
        return residual_linear(x, linear.weight, linear.bias, residual)
    adapted: Tensor = _Adapted.apply(x, linear.weight, linear.bias, residual, *factors)
    return adapted


def residual_linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """Returns ``F.linear`` of [n, in], added to ``residual`` [n, out] in the same product if there is one."""
    if residual is None:
        return F.linear(x, weight, bias)
    return torch.addmm(residual if bias is None else residual + bias, x, weight.T)


def _gated(act: nn.Module, gate: Tensor, up: Tensor) -> Tensor:
    gated: Tensor = _SwiGLU.apply(gate, up) if isinstance(act, SiLUActivation) else act(gate) * up
    return gated


class _Adapted(torch.autograd.Function):
    """x (W + scale · B A)ᵀ + bias + residual with gradients to x, residual, A and B; W is frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
    ) -> Tensor:
        merged = torch.addmm(weight, b, a, alpha=scale)
        ctx.save_for_backward(x, merged, a, b)
        ctx.scale = scale
        return residual_linear(x, merged, bias, residual)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, merged, a, b = ctx.saved_tensors
        to_x = up @ merged if ctx.needs_input_grad[0] else None
        to_a = ((up @ b).T @ x).mul_(ctx.scale)
        to_b = ((x @ a.T).T @ up).T.mul(ctx.scale)  # this way round: the product is wide, not tall
        return to_x, None, None, up if ctx.needs_input_grad[3] else None, to_a, to_b, None


class _SwiGLU(torch.autograd.Function):
    """silu(gate) · up; silu(gate) is computed again on the way back, as room costs more than it does."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, down: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(down * up, gate), F.silu(gate).mul_(down)


class _RMSNorm(torch.autograd.Function):
    """x · scale / rms(x) over the last dimension; the scale is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: Tensor) -> Tensor:
        root = rms_inverse(x, eps)
        ctx.save_for_backward(x, root, scale)
        return (x * root).mul_(scale)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor, None, None]:
        return rms_grad(up, *ctx.saved_tensors), None, None


def rms_norm(x: Tensor, scale: Tensor, eps: Tensor, epsilon: float) -> Tensor:
    """Returns the RMS norm over the last dimension; ``eps`` and ``epsilon`` are the same, for our steps and torch's."""
    if x.dtype == torch.float32 and not x.is_cuda:  # torch's own takes a dozen steps on a CPU
        return (x * rms_inverse(x, eps)).mul_(scale)
    return F.rms_norm(x, scale.shape, scale, epsilon)


def rms_grad(up: Tensor, x: Tensor, root: Tensor, scale: Tensor) -> Tensor:
    """Returns the gradient by x of x · root · scale with root = 1 / rms(x); the scale is frozen."""
    down = up * scale
    along = torch.linalg.vecdot(down, x)[..., None].mul_(root.square()).div_(x.shape[-1])
    return down.addcmul_(x, along, value=-1).mul_(root)


def rms_inverse(x: Tensor, eps: Tensor) -> Tensor:
    """Returns (mean(x²) + eps)^-½ over the last dimension, which is kept; x is read once."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()


def _check(trunk: Any, config: Any) -> None:
    name = type(trunk).__name__
    if name not in FAMILIES:
        raise Unsupported(f"is a {name}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPES:
        raise Unsupported(f"has rotary embeddings of the kind '{rope}'")
    window = getattr(config, "sliding_window", None) if name == "MistralModel" else None
    for block in trunk.layers:
        if window or getattr(block.self_attn, "sliding_window", None):
            raise Unsupported("attends to a sliding window")
        if abs(block.self_attn.scaling * block.self_attn.head_dim**0.5 - 1) > 1e-6:
            raise Unsupported("scales its attention in a way of its own")
