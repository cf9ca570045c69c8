"""A fused forward pass for decoding: Qwen2, Qwen3, Llama, Mistral and Gemma, several policies of one base at once.

It computes what transformers' modules compute, in fewer and larger steps: query, key and value in one product, gate
and up in another, keys and values written into memory allocated ahead, the queries of a group laid out as length so
that keys are not repeated. Policies that share a base decode in one batch; their adapters stay beside the weights,
and each row takes part in its own policy's only. ``FusedDecoder`` compares the result with transformers' on the very
model before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from marft_algos.models.kernels.blocks import AdaptedLinear, Block, BlockModel, attend
from marft_algos.models.kernels.check import agrees
from marft_algos.models.kernels.fused import prefix_length
from marft_algos.models.kernels.linears import SAME_INPUT, FusedLinear, fuse
from marft_algos.models.kernels.static import StaticStep
from marft_algos.models.weights import Weights


class FusedDecoder(BlockModel):
    """What all caches over one model share.

    The weights of linear layers that read the same input are laid end to end once; the modules keep views of them, so
    nothing is held twice and an optimiser's step is seen at once.

    Args:
        model: without adapters (a base model or a fully fine-tuned copy).
        dtype: compute dtype.

    Raises:
        Unsupported: another architecture, a variant that this pass does not compute, or a result that differs from
            transformers' by more than rounding.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self._linears = [
            [fuse(f"layers.{i}", block, parts) for parts in SAME_INPUT] for i, block in enumerate(self.module.layers)
        ]
        agrees(model, dtype, self._probe)

    def _probe(self, ids: Tensor) -> Tensor:
        """Reads the first token ids of [1, T], decodes the last ones; returns the states there."""
        cache, length = FusedCache(self, [], 1, ids.shape[1]), ids.shape[1] * 5 // 6
        states = [cache.prefill([[ids[0, :length].tolist()]])]
        return torch.cat([*states, *(cache.decode(ids[:, i]) for i in range(length, ids.shape[1]))])

    def blocks(self, policies: Sequence[Weights], rows: int, capacity: int) -> list[Block]:
        """Returns the blocks at the policies' present weights, with memory for keys and values (zeros)."""
        shape = (rows, 2 * self.kv_heads, capacity, self.head_dim)
        blocks = []
        for linears, block in zip(self._linears, self.module.layers, strict=True):
            attention, head_norms, adapted = block.self_attn, None, []
            if hasattr(attention, "q_norm"):
                head_norms = (self.scale(attention.q_norm), self.scale(attention.k_norm))
            for linear in linears:
                adapted.append(self._adapted(linear, policies))
            norms = (self.scale(block.input_layernorm), self.scale(block.post_attention_layernorm))
            kv = torch.zeros(shape, dtype=self.dtype, device=self.device)
            blocks.append(Block(norms, head_norms, kv, *adapted))
        return blocks

    def _adapted(self, linear: FusedLinear, policies: Sequence[Weights]) -> AdaptedLinear:
        """Adds the adapter to the weights where scoring does, if the batch has one policy; else puts it beside them."""
        bias = None if linear.bias is None else linear.bias.to(self.dtype)
        parts, downs, ups = [], [], []
        for policy in policies:
            for part, name in enumerate(linear.names):
                if (factors := policy.factors(name)) is not None:
                    parts.append(part)
                    downs.append(factors[0].detach())
                    ups.append(factors[1].detach() * factors[2])
        if not parts:
            return AdaptedLinear(linear.weight.to(self.dtype), bias)
        if len(policies) == 1 and policies[0].merged:
            weight = linear.weight.clone()
            rows = weight.split(linear.sizes)
            for part, down, up in zip(parts, downs, ups, strict=True):
                rows[part].addmm_(up, down)
            return AdaptedLinear(weight, bias)
        beside = torch.zeros(len(linear.weight), sum(map(len, downs)), device=self.device)
        column = 0
        for part, down, up in zip(parts, downs, ups, strict=True):
            beside.split(linear.sizes)[part][:, column : column + len(down)] = up
            column += len(down)
        return AdaptedLinear(linear.weight.to(self.dtype), bias, torch.cat(downs).to(self.dtype), beside.to(self.dtype))


