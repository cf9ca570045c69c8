"""Shares of a frozen model: every rank holds one of each layer, and layers are gathered where they are computed.

This is torch's FSDP2 (``fully_shard``), for weights that nobody trains: no gradient is sent, nothing is reduced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from marft_algos.lazy import torch
from marft_algos.ranks.group import RankGroup

if TYPE_CHECKING:
    from torch import nn


class Shares:
    """Cuts the layers of a model into shares, one a rank, and can put them together again.

    A pass over the model gathers one layer after the other, forward and backward, and lets go of what is not this
    rank's. All ranks gather together: each has to make as many passes as the others, of the same kind.

    Args:
        model: What is called; its layers are inside.
        layers: Modules whose parameters are cut up.
        whole: Parameters in the layers that every rank keeps whole: adapters.
        group: The ranks.
        device: Where shares are kept; the layers may be elsewhere.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[nn.Module],
        whole: Collection[nn.Parameter],
        group: RankGroup,
        device: torch.device,
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if device.type == "cuda":
            torch.cuda.set_device(device)  # FSDP2 asks for the present one
        mesh = init_device_mesh(device.type, (group.size,))
        self._layers, self._device, self._kept = layers, device, set(whole)
        self._outside = [self._cut(layer) for layer in layers]
        """Of each layer the parameters as they were, which other trees of modules hold: empty unless gathered."""
        self.gathered = False
        for layer, parameters in zip(layers, self._outside, strict=True):
            # It goes to the device whole, and is let go of before the next: there is room for one.
            fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=self._kept)
            self._empty(parameters)
        # On the way back the layer before is fetched ahead. Left to itself, FSDP2 goes by the order of all passes since
        # the last way back, and behind the first layer fetches one of a pass without gradients. (The first: itself.)
        for before, layer in zip((layers[0], *layers), layers, strict=False):
            layer.set_modules_to_backward_prefetch([before])  # type: ignore[operator]
        # The model itself has nothing to gather; as the root it lets layers be fetched ahead.
        fully_shard(model, mesh=mesh, ignored_params=set(model.parameters()))

    def gather(self) -> None:
        """Fills the parameters that the layers had before with whole weights again; all ranks call it together."""
        if self.gathered:
            return
        for layer, parameters in zip(self._layers, self._outside, strict=True):
            layer.unshard()  # type: ignore[operator]
            for parameter, now in zip(parameters, self._cut(layer), strict=True):
                parameter.data = now.detach().clone()
            layer.reshard()  # type: ignore[operator]
        self.gathered = True

    def release(self) -> None:
        """Empties them."""
        for parameters in self._outside:
            self._empty(parameters)
        self.gathered = False

    def _empty(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=self._device)

    def _cut(self, layer: nn.Module) -> list[nn.Parameter]:
        return [parameter for parameter in layer.parameters() if parameter not in self._kept]
