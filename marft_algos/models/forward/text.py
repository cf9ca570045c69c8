"""A fused forward pass over whole texts, in float32 or bfloat16: for scoring, training, features and prompts.

It computes what transformers' modules compute, and less of it: what all rows start with runs once, pads and tokens that
nothing is read behind do not run through any linear layer, the last block goes beyond attention at the wanted positions
only, keys are not repeated for the queries that share them, and the gradient of a frozen weight is never formed.
Adapters stay beside the weights, but for those of small models in float32, which are added to them. Of each block five
tensors are kept for the backward pass; norms and activations, which cost little, are computed again. The residual
stream, norms and the rotation are float32 whatever the compute dtype; so is, on a CPU, attention where it is scored and
trained: torch's gradient of it takes up to five times as long there in bfloat16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from marft_algos.memory import Sharing, share
from marft_algos.models.attention import flash_fits
from marft_algos.models.forward.check import agrees
from marft_algos.models.forward.families import SAME_INPUT, FusedLinear, check_family, fuse
from marft_algos.models.forward.nodes import FeedForward, Norm, Normed, NormLinear, Rotation, Stacked
from marft_algos.models.switches import fused_passes
from marft_algos.models.weights import Weights

LONG = 256
"""Tokens from which on a CPU's kernel computes less under a causal pattern than under a mask that says the same."""
Memory = tuple[Tensor, Tensor, Tensor]
"""Keys and values that rows attend to, [B, kv_heads, end, head_dim] each, and who may: [B, 1, width, end]."""
Store = Callable[[int, Tensor, Tensor], Memory | None]
"""Takes a block's number, and the tokens' keys and values there, [tokens, kv_heads, head_dim] each; returns what they
attend to, where it is more than each other."""
Factors = tuple[Tensor, Tensor] | tuple[None, None]
"""An adapter: [r, in] and, scaled, [out, r]; of layers laid end to end, their ranks added."""
Adapted = Sequence[tuple[FusedLinear, Factors]]
"""The linear layers of a block, and the adapters on them, with gradients."""


@dataclass(slots=True)
class GroupLayout:
    """Where the tokens of some rows are: the shared ones first, then those of each row, without pads."""

    batch: int
    shared: int
    """Tokens that all rows start with, computed once."""
    width: int
    """Of the longest row's others."""
    slots: Tensor | None
    """Place of each token in [batch, width]; None where nothing is padded."""
    first: int
    """Column of those at which the first hidden state is wanted: in the last block, none before it attends."""
    ends: Tensor
    """Where hidden states are wanted, in [batch, width - first]."""
    mask: Tensor | None
    """[width, shared + width] of attention; None: causal, from the first column on."""
    named: bool
    """Whether that mask may go by its name, causal and aligned to the lower right: a flash kernel knows no other."""


@dataclass(slots=True)
class TokenLayout:
    """The tokens of a batch, group by group; those that several rows begin with stand there once."""

    groups: list[GroupLayout]
    sizes: list[int]
    """Tokens of each group."""
    wanted: Tensor
    """Places among all tokens at which hidden states are wanted."""
    order: Tensor | None
    """For every wanted position, row by row, which of those states it has; None: they are in that order."""
    rotary: tuple[Tensor, Tensor]
    """Cosines and signed sines [tokens, 1, head_dim], float32."""
    rows: Tensor
    """[3, B], of each row: place of its first token, how many stand there, and place of the one behind those."""


