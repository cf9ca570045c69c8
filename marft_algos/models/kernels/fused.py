"""A forward pass over whole texts for scoring, training and the critics' features, with its own gradients.

It computes what transformers' modules compute, and less of it: the last layer's output and feed-forward run at the
positions whose states are wanted, and nowhere else; keys are not repeated for the queries that share them; an RMS norm
is one node of the graph; adapters are added to the weights, and the gradient of a weight is never formed: those of an
adapter's factors come from thin products with the layer's input and the gradient of its output. For float32 models of
the families below; ``Reader`` compares itself with transformers on the very model before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.activations import SiLUActivation

from marft_algos.models.loading import first_column, prefix_length

FAMILIES = frozenset({"Qwen2Model", "Qwen3Model", "LlamaModel", "MistralModel", "GemmaModel"})
ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles do not depend on how long the sequence is."""
LINEARS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""Names of the linear layers of one layer."""
PROBE = (3, 5, 2, 7, 1, 6)
"""Token ids that our passes are checked on."""

Factors = tuple[Tensor, Tensor, float]
"""An adapter on one layer: first factor [r, in], second factor [out, r], scale."""
Adapter = Callable[[str], Factors | None]
"""The factors on the layer of a name; None where there are none."""


class Unsupported(Exception):
    """Why a model cannot be computed here."""


class KnownTrunk:
    """A model without its head, of a family whose computation is written down here.

    Args:
        model: any; one that is not such is refused.
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
        self.eps = torch.tensor(config.rms_norm_eps, device=self.device)
        self.names = frozenset(f"layers.{i}.{part}" for i in range(len(self.module.layers)) for part in LINEARS)
        """Names of the linear layers: those that may have adapters."""

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


