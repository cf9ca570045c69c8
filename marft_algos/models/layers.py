"""The modules of a model: its layers, and copies of all modules over the same tensors."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

Modules = TypeVar("Modules", bound=nn.Module)


def layers_of(model: PreTrainedModel) -> nn.ModuleList:
    """Returns the layers: the list of as many modules as the configuration says; an empty one if there is none."""
    layers = model.config.get_text_config().num_hidden_layers
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == layers)
    return next(lists, nn.ModuleList())


def move_all_but_layers(model: PreTrainedModel, device: torch.device) -> None:
    """Moves embeddings, last norm and head, and the layers' buffers."""
    layers = layers_of(model)
    inside = {id(tensor) for tensor in layers.parameters()}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in inside:
            tensor.data = tensor.data.to(device)


def share(model: Modules) -> Modules:
    """Returns a copy of the modules over the same tensors: adapters put on one leave the other plain."""
    states = (getattr(module, "quant_state", None) for module in model.modules())  # scales of 4-bit weights
    shared = (*model.parameters(), *model.buffers(), *(state for state in states if state is not None))
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
