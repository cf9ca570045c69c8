"""A fused forward pass for decoding: Qwen2, Qwen3, Llama, Mistral and Gemma, several policies of one base at once.

Prompts run in the text pass. A step computes what transformers' modules compute, in fewer and larger steps: query, key
and value in one product, gate and up in another, keys and values written into memory allocated ahead, the queries of a
group laid out as length so that keys are not repeated. Policies that share a base decode in one batch; their adapters
stay beside the weights, and each row takes part in its own policy's only.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from marft_algos.models import attention
from marft_algos.models.forward.families import FusedLinear
from marft_algos.models.forward.nodes import Norm
from marft_algos.models.forward.text import Adapted, Factors, Memory, TextPass
from marft_algos.models.switches import fused_passes
from marft_algos.models.weights import Weights

side_stream = functools.cache(lambda device: torch.cuda.Stream(device))  # for what may be computed beside the rest
ALIGNED = 16
"""Fixed capacities are multiples of it: attention's kernels copy masks whose rows do not begin at such a place."""


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
        thin = None
        if self.down is not None and x.is_cuda and torch.cuda.is_current_stream_capturing():
            side_stream(x.device).wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream(x.device)):  # it is small, and reads nothing but x
                thin = F.linear(x, self.down)
        if residual is None:
            y = F.linear(x, self.weight, self.bias)
        else:
            y = torch.addmm(residual if self.bias is None else residual + self.bias, x, self.weight.T)
        if self.down is None or self.up is None:
            return y
        if thin is None:
            thin = F.linear(x, self.down)
        else:
            torch.cuda.current_stream().wait_stream(side_stream(x.device))
        if policy_of_row is not None:  # products with other policies' adapters are dropped
            thin = (thin.unflatten(-1, (policy_of_row.shape[-1], -1)) * policy_of_row[..., None]).flatten(-2)
        return y.addmm_(thin, self.up.T)


@dataclass(slots=True)
class Block:
    """One block: its weights as they are decoded with, and its keys and values."""

    norms: tuple[Norm, Norm]
    head_norms: tuple[Norm, Norm] | None
    """Of queries and keys, before the rotation (Qwen3)."""
    kv: Tensor
    """[b, 2 * kv_heads, capacity, head_dim]: keys, then values."""
    qkv: AdaptedLinear
    out: AdaptedLinear
    gate_up: AdaptedLinear
    down: AdaptedLinear

    def weights(self) -> list[Tensor]:
        """Returns the tensors that a step reads, in a fixed order."""
        norms = [norm.scale for norm in (*self.norms, *(self.head_norms or ()))]
        linears = (self.qkv, self.out, self.gate_up, self.down)
        parts = [part for one in linears for part in (one.weight, one.bias, one.down, one.up)]
        return [*norms, *(part for part in parts if part is not None)]


