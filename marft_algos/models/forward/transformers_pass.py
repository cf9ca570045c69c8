"""Transformers' own forward pass: for every model that the fused passes do not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from marft_algos.memory import MIN_PREFIX, common
from marft_algos.models.weights import Trunk


def prefix_length(rows: Sequence[list[int]], limit: int) -> int:
    """Returns how many first tokens all rows share, at most ``limit``; 0 where sharing would save nothing."""
    shared = min(common(min(rows), max(rows)), limit)  # in lexicographic order: what these two share, all share
    return shared if len(rows) > 1 and shared >= MIN_PREFIX else 0


def hidden_states(
    trunk: Trunk, model: PreTrainedModel, ids: Tensor, wanted: Tensor, *, share_prefix: bool = True
) -> Tensor:
    """Returns the trunk's final hidden states [n, d] at the wanted positions, row by row.

    Turns of one policy start with the same profile; that shared prefix runs once, not once a row. Right pads need no
    mask: attention is causal, and what pads see is not read.

    Args:
        trunk: the model without its head.
        model: the model it belongs to (for its configuration).
        ids: [B, T], right-padded with any id.
        wanted: bool [B, T], n of them true.
        share_prefix: False where every batch has to be one pass.
    """
    columns = wanted.any(0).nonzero()
    shared = prefix_length(ids.tolist(), limit=int(columns[0])) if share_prefix and len(columns) else 0
    if not shared:
        return trunk(input_ids=ids, use_cache=False).last_hidden_state[wanted]
    cache = DynamicCache(config=model.config)
    _prefill_shared(trunk, cache, ids[:1, :shared], len(ids))
    output = trunk(input_ids=ids[:, shared:], past_key_values=cache, use_cache=True)
    return output.last_hidden_state[wanted[:, shared:]]


class PlainCache:
    """Keys and values of the rows of a batch; grows by a token a row.

    Args:
        trunk: the model without its head, at the weights to sample from.
        model: the model it belongs to (for its configuration and device).
        capacity: tokens of a row to allocate memory for.
    """

    def __init__(self, trunk: Trunk, model: PreTrainedModel, capacity: int) -> None:
        self._trunk, self._model, self.keeps = trunk, model, False
        self._cache = DynamicCache(config=model.config)
        self._windowed = any(getattr(layer, "is_sliding", False) for layer in self._cache.layers)
        if all(type(layer) is DynamicLayer for layer in self._cache.layers):
            self._cache.layers = [_AllocatedLayer(capacity) for _ in self._cache.layers]

    def prefill(self, prompts: Sequence[Sequence[list[int]]], known: Sequence[Any] = ()) -> Tensor:
        """Runs the prompts of one policy: what they all start with once, the rest padded on the left.

        Nothing is known of them: ``contexts`` gives nothing.

        Returns:
            The final hidden states [b, d] at the prompts' last tokens.
        """
        (rows,) = prompts
        shared = prefix_length(rows, limit=min(map(len, rows)) - 1)
        if self._windowed:  # windows count columns, and between a shared prefix and a text lie pads
            shared = 0
        device = self._model.device
        if shared:
            _prefill_shared(self._trunk, self._cache, torch.tensor([rows[0][:shared]], device=device), len(rows))
        rest = [row[shared:] for row in rows]
        width = max(map(len, rest))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rest], device=device)
        lengths = torch.tensor([len(row) for row in rest], device=device)
        real = torch.arange(width, device=device) >= width - lengths[:, None]
        mask = torch.cat([real.new_ones(len(rest), shared), real], dim=1)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        self._mask, self._position = mask.long(), positions[:, -1:]
        self._ragged = len(set(map(len, rest))) > 1
        return self._run(ids, positions[:, shared:])

    def decode(self, token: Tensor) -> Tensor:
        """Returns the final hidden states [b, d] after one more token [b] a row."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self._position = self._position + 1
        return self._run(token[:, None], self._position)

    def contexts(self, texts: Sequence[list[int]]) -> list[Any]:
        """Returns nothing that could be read on from."""
        return []

    def compact(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self._cache.batch_select_indices(rows)
        self._mask, self._position = self._mask[rows], self._position[rows]

    def _run(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self._trunk(
            input_ids=ids,
            attention_mask=self._mask if self._ragged else None,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return output.last_hidden_state[:, -1]


class _AllocatedLayer(DynamicLayer):
    """Keys and values in memory allocated ahead: appending a token copies that token, not all before it."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._stores: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        end = old + key_states.shape[-2]
        assert self.keys is not None and self.values is not None
        if not self._stores or self.keys.data_ptr() != self._stores[0].data_ptr():  # first use, or rows were dropped
            shapes = [(*new.shape[:-2], self._capacity, new.shape[-1]) for new in (key_states, value_states)]
            self._stores = [key_states.new_empty(shape) for shape in shapes]
            for store, past in zip(self._stores, (self.keys, self.values), strict=True):
                if old:
                    store[..., :old, :] = past
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[..., old:end, :] = new
        self.keys, self.values = (store[..., :end, :] for store in self._stores)
        return self.keys, self.values


def _prefill_shared(trunk: Trunk, cache: DynamicCache, ids: Tensor, batch: int) -> None:
    """Runs the first tokens [1, n] that every row shares once, and repeats the cache for the batch."""
    trunk(input_ids=ids, past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(batch)
