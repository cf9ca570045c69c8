"""Models that the fused passes compute: which they are, and their linear layers laid end to end in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

FAMILIES = frozenset({"Qwen2Model", "Qwen3Model", "LlamaModel", "MistralModel", "GemmaModel"})
ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose angles do not depend on how long the sequence is."""
SAME_INPUT = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Linear layers of a block that read the same input."""


class Unsupported(Exception):
    """Why a fused pass cannot compute a model."""


def check_family(trunk: Any, config: Any) -> None:
    """Checks that a model without its head is of a known family, and no variant of it.

    Raises:
        Unsupported: It is not.
    """
    name = type(trunk).__name__
    if name not in FAMILIES:
        raise Unsupported(f"is a {name}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in ROPES:
        raise Unsupported(f"has rotary embeddings of the kind '{rope}'")
    window = getattr(config, "sliding_window", None) if name == "MistralModel" else None
    for block in trunk.layers:
        if window or getattr(block.self_attn, "sliding_window", None):
            raise Unsupported("attends to a sliding window")
        if abs(block.self_attn.scaling * block.self_attn.head_dim**0.5 - 1) > 1e-6:
            raise Unsupported("scales its attention in a way of its own")


@dataclass(slots=True)
class FusedLinear:
    """Linear layers that read the same input, laid end to end."""

    weight: Tensor
    """[out, in]: also the memory of the modules' own weights."""
    bias: Tensor | None
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Outputs of each."""
    merged: bool = False
    """Whether adapters have been added to the weight, which is a copy then."""


def fuse(prefix: str, block: nn.Module, parts: tuple[str, ...]) -> FusedLinear:
    """Lays linear layers of a block end to end; the modules keep views.

    Args:
        prefix: the block's name in the model.
        block: the module.
        parts: names of the linear layers in it.

    Raises:
        Unsupported: they are not plain linear layers, or only some have a bias.
    """
    modules: list[Any] = [block.get_submodule(part) for part in parts]
    if any(type(module) is not nn.Linear for module in modules):
        raise Unsupported("has layers of another kind than torch.nn.Linear")
    biases = [module.bias for module in modules if module.bias is not None]
    if biases and len(biases) < len(modules):
        raise Unsupported("has a bias in some of the linear layers that read the same input")
    weight = _lay_end_to_end([module.weight for module in modules])
    names = tuple(f"{prefix}.{part}" for part in parts)
    sizes = tuple(len(module.weight) for module in modules)
    return FusedLinear(weight, _lay_end_to_end(biases) if biases else None, names, sizes)


def _lay_end_to_end(parts: Sequence[nn.Parameter]) -> Tensor:
    """Moves tensors into one; they become views of it."""
    if len(parts) == 1:
        return parts[0].detach()
    first, elements = parts[0].detach(), 0
    for part in parts:  # another pass may have done it
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or part.storage_offset() != first.storage_offset() + elements:
            break
        elements += part.numel()
    else:
        return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())
    fused = torch.cat([part.detach() for part in parts])
    for part, view in zip(parts, fused.split([len(part) for part in parts]), strict=True):
        part.data = view
    return fused
