"""A base model of which every rank holds a share: one more tree of modules, which scores and trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from marft_algos.models.layers import layers_of, share
from marft_algos.models.loading import BaseModel
from marft_algos.models.weights import Trunk, Weights
from marft_algos.ranks.group import RankGroup
from marft_algos.ranks.sharding import Shares
from marft_envs.errors import ConfigError


class ShardedBase:
    """The modules of a base model with all adapters on them, their layers in shares; see ``Shares``.

    It computes scores, gradients and features. The base model and the modules that decode hold the same embeddings,
    head and adapters, but of the layers nothing except between ``gather`` and ``release``.

    Args:
        base: The model, whole; its layers may be on the CPU still.
        policies: All that have an adapter on it.
        group: The ranks.

    Raises:
        ConfigError: Nobody knows which modules are the model's layers.
    """

    def __init__(self, base: BaseModel, policies: Mapping[str, Weights], group: RankGroup) -> None:
        self.base, self._group, self._policies = base, group, policies
        peft = next(iter(policies.values())).peft
        assert peft is not None
        self._peft = share(peft)
        model: Any = self._peft.get_base_model()
        self._trunk: Trunk = model.base_model
        self._blocks = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
        if not (layers := list(layers_of(model))):
            raise ConfigError(
                f"The base model '{base.spec}' cannot be sharded: it has no list of layers that is known. Type: --shard"
                " whole"
            )
        adapters = {tensor for weights in policies.values() for tensor in weights.tensors.values()}
        self._shares = Shares(model.base_model, layers, adapters, group, base.device)

    @property
    def gathered(self) -> bool:
        """Whether this rank holds whole layers, to decode with."""
        return self._shares.gathered

    def gather(self) -> None:
        """Lets this rank decode: it gets whole layers; all ranks call it together."""
        self._shares.gather()

    def release(self) -> None:
        """Lets go of the layers; shares stay."""
        self._shares.release()

    def missing(self, passes: int) -> int:
        """Returns how many passes this rank makes fewer than the one that makes most; all ranks call it together."""
        return max(self._group.gather(passes)) - passes

    @contextmanager
    def trunk(self, weights: Weights | None) -> Iterator[Trunk]:
        """Gives the model without its head, with a policy's adapter, or without any."""
        for block in self._blocks:
            block.training = torch.is_grad_enabled()
        if weights is not None:
            self._peft.set_adapter(weights.adapter)
            self._restore_grad()
            yield self._trunk
            return
        with self._peft.disable_adapter():
            yield self._trunk
        self._restore_grad()

    def _restore_grad(self) -> None:
        for weights in self._policies.values():
            weights.restore_grad()


def check_shardable(*, full_finetune: bool, quantize: str, loaded: bool) -> None:
    """Refuses to shard base models that are trained themselves, quantised, or the caller's.

    Raises:
        ConfigError: With what to type.
    """
    if full_finetune or quantize != "none" or loaded:
        raise ConfigError(
            "Sharded are only frozen base models that are read here and not quantised. Leave out full_finetune and"
            " quantize, and name the model by its folder; or keep it whole: shard='whole'."
        )