class Reader(KnownTrunk):
    """The pass itself; weights of the base are frozen, gradients go to adapters.

    Raises:
        Unsupported: see ``KnownTrunk``; or the result differs from transformers' by more than rounding.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, torch.float32)
        ids = torch.tensor([PROBE], device=self.device)
        with torch.no_grad():
            expected = self.module(input_ids=ids, use_cache=False).last_hidden_state[0]
            check_same(self.states(ids, torch.ones_like(ids, dtype=torch.bool)), expected, 1e-4)

    def states(self, ids: Tensor, wanted: Tensor, adapter: Adapter | None = None) -> Tensor:
        """Returns final states [n, d] at the wanted positions, row by row.

        What all rows start with, before anything is wanted, runs once.

        Args:
            ids: [B, T], right-padded with any id.
            wanted: bool [B, T], n of them true.
            adapter: on which layers; None: the base.
        """
        batch, length = ids.shape
        first = first_column(wanted)
        shared = prefix_length(ids[:, : first or 1].tolist(), limit=first)
        own, keep, first = ids[:, shared:], wanted[:, shared:], first - shared
        steps = torch.arange(length, device=ids.device)
        positions = torch.cat([steps[:shared], steps[shared:].repeat(batch)])
        turn = tuple(table[positions][:, None] for table in self.angles(length))
        linear = partial(_linear, adapter)
        x = self.module.embed_tokens(torch.cat([ids[0, :shared], own.flatten()]))
        for i, layer in enumerate(self.module.layers):
            last = i == len(self.module.layers) - 1
            queries, keys, values = self._project(linear, f"layers.{i}.self_attn.", layer, x, turn)
            before, seen = _attend(queries, keys, values, batch, shared, first if last else 0)
            if last:
                seen, x = seen[keep[:, first:]], x[shared:].view(*own.shape, -1)[keep]
            else:
                seen = torch.cat([before, seen.flatten(0, 1)]) if shared else seen.flatten(0, 1)
            x = linear(f"layers.{i}.self_attn.o_proj", layer.self_attn.o_proj, seen.flatten(1), x)
            y, mlp, name = self._norm(x, layer.post_attention_layernorm), layer.mlp, f"layers.{i}.mlp."
            gate, up = (linear(name + part, getattr(mlp, part), y) for part in ("gate_proj", "up_proj"))
            x = linear(name + "down_proj", mlp.down_proj, _gated(mlp.act_fn, gate, up), x)
        return self._norm(x, self.module.norm)

    def _project(
        self, linear: Callable[..., Tensor], name: str, layer: Any, x: Tensor, turn: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned, and values: [tokens, heads, head_dim] each."""
        attention, (cos, sin) = layer.self_attn, turn
        y = self._norm(x, layer.input_layernorm)
        parts = [
            linear(name + part, getattr(attention, part), y).unflatten(-1, (-1, self.head_dim))
            for part in ("q_proj", "k_proj", "v_proj")
        ]
        if hasattr(attention, "q_norm"):
            parts[:2] = self._norm(parts[0], attention.q_norm), self._norm(parts[1], attention.k_norm)
        turned = [torch.addcmul(part * cos, part.roll(self.head_dim // 2, -1), sin) for part in parts[:2]]
        return turned[0], turned[1], parts[2]

    def _norm(self, x: Tensor, norm: nn.Module) -> Tensor:
        normed: Tensor = _RMSNorm.apply(x, self.scale(norm), self.eps)
        return normed


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, batch: int, shared: int, first: int
) -> tuple[Tensor, Tensor]:
    """Causal attention; the shared tokens and each row's own lie end to end in the arguments.

    Returns:
        Of the shared ones, [shared, heads, head_dim], and of each row's own from ``first`` on, [batch, own - first,
        heads, head_dim].
    """
    before = [part[None, :shared].transpose(1, 2) for part in (queries, keys, values)]
    q, k, v = (part[shared:].unflatten(0, (batch, -1)).transpose(1, 2) for part in (queries, keys, values))
    end, mask = shared + k.shape[2], None
    if shared:
        k, v = (torch.cat([b.expand(batch, -1, -1, -1), a], 2) for b, a in zip(before[1:], (k, v), strict=True))
    if shared or first:
        columns = torch.arange(end, device=q.device)
        mask = columns <= columns[shared + first :, None]
    seen = _attention(q[:, :, first:], k, v, mask)
    return _attention(before[0], before[1], before[2], None)[0] if shared else queries[:0], seen


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, heads, …] to [batch, …, heads, head_dim]; causal without a mask."""
    grouped = q.shape[1] != k.shape[1]
    seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    return seen.transpose(1, 2)


def _linear(adapter: Adapter | None, name: str, layer: nn.Linear, x: Tensor, onto: Tensor | None = None) -> Tensor:
    factors = None if adapter is None else adapter(name)
    if factors is None:
        return linear_onto(x, layer.weight, layer.bias, onto)
    adapted: Tensor = _Adapted.apply(x, layer.weight, layer.bias, onto, *factors)
    return adapted


def linear_onto(x: Tensor, weight: Tensor, bias: Tensor | None, onto: Tensor | None) -> Tensor:
    """Returns ``F.linear`` of [n, in], added to ``onto`` [n, out] on the way if that is given."""
    if onto is None:
        return F.linear(x, weight, bias)
    return torch.addmm(onto if bias is None else onto + bias, x, weight.T)


def _gated(act: nn.Module, gate: Tensor, up: Tensor) -> Tensor:
    gated: Tensor = _SwiGLU.apply(gate, up) if isinstance(act, SiLUActivation) else act(gate) * up
    return gated


class _Adapted(torch.autograd.Function):
    """x (W + scale · B A)ᵀ + bias + onto with gradients to x, onto, A and B; W is frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        onto: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
    ) -> Tensor:
        whole = torch.addmm(weight, b, a, alpha=scale)
        ctx.save_for_backward(x, whole, a, b)
        ctx.scale = scale
        return linear_onto(x, whole, bias, onto)

    @staticmethod
    def backward(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
        x, whole, a, b = ctx.saved_tensors
        to_x = up @ whole if ctx.needs_input_grad[0] else None
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
        x, root, scale = ctx.saved_tensors
        down = up * scale
        along = torch.linalg.vecdot(down, x)[..., None].mul_(root.square()).div_(x.shape[-1])
        return down.addcmul_(x, along, value=-1).mul_(root), None, None


def rms_inverse(x: Tensor, eps: Tensor) -> Tensor:
    """Returns (mean(x²) + eps)^-½ over the last dimension, which is kept; x is read once."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(eps, length, length, value=1 / x.shape[-1]).rsqrt_()


def check_same(found: Tensor, expected: Tensor, limit: float) -> None:
    """Raises ``Unsupported`` if two results differ by more than a share ``limit`` of their norm."""
    gap = float((found.float() - expected.float()).norm() / expected.float().norm())
    if not gap < limit:
        raise Unsupported(f"differs from its family: its states are off by a share of {gap:.2g}")


def _check(trunk: Any, config: Any) -> None:
    name = type(trunk).__name__
    if name not in FAMILIES:
        raise Unsupported(f"is a {name}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPES:
        raise Unsupported(f"has rotary embeddings of the kind '{rope}'")
    window = getattr(config, "sliding_window", None) if name == "MistralModel" else None
    for layer in trunk.layers:
        if window or getattr(layer.self_attn, "sliding_window", None):
            raise Unsupported("attends to a sliding window")
        if abs(layer.self_attn.scaling * layer.self_attn.head_dim**0.5 - 1) > 1e-6:
            raise Unsupported("scales its attention in a way of its own")