class TextPass:
    """The pass over a model without its head; weights of the base are frozen, gradients go to adapters.

    The weights of linear layers that read the same input are laid end to end once; the modules keep views of them, so
    nothing is held twice and an optimiser's step is seen at once.

    Args:
        model: without adapters.
        dtype: compute dtype.

    Raises:
        Unsupported: another architecture, a variant that is not computed here, or a result that differs from
            transformers' by more than rounding.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self.module, self.dtype = cast(Any, model.base_model), dtype
        config = model.config.get_text_config()
        check_family(self.module, config)
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = self.module.layers[0].self_attn.head_dim
        self.epsilon = float(config.rms_norm_eps)
        self.eps = torch.tensor(self.epsilon, device=self.device)
        self.linears = [
            [fuse(f"layers.{i}", block, parts) for parts in SAME_INPUT] for i, block in enumerate(self.module.layers)
        ]
        self.norms: dict[nn.Module, Norm] = {}
        self.read_norms()
        self._named = self.device.type == "cuda" and "attention" in fused_passes()
        self._shares = "prefix" in fused_passes()
        self.counted: Counter[str] = Counter()
        """Tokens of the rows as they are read, and those that were computed."""
        agrees(model, dtype, self.probe)
        self.counted.clear()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.module.embed_tokens.weight.device

    def probe(self, ids: Tensor) -> Tensor:
        """Returns the final hidden states of token ids [1, T], by which the pass is judged."""
        return self.hidden_states(ids, torch.ones_like(ids, dtype=torch.bool))

    def read_norms(self) -> None:
        """Reads the factors of the norms from the model."""
        for norm in self.module.modules():
            if type(norm) is type(self.module.norm):
                self.norms[norm] = Norm(self.scale(norm), self.eps, self.epsilon, self.dtype)

    def scale(self, norm: nn.Module) -> Tensor:
        """Returns a norm's factors, float32: its weight, for Gemma 1 + its weight."""
        weight = cast(Tensor, norm.weight).detach()
        gemma = type(self.module).__name__ == "GemmaModel"
        return (weight.float() + 1.0 if gemma else weight).to(self.dtype).float()

    def angles(self, length: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and signed sines of the rotary embedding, [length, head_dim] each."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        cos, sin = self.module.rotary_emb(like, torch.arange(length, device=self.device)[None])
        half = self.head_dim // 2
        return cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)

    def hidden_states(
        self, ids: Tensor, wanted: Tensor, weights: Weights | None = None, *, checkpointing: bool = False
    ) -> Tensor:
        """Returns final hidden states [n, d], float32, at the wanted positions, row by row.

        Args:
            ids: [B, T], right-padded with any id.
            wanted: bool [B, T], n of them true.
            weights: whose adapter; None: the base model.
            checkpointing: keep the blocks' inputs only, and compute the rest again on the way back.
        """
        tokens, layout = self.lay_out(ids, wanted)
        states = self.run(tokens, layout, self.adapted(weights), checkpointing=checkpointing)
        return states if layout.order is None else states.index_select(0, layout.order)

    def lay_out(self, ids: Tensor, wanted: Tensor) -> tuple[Tensor, TokenLayout]:
        """Returns the tokens to compute and where they are, on the model's device."""
        ids, wanted = ids.cpu(), wanted.cpu()
        steps = torch.arange(ids.shape[1])
        ends = torch.where(wanted, steps + 1, 0).amax(1).tolist()  # nothing is read behind a row's last wanted position
        firsts = torch.where(wanted, steps, ids.shape[1]).amin(1).tolist()
        texts = [row[:end] for row, end in zip(ids.tolist(), ends, strict=True)]
        free, alone = [min(pair) for pair in zip(firsts, ends, strict=True)], list(range(len(texts)))
        found = share(texts, free) if self._shares else Sharing(alone, [(alone, 0)])
        read, lengths = wanted, torch.tensor(ends)
        if any(host != i for i, host in enumerate(found.within)):
            read = wanted.clone()
            for i, host in enumerate(found.within):
                read[host] |= wanted[i]
        rows = torch.zeros(3, len(texts), dtype=torch.long)
        groups, tokens, positions, places, base = list[GroupLayout](), list[Tensor](), list[Tensor](), list[Tensor](), 0
        for members, shared in found.groups:
            real = steps < lengths[members, None]
            group, where, rest = self._group(read[members], real, shared)
            counts = lengths[members] - shared
            rows[0, members], rows[1, members] = base, shared
            rows[2, members] = base + shared + counts.cumsum(0) - counts
            tokens += [ids[members[0], :shared], ids[members, shared : shared + group.width][rest]]
            positions += [steps[:shared], steps[shared : shared + group.width].expand(rest.shape)[rest]]
            groups.append(group)
            places.append(base + shared + where)
            base += shared + int(counts.sum())
        sizes = [len(a) + len(b) for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
        rows, where = rows[:, found.within], torch.cat(places)
        as_they_are = found.groups == [(alone, found.groups[0][1])]
        order = None if as_they_are else _order(rows, wanted, where, base).to(self.device)
        self.counted["read"] += sum(ends)
        self.counted["computed"] += base
        rotary = self._rotary(torch.cat(positions))
        return torch.cat(tokens).to(self.device), TokenLayout(groups, sizes, where.to(self.device), order, rotary, rows)

    def continued(
        self, texts: Sequence[list[int]], known: Sequence[int], end: int
    ) -> tuple[Tensor, TokenLayout, Tensor]:
        """Lays out what texts hold behind their first tokens, whose keys and values stand in memory already.

        Args:
            texts: token ids.
            known: how many first ones.
            end: columns of the memory; the texts end there.

        Returns:
            The tokens to compute, where they are, and which columns they attend to: [B, 1, width, end].
        """
        rest = [text[n:] for text, n in zip(texts, known, strict=True)]
        lengths = torch.tensor(list(map(len, rest)))
        real = torch.arange(int(lengths.max())) < lengths[:, None]
        group, places, _ = self._group(torch.arange(real.shape[1]) == lengths[:, None] - 1, real, 0)
        positions = torch.tensor([k for text, n in zip(texts, known, strict=True) for k in range(n, len(text))])
        columns = torch.arange(end)
        column = (end - lengths[:, None] + torch.arange(real.shape[1])).clamp(max=end - 1)[..., None]
        firsts = end - torch.tensor(list(map(len, texts)))[:, None, None]
        mask = ((columns >= firsts) & (columns <= column))[:, None].to(self.device)
        tokens = [token for row in rest for token in row]
        self.counted["read"] += sum(map(len, texts))
        self.counted["computed"] += len(tokens)
        layout = TokenLayout([group], [len(tokens)], places.to(self.device), None, self._rotary(positions), lengths)
        return torch.tensor(tokens, device=self.device), layout, mask

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.angles(int(positions.max()) + 1 if len(positions) else 1)
        at = positions.to(self.device)
        return cos[at][:, None].float(), sin[at][:, None].float()

    def _group(self, wanted: Tensor, real: Tensor, shared: int) -> tuple[GroupLayout, Tensor, Tensor]:
        """Lays out rows [B, T] of a group.

        Returns:
            The layout, where states are wanted among what the rows do not share, and which places of [B, width] hold
            that.
        """
        batch, width = len(real), max(int(real.sum(1).max()) - shared, 1)
        keep, real = wanted[:, shared : shared + width], real[:, shared : shared + width]
        slots = None if bool(real.all()) else real.flatten().nonzero()[:, 0].to(self.device)
        columns = keep.any(0).nonzero()
        first = int(columns[0]) if len(columns) else 0
        ends = keep[:, first:].flatten().nonzero()[:, 0].to(self.device)
        causal = torch.ones(width, shared + width, dtype=torch.bool, device=self.device).tril(shared)
        mask = causal if shared or first else None
        places = (keep.flatten() if slots is None else keep[real]).nonzero()[:, 0]
        return GroupLayout(batch, shared, width, slots, first, ends, mask, self._named), places, real

    def run(
        self,
        tokens: Tensor,
        layout: TokenLayout,
        blocks: Sequence[Adapted],
        *,
        checkpointing: bool = False,
        store: Store | None = None,
    ) -> Tensor:
        """As ``hidden_states``, of tokens that are laid out.

        Args:
            tokens: [tokens].
            layout: of them.
            blocks: as ``adapted`` returns them.
            checkpointing: keep the blocks' inputs only.
            store: gets keys and values.
        """
        with torch.autocast(self.device.type, enabled=False):
            x = self.module.embed_tokens(tokens).float()
            for i, block in enumerate(blocks):
                if checkpointing and torch.is_grad_enabled():
                    x = checkpoint(self._block, i, x, block, layout, use_reentrant=False, preserve_rng_state=False)
                else:
                    x = self._block(i, x, block, layout, store)
            return self._normed(x, self.module.norm)

    def _block(self, i: int, x: Tensor, adapted: Adapted, layout: TokenLayout, store: Store | None = None) -> Tensor:
        """[tokens, d] -> [tokens, d], of the last block the wanted tokens only; float32."""
        block, (linears, factors) = self.module.layers[i], zip(*adapted, strict=True)
        rotated, kv = self.heads + self.kv_heads, self.kv_heads
        y = NormLinear.apply(x, self.norms[block.input_layernorm], linears[0], *factors[0])
        qk, v = y.unflatten(-1, (-1, self.head_dim)).split([rotated, kv], dim=1)
        if hasattr(block.self_attn, "q_norm"):
            q, k = qk.float().split([self.heads, kv], dim=1)
            qk = torch.cat([self._normed(q, block.self_attn.q_norm), self._normed(k, block.self_attn.k_norm)], 1)
        dtype = self.dtype if store is not None or self.device.type == "cuda" else torch.float32
        q, k = Rotation.apply(qk, *layout.rotary, dtype).split([self.heads, kv], dim=1)
        v = v.to(dtype)
        memory = store(i, k, v) if store is not None else None
        last = i == len(self.module.layers) - 1
        q_of, k_of, v_of = (part.split(layout.sizes) for part in (q, k, v))
        parts = zip(q_of, k_of, v_of, layout.groups, strict=True)
        groups = [_attend(*part, last=last, memory=memory) for part in parts]
        attended = (groups[0] if len(groups) == 1 else torch.cat(groups)).flatten(1).to(self.dtype)
        x = x[layout.wanted] if last else x
        rest = [factor for pair in factors[1:] for factor in pair]
        norm = self.norms[block.post_attention_layernorm]
        return FeedForward.apply(attended, x, norm, linears[1:], block.mlp.act_fn, *rest)

    def _normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        return Normed.apply(x, self.norms[norm])

    def adapted(self, weights: Weights | None) -> list[Adapted]:
        """Returns the linear layers of each block with a policy's adapters on them; without weights, with none."""
        blocks = list[list[tuple[FusedLinear, Factors]]]()
        for linears in self.linears:
            blocks.append([])
            for linear in linears:
                blocks[-1].append((linear, (None, None)) if weights is None else self._adapted(linear, weights))
        return list[Adapted](blocks)

    def _adapted(self, linear: FusedLinear, weights: Weights) -> tuple[FusedLinear, Factors]:
        if not any(found := list(map(weights.factors, linear.names))):
            return linear, (None, None)
        each = [one or (None, None, 0.0) for one in found]
        scales, factors = [scale for _, _, scale in each], [factor for a, b, _ in each for factor in (a, b)]
        a, b = cast(tuple[Tensor, Tensor], Stacked.apply(self.dtype, linear.sizes, scales, *factors))
        if weights.merged:
            linear = replace(linear, weight=torch.addmm(linear.weight, b.detach(), a.detach()), merged=True)
        return linear, (a, b)


def _attend(q: Tensor, k: Tensor, v: Tensor, group: GroupLayout, *, last: bool, memory: Memory | None = None) -> Tensor:
    """Computes causal attention of a group, in the last block of its wanted tokens: [tokens, heads, head_dim]."""
    shared, batch, first = group.shared, group.batch, group.first if last else 0
    if memory is not None:
        keys, values, mask = memory
        attended = _attention(_padded(q, group)[:, :, first:], keys, values, mask[:, :, first:])
        return _placed(attended.flatten(0, 1), group, last=last)
    whole = _whole(group, first)
    parts = [part.split([shared, len(part) - shared]) for part in (k, v)]
    parts.insert(0, (q[:0], q[shared:]) if last and not whole else q.split([shared, len(q) - shared]))
    before = [part[None].transpose(1, 2) for part, _ in parts]
    rows = [_padded(part, group) for _, part in parts]
    for i in range(0 if whole else 1, 3 if shared else 0):
        rows[i] = torch.cat([before[i].expand(batch, -1, -1, -1), rows[i]], 2)
    if whole:
        everything = _attention(rows[0], rows[1], rows[2], None)
        ahead, attended = everything[0, :shared], everything[:, shared + first :]
    else:
        rows[0] = rows[0][:, :, first:]
        seen = group.mask[first:] if group.mask is not None and (shared or first) else None
        if seen is not None and group.named and flash_fits(rows[0], rows[1], rows[2]):
            seen = causal_lower_right(*seen.shape)
        attended = _attention(rows[0], rows[1], rows[2], seen)
        ahead = before[0][0, :0] if last or not shared else _attention(before[0], before[1], before[2], None)[0]
    attended = _placed(attended.flatten(0, 1), group, last=last)
    return attended if last or not shared else torch.cat([ahead, attended])


def _whole(group: GroupLayout, first: int) -> bool:
    """Returns whether a CPU attends sooner from every place, causally, than from those behind the first, by a mask."""
    length = group.shared + group.width
    return not group.named and LONG <= length < 2 * (group.width - first) and group.mask is not None


def _placed(attended: Tensor, group: GroupLayout, *, last: bool) -> Tensor:
    """Returns the tokens' own of what was computed at every place; of the last block the wanted ones'."""
    places = group.ends if last else group.slots
    return attended if places is None else attended.index_select(0, places)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[batch, heads, …] to [batch, …, heads, head_dim]; causal without a mask."""
    grouped = q.shape[1] != k.shape[1]
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    return attended.transpose(1, 2)


def _padded(part: Tensor, layout: GroupLayout) -> Tensor:
    """Returns the rows' tokens [tokens, heads, …] at their places, zeros between: [batch, heads, width, …]."""
    if layout.slots is not None:
        places = part.new_zeros(layout.batch * layout.width, *part.shape[1:])
        part = places.index_copy(0, layout.slots, part)
    return part.unflatten(0, (layout.batch, layout.width)).transpose(1, 2)


def _order(rows: Tensor, wanted: Tensor, places: Tensor, tokens: int) -> Tensor:
    """Returns which of the states at these places each wanted position has, row by row."""
    row, column = wanted.nonzero(as_tuple=True)
    _, shared, start = rows
    number = torch.empty(tokens, dtype=torch.long)
    number[places] = torch.arange(len(places))
    return number[(start - shared)[row] + column]
