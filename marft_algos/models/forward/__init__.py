"""Forward passes over one model, behind one interface: fused ones of our own where they know it, else transformers'."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from marft_algos.models.forward import transformers_pass
from marft_algos.models.forward.decode import FusedCache, FusedDecoder
from marft_algos.models.forward.families import Unsupported
from marft_algos.models.forward.text import TextPass
from marft_algos.models.sharded import ShardedBase
from marft_algos.models.switches import fused_passes
from marft_algos.models.weights import Weights
from marft_envs.errors import ConfigError

Pass = TypeVar("Pass")
_USES = {"forward": "scored and trained", "decode": "decoded"}
"""A pass of our own -> what is done by it."""


KVCache = FusedCache | transformers_pass.PlainCache
"""Keys and values of the rows of a batch, and the weights they are computed with."""


class ForwardPass:
    """The forward passes over one model without its head, with the adapters of any policies on it.

    Args:
        model: a base model, or a fully fine-tuned copy; without adapters.
        dtype: compute dtype.
        sharded: the model's layers, where ranks hold shares of them. Then it is scored by transformers' own pass, one a
            batch whatever its rows share, and decoded while the layers are gathered.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype, sharded: ShardedBase | None = None) -> None:
        self._model, self._dtype, self._sharded = model, dtype, sharded
        self._allowed = fused_passes()

    def prepare(self) -> None:
        """Makes the pass that scores and trains, and checks it; otherwise the first batch does."""
        if self._sharded is None:
            self._text  # noqa: B018

    def autocast(self) -> torch.autocast:
        """Returns the context that computes in the compute dtype."""
        device = self._model.device.type
        return torch.autocast(device, dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16)

    def shares(self, weights: Weights | None = None) -> bool:
        """Returns whether what several rows of a batch begin with is computed once, whatever else they hold.

        Args:
            weights: a policy on this model; None: the model as it is.
        """
        own = weights is None or weights.peft is not None
        return own and "prefix" in self._allowed and self._sharded is None and self._text is not None

    def take_counted(self) -> Counter[str]:
        """Returns the tokens that ``hidden_states`` of our own was asked to read since the last call, and computed."""
        text, counted = vars(self).get("_text"), Counter[str]()
        if text is not None:
            counted, text.counted = text.counted, counted
        return counted

    def hidden_states(self, ids: Tensor, wanted: Tensor, weights: Weights | None = None) -> Tensor:
        """Returns final hidden states [n, d] at the wanted positions, row by row, with gradients to the adapter.

        Args:
            ids: [B, T], right-padded with any id.
            wanted: bool [B, T], n of them true.
            weights: a policy on this model; None: the model as it is.
        """
        if self._sharded is not None:
            with self._sharded.trunk(weights) as trunk:
                return transformers_pass.hidden_states(trunk, self._model, ids, wanted, share_prefix=False)
        if (weights is None or weights.peft is not None) and self._text is not None:
            return self._text.hidden_states(
                ids, wanted, weights, checkpointing=weights is not None and bool(weights.blocks)
            )
        share_prefix = "prefix" in self._allowed
        if weights is None:
            return transformers_pass.hidden_states(
                self._model.base_model, self._model, ids, wanted, share_prefix=share_prefix
            )
        # Under gradient checkpointing nothing can be added to a cache twice.
        share_prefix &= not weights.blocks or not torch.is_grad_enabled()
        return transformers_pass.hidden_states(weights.trunk(), weights.model, ids, wanted, share_prefix=share_prefix)

    @cached_property
    def _text(self) -> TextPass | None:
        return self._fused("forward", lambda: TextPass(self._model, self._dtype))

    @cached_property
    def _decoder(self) -> FusedDecoder | None:
        if self._sharded is not None and not self._sharded.gathered:
            raise ConfigError(
                f"The layers of '{self._model.name_or_path}' are sharded over ranks, and decoding reads whole ones. An"
                " engine gathers them while it is awake: call engine.wake() on every rank, or type --shard whole."
            )
        return self._fused("decode", lambda: FusedDecoder(self._model, self._dtype))

    def _fused(self, name: str, make: Callable[[], Pass]) -> Pass | None:
        """Makes a pass of our own; where that cannot be, says which one runs instead, and why."""
        try:
            if name not in self._allowed:
                raise Unsupported("may not be fused")
            return make()
        except Unsupported as reason:
            warnings.warn(
                f"'{self._model.name_or_path}' {reason}: it is {_USES[name]} by transformers' own forward pass, which"
                " is slower.",
                stacklevel=5,
            )
            return None

    def release(self) -> None:
        """Lets go of weights that were laid out to decode with."""
        vars(self).pop("_decoder", None)

    @property
    def joint(self) -> bool:
        """Whether rows of several policies decode in one batch; without that, a cache is of one policy."""
        return self._decoder is not None

    def cache(
        self,
        policies: Sequence[Weights],
        rows: int,
        capacity: int,
        *,
        fixed: bool = False,
        memory: list[Tensor] | None = None,
    ) -> KVCache:
        """Returns an empty cache at the policies' present weights.

        Args:
            policies: on this model.
            rows: in the batch.
            capacity: tokens of a row.
            fixed: let steps be of fixed shape, where they are of our own pass.
            memory: for keys and values, there too, see ``FusedDecoder.blocks``.
        """
        if self._decoder is not None:
            return FusedCache(self._decoder, policies, rows, capacity, fixed=fixed, memory=memory)
        (weights,) = policies
        return transformers_pass.PlainCache(weights.trunk(), self._model, capacity)
