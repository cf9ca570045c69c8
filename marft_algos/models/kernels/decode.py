"""A fused forward pass for decoding: Qwen2, Qwen3, Llama, Mistral and Gemma, several policies of one base at once.

It computes what transformers' modules compute, in fewer and larger steps: query, key and value in one product, gate
and up in another, keys and values written into room allocated ahead, the queries of a group laid out as length so
that keys are not repeated. Policies that share a base decode in one batch; their adapters stay beside the weights,
and each row takes part in its own policy's only. ``fuse`` compares the result with transformers' on the very model
before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from marft_algos.models.kernels.fused import (
    LINEARS,
    PROBE,
    KnownTrunk,
    Unsupported,
    check_same,
    linear_onto,
    rms_inverse,
)
from marft_algos.models.loading import prefix_length
from marft_algos.models.weights import Weights

_PARTS = (LINEARS[:3], LINEARS[3:4], LINEARS[4:6], LINEARS[6:])
"""Linear layers that read the same input."""


@dataclass(slots=True)
class _Joined:
    """Linear layers that read the same input, laid end to end."""

    weight: Tensor
    """[out, in]: also the memory of the modules' own weights."""
    bias: Tensor | None
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Outputs of each."""


@dataclass(slots=True)
class _Linear:
    """The same with the adapters of some policies."""

    weight: Tensor
    bias: Tensor | None
    down: Tensor | None = None
    """[P * r, in], the adapters' first factors."""
    up: Tensor | None = None
    """[out, P * r], the second ones, scaled."""

    def __call__(self, x: Tensor, own: Tensor | None, onto: Tensor | None = None) -> Tensor:
        """[n, in] -> [n, out], added to ``onto`` if that is given."""
        y = linear_onto(x, self.weight, self.bias, onto)
        if self.down is None or self.up is None:
            return y
        thin = F.linear(x, self.down)
        if own is not None:  # products with other policies' adapters are dropped
            thin = (thin.unflatten(-1, (own.shape[-1], -1)) * own[..., None]).flatten(-2)
        return y + F.linear(thin, self.up)


@dataclass(slots=True)
class _Layer:
    qkv: _Linear
    out: _Linear
    gate_up: _Linear
    down: _Linear
    norms: tuple[Tensor, Tensor]
    head_norms: tuple[Tensor, Tensor] | None
    """Of queries and keys, before the rotation (Qwen3)."""
    past: Tensor
    """[b, 2 * kv_heads, room, head_dim]: keys, then values."""


class FusedTrunk(KnownTrunk):
    """The model under some policies. Make it with ``fuse``.

    The weights of layers that read the same input are laid end to end once; the modules keep views of them, so
    nothing is held twice and an optimiser's step is seen at once.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self._eps = float(self.eps)
        self.joined = [
            [_join(f"layers.{i}", layer, parts) for parts in _PARTS] for i, layer in enumerate(self.module.layers)
        ]

    def layers(self, policies: Sequence[Weights], rows: int, room: int) -> list[_Layer]:
        """Returns the layers at the policies' present weights, with room for keys and values (zeros)."""
        shape = (rows, 2 * self.kv_heads, room, self.head_dim)
        found = []
        for joined, layer in zip(self.joined, self.module.layers, strict=True):
            qkv, out, gate_up, down = (self._linear(part, policies) for part in joined)
            attention = layer.self_attn
            head_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
            found.append(
                _Layer(
                    qkv, out, gate_up, down,
                    (self.scale(layer.input_layernorm), self.scale(layer.post_attention_layernorm)),
                    None if head_norms is None else (self.scale(head_norms[0]), self.scale(head_norms[1])),
                    torch.zeros(shape, dtype=self.dtype, device=self.device),
                )
            )  # fmt: skip
        return found

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        """RMS norm over the last dimension."""
        if x.dtype == torch.float32 and not x.is_cuda:  # torch's own takes a dozen steps on a CPU
            return (x * rms_inverse(x, self.eps)).mul_(scale)
        return F.rms_norm(x, (x.shape[-1],), scale, self._eps)

    def _linear(self, joined: _Joined, policies: Sequence[Weights]) -> _Linear:
        """Adapters go into the weights where scoring puts them there, too, and only one policy is in the batch."""
        bias = None if joined.bias is None else joined.bias.to(self.dtype)
        pairs = [policy.low_rank(name) for policy in policies for name in joined.names]
        if not any(pairs):
            return _Linear(joined.weight.to(self.dtype), bias)
        if len(policies) == 1 and policies[0].merged:
            weight = joined.weight.clone()
            for part, pair in zip(weight.split(joined.sizes), pairs, strict=True):
                if pair is not None:
                    part.addmm_(pair[1], pair[0])
            return _Linear(weight, bias)
        ends = torch.tensor([0, *joined.sizes]).cumsum(0).tolist()
        width = sum(len(pair[0]) for pair in pairs if pair is not None)
        up = torch.zeros(ends[-1], width, device=self.device)
        column = 0
        for i, pair in enumerate(pairs):
            if pair is not None:
                part, rank = i % len(joined.names), len(pair[0])
                up[ends[part] : ends[part + 1], column : column + rank] = pair[1]
                column += rank
        down = torch.cat([pair[0] for pair in pairs if pair is not None])
        return _Linear(joined.weight.to(self.dtype), bias, down.to(self.dtype), up.to(self.dtype))