class FusedCache:
    """Keys and values of the rows of a batch, and the weights they are computed with; grows by a token a row.

    Args:
        decoder: the model.
        policies: whose weights; none: the model's own.
        rows: in the batch.
        capacity: tokens of a row to allocate memory for.
    """

    def __init__(self, decoder: FusedDecoder, policies: Sequence[Weights], rows: int, capacity: int) -> None:
        self._decoder, self._policies, self._rows = decoder, policies, rows
        self._blocks = decoder.blocks(policies, rows, capacity)
        self._last_norm = decoder.scale(decoder.module.norm)
        self._angles = decoder.angles(capacity)
        self._policy_of_row: Tensor | None = None
        """[b, P], 1 at each row's policy; None where all rows have the same."""
        self._mask: Tensor | None = None
        """[b, 1, 1, capacity], -inf at pads, else 0; None where nothing is padded."""
        self._position = torch.zeros(rows, 1, dtype=torch.long, device=decoder.device)
        self._column = 0

    def decode(self, token: Tensor) -> Tensor:
        """Returns the final hidden states [b, d] after one more token [b] a row."""
        self._position = self._position + 1
        self._column += 1
        mask = None if self._mask is None else self._mask[..., : self._column]
        return self._forward(token[:, None], None if mask is None else self._position, mask)

    def compact(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        n, end = len(rows), self._column
        for block in self._blocks:
            block.kv[:n, :, :end] = block.kv[rows, :, :end]
            block.kv = block.kv[:n]
        self._position = self._position[rows]
        self._mask = None if self._mask is None else self._mask[rows]
        self._policy_of_row = None if self._policy_of_row is None else self._policy_of_row[rows]

    def prefill(self, prompts: Sequence[Sequence[list[int]]]) -> Tensor:
        """Runs the prompts of each policy, first of all tokens, each policy's by themselves and into its rows.

        Returns:
            The final hidden states [b, d] at the prompts' last tokens; rows are in the order of the prompts.
        """
        if len(prompts) == 1:
            return self._prefill(prompts[0])
        width = max(len(row) for rows in prompts for row in rows)
        hidden, first, numbers, padded = [], 0, list[int](), False
        mask = self._blocks[0].kv.new_zeros(self._rows, 1, 1, self._blocks[0].kv.shape[2])
        for number, (policy, its_prompts) in enumerate(zip(self._policies, prompts, strict=True)):
            longest, rows = max(map(len, its_prompts)), slice(first, first + len(its_prompts))
            part = FusedCache(self._decoder, [policy], len(its_prompts), longest)
            hidden.append(part._prefill(its_prompts))
            columns = slice(width - longest, width)
            for block, source in zip(self._blocks, part._blocks, strict=True):
                block.kv[rows, :, columns] = source.kv
            mask[rows, ..., : width - longest] = -torch.inf
            if part._mask is not None:
                mask[rows, ..., columns] = part._mask
            padded |= longest < width or part._mask is not None
            self._position[rows] = part._position
            numbers += [number] * len(its_prompts)
            first = rows.stop
        self._column = width
        self._mask = mask if padded else None
        one_hot = F.one_hot(torch.tensor(numbers, device=self._decoder.device), len(prompts))
        self._policy_of_row = one_hot.to(self._decoder.dtype)
        return torch.cat(hidden)

    def _prefill(self, prompts: Sequence[list[int]]) -> Tensor:
        """Runs the prompts of one policy: what they start with once for all rows, the rest padded on the left."""
        device = self._decoder.device
        shared = prefix_length(prompts, limit=min(map(len, prompts)) - 1)
        if shared:
            stores = [block.kv for block in self._blocks]
            for block in self._blocks:
                block.kv = torch.zeros_like(block.kv[:1, :, :shared])
            self._column = shared
            self._forward(torch.tensor([prompts[0][:shared]], device=device), None, None)
            for block, store in zip(self._blocks, stores, strict=True):
                store[:, :, :shared] = block.kv
                block.kv = store
        rest = [prompt[shared:] for prompt in prompts]
        width = max(map(len, rest))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rest], device=device)
        pads = width - torch.tensor([len(row) for row in rest], device=device)[:, None]
        steps = torch.arange(width, device=device)
        real = steps >= pads
        causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()[None]
        ragged = len(set(map(len, rest))) > 1
        if ragged:
            self._mask = self._blocks[0].kv.new_zeros(len(rest), 1, 1, self._blocks[0].kv.shape[2])
            self._mask[:, 0, 0, shared : shared + width].masked_fill_(~real, -torch.inf)
            # A pad looks at itself: a softmax over nothing is not a number.
            causal = (causal & real[:, None]) | torch.eye(width, dtype=torch.bool, device=device)
        self._column = shared + width
        positions = shared + (steps - pads).clamp(min=0)
        self._position = positions[:, -1:]
        mask = F.pad(causal[:, None], (shared, 0), value=True) if ragged or shared else None
        return self._forward(ids, positions if ragged else None, mask)

    def _forward(self, ids: Tensor, positions: Tensor | None, mask: Tensor | None) -> Tensor:
        """Runs the last ids [b, w] of what the cache holds.

        Args:
            ids: the tokens.
            positions: [b, w]; None where nothing is padded: their columns.
            mask: of attention; None: causal.

        Returns:
            The final hidden states [b, d] of the last column, for which alone the last block goes beyond keys and
            values.
        """
        decoder, policy_of_row, end = self._decoder, self._policy_of_row, self._column
        b, w = ids.shape
        places = slice(end - w, end) if positions is None else positions
        cos, sin = (table[places].unsqueeze(-2) for table in self._angles)
        x = decoder.module.embed_tokens(ids.flatten()).to(decoder.dtype)
        for block, module in zip(self._blocks, decoder.module.layers, strict=True):
            heads = decoder.rotated(block, x, (b, w), (cos, sin), policy_of_row)
            block.kv[:, :, end - w : end] = heads[:, decoder.heads :]
            queries = heads[:, : decoder.heads]
            if block is self._blocks[-1]:
                queries, x = queries[:, :, -1:], x.view(b, w, -1)[:, -1]
                mask = None if mask is None else mask[:, :, -1:]
            attended = attend(queries, block.kv[:, :, :end], mask).reshape(len(x), -1)
            x = decoder.feed_forward(block, module, attended, x, policy_of_row)
        return decoder.norm(x, self._last_norm)

    def static_step(self) -> StaticStep:
        """Returns how the cache goes on with tensors of fixed shape, in place of ``decode`` and ``compact``."""
        shape = (self._rows, 1, 1, self._blocks[0].kv.shape[2])
        mask = self._blocks[0].kv.new_zeros(shape) if self._mask is None else self._mask.clone()
        mask[..., self._column :] = -torch.inf
        column = torch.tensor([self._column], device=mask.device)
        return StaticStep(
            self._decoder,
            self._blocks,
            self._angles,
            self._last_norm,
            self._policy_of_row,
            mask,
            self._position.clone(),
            column,
        )