def kept_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Moves these rows to the front, in the same memory, and returns them."""
    x[: len(rows)] = x[rows]
    return x[: len(rows)]


@dataclass(slots=True)
class KeptContext:
    """Keys and values of what one row has read and written."""

    tokens: list[int]
    blocks: list[Tensor]
    """Of each block [rows, 2 * kv_heads, capacity, head_dim], of a whole batch."""
    row: int
    first: int
    """Column of the first token."""


Known = tuple[KeptContext, int]
"""A context that was kept, and how many of its first tokens a prompt begins with: fewer than the prompt has."""


class FusedDecoder(TextPass):
    """What all caches over one model share.

    Args:
        model: without adapters (a base model or a fully fine-tuned copy).
        dtype: compute dtype.

    Raises:
        Unsupported: see ``TextPass``.
    """

    @functools.cached_property
    def attends(self) -> bool:
        """Whether many rows attend by a kernel of our own."""
        sizes, on_gpu = (self.heads, self.kv_heads, self.head_dim), self.device.type == "cuda"
        return on_gpu and "attention" in fused_passes() and attention.rows_usable(*sizes, self.dtype, self.device)

    def probe(self, ids: Tensor) -> Tensor:
        """Reads the first token ids of [1, T], decodes the last ones; returns the states there."""
        rows = -(-attention.PROGRAMS // self.kv_heads) if self.attends else 1
        cache, length = FusedCache(self, [], rows, ids.shape[1], fixed=self.attends), ids.shape[1] * 5 // 6
        first = cache.prefill([[ids[0, :length].tolist()] * rows])[:1]
        return torch.cat([first, *(cache.decode(ids[:, i].expand(rows))[:1] for i in range(length, ids.shape[1]))])

    def blocks(
        self, policies: Sequence[Sequence[Adapted]], rows: int, capacity: int, memory: list[Tensor] | None = None
    ) -> list[Block]:
        """Returns the blocks with all policies' adapters, and places for keys and values.

        They are zeros, or lie in ``memory``, one tensor a block, which is filled where it is empty.
        """
        shape = (rows, 2 * self.kv_heads, capacity, self.head_dim)
        blocks, memory = list[Block](), [] if memory is None else memory
        for linears, block, *adapted in zip(self.linears, self.module.layers, *policies, strict=True):
            attention, head_norms = block.self_attn, None
            if hasattr(attention, "q_norm"):
                head_norms = self.norm(attention.q_norm), self.norm(attention.k_norm)
            norms = self.norm(block.input_layernorm), self.norm(block.post_attention_layernorm)
            if fresh := len(memory) == len(blocks):
                memory.append(torch.zeros(math.prod(shape), dtype=self.dtype, device=self.device))
            kv = memory[len(blocks)][: math.prod(shape)].view(shape)
            blocks.append(Block(norms, head_norms, kv if fresh else kv.zero_(), *map(self._joined, linears, *adapted)))
        return blocks

    def norm(self, module: torch.nn.Module) -> Norm:
        """Returns a norm whose factors are of the compute dtype."""
        norm = self.norms[module]
        return dataclasses.replace(norm, scale=norm.scale.to(self.dtype))

    def _joined(self, base: FusedLinear, *policies: tuple[FusedLinear, Factors]) -> AdaptedLinear:
        """Puts the adapters of all policies beside the weights; that of a single one may be added to them already."""
        bias, (first, *others) = None if base.bias is None else base.bias.to(self.dtype), policies
        if first[0].merged and not others:
            return AdaptedLinear(first[0].weight, bias)
        pairs = [(a, b) for _, (a, b) in policies if a is not None and b is not None]
        factors = (torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs], 1)) if pairs else ()
        return AdaptedLinear(base.weight.to(self.dtype), bias, *factors)


class FusedCache:
    """Keys and values of the rows of a batch, and the weights they are computed with; grows by a token a row.

    A fixed one is attended to in its whole capacity, under a mask, and its places are tensors that ``decode`` moves on
    itself. So a step has no shape and no branch that depends on how far it has got: it can be captured in a CUDA graph
    (``marft_algos.engines.sampler``), or compiled without breaks. All that it reads and writes stays where it is when
    rows are dropped, and when it is renewed for another batch.

    Args:
        decoder: the model.
        policies: whose weights; none: the model's own.
        rows: in the batch.
        capacity: tokens of a row to allocate memory for.
        fixed: let steps be of fixed shape.
        memory: for keys and values, see ``FusedDecoder.blocks``.
    """

    @torch.no_grad()
    def __init__(
        self,
        decoder: FusedDecoder,
        policies: Sequence[Weights],
        rows: int,
        capacity: int,
        fixed: bool = False,
        memory: list[Tensor] | None = None,
    ) -> None:
        capacity += -capacity % ALIGNED if fixed else 0
        self._decoder, self._fixed, self.keeps = decoder, fixed, False
        self._attends = fixed and rows * decoder.kv_heads >= attention.PROGRAMS and decoder.attends
        decoder.read_norms()
        self._adapted = list(map(decoder.adapted, policies or (None,)))
        self._blocks = decoder.blocks(self._adapted, rows, capacity, memory)
        self._last_norm = decoder.norm(decoder.module.norm)
        self._angles = decoder.angles(capacity)
        kv = self._blocks[0].kv
        self._policy_of_row = kv.new_zeros(rows, len(policies)) if len(policies) > 1 else None
        """[b, P], 1 at each row's policy; None where all rows have the same."""
        self._position = torch.zeros(rows, 1, dtype=torch.long, device=decoder.device)
        self._column = torch.zeros(1, dtype=torch.long, device=decoder.device)
        self._mask: Tensor | None = kv.new_zeros(rows, 1, 1, capacity)
        """[b, 1, 1, capacity], -inf at pads, of a fixed one also at what is not decoded yet, else 0; None where nothing
        is masked."""
        self._whole = [block.kv for block in self._blocks], self._position, self._policy_of_row, self._mask
        self._numbers: list[int] = []
        """Of the rows that are left."""
        self._dropped: dict[int, tuple[list[Tensor], int]] = {}

    @torch.no_grad()
    def renew(self, policies: Sequence[Weights]) -> None:
        """Makes a fixed one ready for a batch of as many policies on the same model, at their present weights."""
        decoder, self._dropped = self._decoder, {}
        decoder.read_norms()
        self._adapted = list(map(decoder.adapted, policies))
        for block, now in zip(self._blocks, decoder.blocks(self._adapted, 0, 0), strict=True):
            for old, new in zip(block.weights(), now.weights(), strict=True):
                if old.data_ptr() != new.data_ptr():  # else it is the model's own
                    old.copy_(new)
        self._last_norm.scale.copy_(decoder.norm(decoder.module.norm).scale)
        memory, self._position, self._policy_of_row, self._mask = self._whole
        for block, kv in zip(self._blocks, memory, strict=True):
            block.kv = kv.zero_()
        for part in self._whole[1:]:
            if part is not None:
                part.zero_()

    def prefill(self, prompts: Sequence[Sequence[list[int]]], known: Sequence[Known | None] = ()) -> Tensor:
        """Runs the prompts of each policy, first of all tokens; what several of them start with runs once.

        Args:
            prompts: of each policy; rows are in their order, and more rows than prompts hold nothing.
            known: of each row what need not be run.

        Returns:
            The final hidden states [b, d] at the prompts' last tokens.
        """
        texts, decoder = [row for rows in prompts for row in rows], self._decoder
        self._end = max(map(len, texts))
        lengths = torch.tensor(list(map(len, texts)), device=decoder.device)
        self._firsts, self._numbers = [self._end - len(text) for text in texts], list(range(len(self._position)))
        pads = torch.arange(self._end, device=decoder.device) < (self._end - lengths)[:, None]
        assert self._mask is not None
        self._mask[: len(texts), 0, 0, : self._end].masked_fill_(pads, -torch.inf)
        numbers, states = list[int](), list[Tensor]()
        for policy, adapted in enumerate(self._adapted):
            first = sum(map(len, prompts[:policy]))
            rows = range(first, first + len(prompts[policy]))
            for read, part in (
                (self._read, [i for i in rows if not (known and known[i])]),
                (self._continue, [i for i in rows if known and known[i]]),
            ):
                if part:
                    numbers += part
                    states.append(read(part, [texts[i] for i in part], adapted, known))
        if self._policy_of_row is not None:
            policies = [number for number, rows in enumerate(prompts) for _ in rows]
            one_hot = F.one_hot(torch.tensor(policies, device=decoder.device), len(prompts))
            self._policy_of_row[: len(texts)] = one_hot.to(decoder.dtype)
        self._position[: len(texts)] = lengths[:, None] - 1
        self._column.fill_(self._end - 1)
        if self._fixed:
            self._mask[..., self._end :] = -torch.inf
        elif not any(self._firsts):
            self._mask = None
        hidden = torch.cat(states).to(decoder.dtype)
        return hidden if numbers == sorted(numbers) else hidden[torch.tensor(numbers).argsort().to(hidden.device)]

    def _read(
        self, rows: Sequence[int], prompts: Sequence[list[int]], adapted: Sequence[Adapted], known: Sequence[Any]
    ) -> Tensor:
        """Runs whole prompts of one policy into these rows, from its first token on."""
        decoder, columns = self._decoder, torch.arange(max(map(len, prompts)))
        lengths = torch.tensor(list(map(len, prompts)))
        ids = torch.tensor([row + [0] * (len(columns) - len(row)) for row in prompts])
        tokens, layout = decoder.lay_out(ids, columns == lengths[:, None] - 1)
        row, column, number = self._places(rows, [0] * len(rows), lengths.tolist())
        base, shared, start = layout.rows.repeat_interleave(lengths, 1)
        source = torch.where(number < shared, base + number, start - shared + number).to(decoder.device)

        def store(i: int, k: Tensor, v: Tensor) -> None:
            self._blocks[i].kv[row, :, column] = torch.cat([k, v], 1)[source]

        states = decoder.run(tokens, layout, adapted, store=store)
        return states if layout.order is None else states.index_select(0, layout.order)

    def _continue(
        self, rows: Sequence[int], prompts: Sequence[list[int]], adapted: Sequence[Adapted], known: Sequence[Any]
    ) -> Tensor:
        """Copies what is known of prompts of one policy into these rows, and runs the rest."""
        decoder, contexts = self._decoder, [known[i] for i in rows]
        for blocks in {id(context.blocks): context.blocks for context, _ in contexts}.values():
            mine = [(i, *found) for i, found in zip(rows, contexts, strict=True) if found[0].blocks is blocks]
            counts = [n for _, _, n in mine]
            row, column, number = self._places([i for i, _, _ in mine], [0] * len(mine), counts)
            there = torch.tensor([(context.row, context.first) for _, context, _ in mine])
            from_row, from_column = there.T.repeat_interleave(torch.tensor(counts), 1).to(decoder.device)
            from_column = from_column + number.to(decoder.device)
            for block, kept in zip(self._blocks, blocks, strict=True):
                block.kv[row, :, column] = kept[from_row, :, from_column]
        tokens, layout, mask = decoder.continued(prompts, [n for _, n in contexts], self._end)
        counts = [n for _, n in contexts]
        row, column, _ = self._places(rows, counts, [len(text) - n for text, n in zip(prompts, counts, strict=True)])
        at = torch.tensor(rows, device=decoder.device)

        def store(i: int, k: Tensor, v: Tensor) -> Memory:
            kv = self._blocks[i].kv
            kv[row, :, column] = torch.cat([k, v], 1)
            keys, values = kv[at, :, : self._end].chunk(2, 1)
            return keys, values, mask

        return decoder.run(tokens, layout, adapted, store=store)

    def _places(self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> tuple[Tensor, ...]:
        """Returns row and column of so many tokens of each row from a place on, and on the host their numbers there."""
        each = torch.tensor([(i, self._firsts[i] + start) for i, start in zip(rows, starts, strict=True)])
        counted = torch.tensor(counts)
        row, column = each.T.repeat_interleave(counted, 1)
        number = torch.arange(len(row)) - (counted.cumsum(0) - counted).repeat_interleave(counted)
        return row.to(self._decoder.device), (column + number).to(self._decoder.device), number

    def decode(self, token: Tensor) -> Tensor:
        """Returns the final hidden states [b, d] after one more token [b] a row."""
        decoder, rows, mask = self._decoder, self._policy_of_row, self._mask
        self._position.add_(1)
        place: Tensor | slice = self._column.add_(1)
        if self._fixed and mask is not None:
            end, mask = None, None if self._attends else mask.index_fill_(3, self._column, 0.0)
        else:
            end, place = self._end + 1, slice(self._end, self._end + 1)
            mask, self._end = None if mask is None else mask[..., :end], end
        cos, sin = (table[self._position] for table in self._angles)
        x = decoder.module.embed_tokens(token).to(decoder.dtype)
        for block, module in zip(self._blocks, decoder.module.layers, strict=True):
            qkv = block.qkv(block.norms[0](x), rows).unflatten(-1, (-1, decoder.head_dim))
            q, k, _ = qkv.split([decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
            if block.head_norms is not None:
                for part, norm in zip((q, k), block.head_norms, strict=True):
                    part.copy_(norm(part))
            qk = qkv[:, : -decoder.kv_heads]
            rolled = qk.roll(decoder.head_dim // 2, -1)
            qk.mul_(cos).addcmul_(rolled, sin)
            block.kv[:, :, place] = qkv[:, decoder.heads :, None]
            if self._attends:
                attended = attention.attend_rows(q, block.kv, self._position, self._column)
            else:
                keys, values = block.kv[:, :, :end].chunk(2, dim=1)
                grouped = q.reshape(len(x), decoder.kv_heads, -1, decoder.head_dim)  # as a sequence: no key is repeated
                attended = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            x = block.out(attended.reshape(len(x), -1), rows, x)
            gate, up = block.gate_up(block.norms[1](x), rows).chunk(2, dim=-1)
            x = block.down(module.mlp.act_fn(gate).mul_(up), rows, x)
        return self._last_norm(x)

    def compact(self, rows: Tensor) -> None:
        """Drops all rows but these; a graph of a step is of no use to fewer rows."""
        n, end = len(rows), None if self._fixed else self._end
        if self.keeps:
            self._keep(rows)
        for block in self._blocks:
            block.kv[:n, :, :end] = block.kv[rows, :, :end]
            block.kv = block.kv[:n]
        self._position = kept_rows(self._position, rows)
        self._mask = None if self._mask is None else kept_rows(self._mask, rows)
        self._policy_of_row = None if self._policy_of_row is None else kept_rows(self._policy_of_row, rows)

    def _keep(self, rows: Tensor) -> None:
        """Copies keys and values of the rows that are dropped."""
        here = self._numbers
        self._numbers, left = [here[i] for i in rows.tolist()], set(rows.tolist())
        gone = [i for i in range(len(here)) if i not in left]
        end = None if self._fixed else self._end
        blocks = [block.kv[torch.tensor(gone, device=rows.device), :, :end] for block in self._blocks]
        self._dropped |= {here[i]: (blocks, k) for k, i in enumerate(gone)}

    def contexts(self, texts: Sequence[list[int]]) -> list[KeptContext]:
        """Returns what has been read and written, row by row, whether a row was dropped or not.

        Args:
            texts: of each row, prompt and reply; of the last token there are no keys.

        Returns:
            One of each row; none where nobody would ask for them.
        """
        if not self.keeps:
            return []
        blocks = [block.kv for block in self._blocks]
        if self._fixed:  # it is written over by the next batch
            end = max(first + len(text) for first, text in zip(self._firsts, texts, strict=True))
            blocks = [kv[:, :, :end].clone() for kv in blocks]
        places = self._dropped | {number: (blocks, k) for k, number in enumerate(self._numbers)}
        return [KeptContext(text[:-1], *places[i], self._firsts[i]) for i, text in enumerate(texts)]