class Past:
    """What the rows of a batch have seen, and the weights they see it with; grows by a token a row.

    Args:
        trunk: the model.
        policies: whose weights.
        rows: in the batch.
        room: tokens to allocate room for.
    """

    def __init__(self, trunk: FusedTrunk, policies: Sequence[Weights], rows: int, room: int) -> None:
        self._trunk, self._rows = trunk, rows
        self._layers = trunk.layers(policies, rows, room)
        self._last_norm = trunk.scale(trunk.module.norm)
        self._angles = trunk.angles(room)
        self._own: Tensor | None = None
        """[b, P], 1 at each row's policy; None where all rows have the same."""
        self._mask: Tensor | None = None
        """[b, 1, 1, room], -inf at pads, else 0; None where nothing is padded."""
        self._position = torch.zeros(rows, 1, dtype=torch.long, device=trunk.device)
        self._column = 0

    def step(self, token: Tensor) -> Tensor:
        """Returns the final states [b, d] after one more token [b] a row."""
        self._position = self._position + 1
        self._column += 1
        mask = None if self._mask is None else self._mask[..., : self._column]
        return self._forward(token[:, None], None if mask is None else self._position, mask)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        n, end = len(rows), self._column
        for layer in self._layers:
            layer.past[:n, :, :end] = layer.past[rows, :, :end]
            layer.past = layer.past[:n]
        self._position = self._position[rows]
        self._mask = None if self._mask is None else self._mask[rows]
        self._own = None if self._own is None else self._own[rows]

    def read(self, prompts: Sequence[list[int]]) -> Tensor:
        """Runs the prompts, first of all tokens: what they start with together once, the rest padded on the left.

        Returns:
            The final states [b, d] at the prompts' last tokens.
        """
        device = self._trunk.device
        shared = prefix_length(prompts, limit=min(map(len, prompts)) - 1)
        if shared:
            self._read_shared(prompts[0][:shared])
        rest = [prompt[shared:] for prompt in prompts]
        width = max(map(len, rest))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rest], device=device)
        pads = width - torch.tensor([len(row) for row in rest], device=device)[:, None]
        steps = torch.arange(width, device=device)
        real = steps >= pads
        ahead = torch.ones(width, width, dtype=torch.bool, device=device).tril()[None]
        ragged = not bool(real.all())
        if ragged:
            self._mask = self._layers[0].past.new_zeros(len(rest), 1, 1, self._layers[0].past.shape[2])
            self._mask[:, 0, 0, shared : shared + width].masked_fill_(~real, -torch.inf)
            # A pad looks at itself: a softmax over nothing is not a number.
            ahead = (ahead & real[:, None]) | torch.eye(width, dtype=torch.bool, device=device)
        self._column = shared + width
        positions = shared + (steps - pads).clamp(min=0)
        self._position = positions[:, -1:]
        mask = F.pad(ahead[:, None], (shared, 0), value=True) if ragged or shared else None
        return self._forward(ids, positions if ragged else None, mask)

    def read_each(self, groups: Sequence[tuple[Weights, list[list[int]]]]) -> Tensor:
        """Runs the prompts of several policies, each policy's by itself and into its rows of this batch."""
        width = max(len(prompt) for _, prompts in groups for prompt in prompts)
        hidden, first = [], 0
        mask = self._layers[0].past.new_zeros(self._rows, 1, 1, self._layers[0].past.shape[2])
        owner = []
        for number, (policy, prompts) in enumerate(groups):
            longest, rows = max(map(len, prompts)), slice(first, first + len(prompts))
            part = Past(self._trunk, [policy], len(prompts), longest)
            hidden.append(part.read(prompts))
            columns = slice(width - longest, width)
            for layer, own in zip(self._layers, part._layers, strict=True):
                layer.past[rows, :, columns] = own.past
            mask[rows, ..., : width - longest] = -torch.inf
            if part._mask is not None:
                mask[rows, ..., columns] = part._mask
            self._position[rows] = part._position
            owner += [number] * len(prompts)
            first = rows.stop
        self._column = width
        self._mask = mask if bool(mask.any()) else None
        picked = F.one_hot(torch.tensor(owner, device=self._trunk.device), len(groups))
        self._own = picked.to(self._trunk.dtype)
        return torch.cat(hidden)

    def _read_shared(self, ids: list[int]) -> None:
        """Runs tokens that all rows share as one row, and gives every row their keys and values."""
        n, stores = len(ids), [layer.past for layer in self._layers]
        for layer in self._layers:
            layer.past = torch.zeros_like(layer.past[:1, :, :n])
        self._column = n
        self._forward(torch.tensor([ids], device=self._trunk.device), None, None)
        for layer, store in zip(self._layers, stores, strict=True):
            store[:, :, :n] = layer.past
            layer.past = store

    def _forward(self, ids: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        """Runs the last ids [b, w] of what is seen.

        Args:
            ids: the tokens.
            positions: [b, w]; None where nothing is padded: their columns.
            mask: of attention; None: causal.

        Returns:
            The final states [b, d] of the last column, for which alone the last layer goes beyond keys and values.
        """
        trunk, own, end = self._trunk, self._own, self._column
        b, w = ids.shape
        places = slice(end - w, end) if positions is None else positions
        cos, sin = (table[places].unsqueeze(-2) for table in self._angles)
        x = trunk.module.embed_tokens(ids.flatten()).to(trunk.dtype)
        for layer, module in zip(self._layers, trunk.module.layers, strict=True):
            qkv = layer.qkv(trunk.norm(x, layer.norms[0]), own).view(b, w, -1, trunk.head_dim)
            qk = qkv[:, :, : trunk.heads + trunk.kv_heads]
            if layer.head_norms is not None:
                for part, scale in zip(qk.split([trunk.heads, trunk.kv_heads], dim=2), layer.head_norms, strict=True):
                    part.copy_(trunk.norm(part, scale))
            rolled = qk.roll(trunk.head_dim // 2, -1)
            qk.mul_(cos).addcmul_(rolled, sin)
            rows = qkv.transpose(1, 2)
            layer.past[:, :, end - w : end] = rows[:, trunk.heads :]
            queries = rows[:, : trunk.heads]
            if layer is self._layers[-1]:
                queries, x = queries[:, :, -1:], x.view(b, w, -1)[:, -1]
                mask = None if mask is None else mask[:, :, -1:]
            seen = self._attend(queries, layer.past[:, :, :end], mask).reshape(len(x), -1)
            x = layer.out(seen, own, x)
            gate, up = layer.gate_up(trunk.norm(x, layer.norms[1]), own).chunk(2, dim=-1)
            x = layer.down(module.mlp.act_fn(gate).mul_(up), own, x)
        return trunk.norm(x, self._last_norm)

    def _attend(self, queries: Tensor, past: Tensor, mask: Tensor | None) -> Tensor:
        """[b, heads, w, head_dim] -> [b, w, heads, head_dim]."""
        b, heads, w, d = queries.shape
        keys, values = past.chunk(2, dim=1)
        if w == 1:  # queries that share a key head, as if they were a sequence: keys are not repeated
            grouped = queries.reshape(b, keys.shape[1], -1, d)
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        if mask is not None and keys.is_cuda:  # masks and groups together have no fast kernel there
            keys, values = (t.repeat_interleave(heads // keys.shape[1], dim=1) for t in (keys, values))
        seen = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=keys.shape[1] < heads
        )
        return seen.transpose(1, 2)


@torch.no_grad()
def fuse(model: PreTrainedModel, dtype: torch.dtype) -> FusedTrunk:
    """Returns the fused pass of a model without adapters (a base model or a fully fine-tuned copy).

    Raises:
        Unsupported: another architecture, a variant that this pass does not compute, or a result that differs from
            transformers' by more than rounding.
    """
    ids = torch.tensor([PROBE], device=model.device)
    with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        expected = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    trunk = FusedTrunk(model, dtype)
    past = Past(trunk, [Weights(None, model, {}, False)], 1, len(PROBE))  # type: ignore[arg-type]
    last = past.read([list(PROBE[:-1])])
    found = torch.stack([last, past.step(ids[:, -1])], dim=1)
    check_same(found, expected[:, -2:], 0.05 if dtype == torch.bfloat16 else 1e-4)
    return trunk


def _join(prefix: str, layer: nn.Module, parts: tuple[str, ...]) -> _Joined:
    modules: list[Any] = [layer.get_submodule(part) for part in parts]
    if any(type(module) is not nn.Linear for module in modules):
        raise Unsupported("has layers of another kind than torch.nn.Linear")
    biases = [module.bias for module in modules if module.bias is not None]
    if biases and len(biases) < len(modules):
        raise Unsupported("has a bias in some of the layers that read the same input")
    weight = _lay_end_to_end([module.weight for module in modules])
    names = tuple(f"{prefix}.{part}" for part in parts)
    sizes = tuple(len(module.weight) for module in modules)
    return _Joined(weight, _lay_end_to_end(biases) if biases else None, names, sizes)


def _lay_end_to_end(parts: Sequence[nn.Parameter]) -> Tensor:
    """Moves tensors into one; they become views of it."""
    if len(parts) == 1:
        return parts[0].detach()
    whole = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = view
    return whole
