"""Decoding through transformers' own forward pass: for every model that ``decode.py`` does not know."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from marft_algos.models.loading import Trunk, prefix_length, run_prefix


class PlainPast:
    """What the rows of a batch have seen; grows by a token a row.

    Args:
        trunk: the model without its head, at the weights to sample from.
        model: the model it belongs to (for its configuration and device).
        room: tokens to allocate room for.
    """

    def __init__(self, trunk: Trunk, model: PreTrainedModel, room: int) -> None:
        self._trunk, self._model, self._room = trunk, model, room

    def read(self, prompts: Sequence[list[int]]) -> Tensor:
        """Runs the prompts: what they all start with once, the rest padded on the left.

        Returns:
            The final states [b, d] at the prompts' last tokens.
        """
        shared = prefix_length(prompts, limit=min(map(len, prompts)) - 1)
        if _has_window(self._model):  # windows count columns, and between a shared prefix and a text lie pads
            shared = 0
        rest = [prompt[shared:] for prompt in prompts]
        width, device = max(map(len, rest)), self._model.device
        self._cache = run_prefix(self._trunk, prompts[0][:shared], len(prompts), self._model, room=self._room)
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rest], device=device)
        lengths = torch.tensor([len(row) for row in rest], device=device)
        real = torch.arange(width, device=device) >= width - lengths[:, None]
        mask = torch.cat([real.new_ones(len(rest), shared), real], dim=1)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        self._mask, self._position = mask.long(), positions[:, -1:]
        self._ragged = not bool(real.all())
        return self._run(ids, positions[:, shared:])

    def step(self, token: Tensor) -> Tensor:
        """Returns the final states [b, d] after one more token [b] a row."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(self._mask), 1)], dim=1)
        self._position = self._position + 1
        return self._run(token[:, None], self._position)

    def keep(self, rows: Tensor) -> None:
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


def _has_window(model: PreTrainedModel) -> bool:
    return any(getattr(layer, "is_sliding", False) for layer in DynamicCache(config=model.config).layers)
