"""The weights of a policy: an adapter on a shared base, a whole model of its own, or the bare base."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from marft_algos import seeds
from marft_algos.models.kernels.fused import Factors, Reader, Unsupported
from marft_algos.models.loading import BaseModel, Trunk, checkpointed, head_of, load_base, share
from marft_algos.ranges import COUNT, Checked
from marft_envs.errors import ConfigError, did_you_mean

SMALL_MODEL = 20_000_000
"""Parameters up to which float32 adapters are added to the weights before the forward pass: LoRA's thin products
cost a small model more than they save (prefill 1.9 times faster without them), and in float32 nothing is lost."""
_FILE = "adapter_model.safetensors"


@dataclass(frozen=True)
class LoraSettings(Checked):
    """Shape of every adapter. There is no dropout: it would move the first minibatch's ratio away from 1."""

    r: Annotated[int, COUNT] = 8
    """Rank. Released code: 8."""
    alpha: Annotated[int, COUNT] = 16
    """Scale: the adapter counts alpha / r times. Released code: 16."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the layers that get an adapter, or ``all-linear`` (every linear layer but the output head)."""


@dataclass(slots=True)
class Weights:
    """What makes one policy differ from its base model."""

    base: BaseModel
    model: PreTrainedModel
    """Where the adapters sit, or the fully fine-tuned copy, or the base itself."""
    tensors: dict[str, nn.Parameter]
    """The policy's own tensors, float32, in a stable order; names as in peft's files."""
    trainable: bool
    peft: PeftModel | None = None
    adapter: str = ""
    layers: dict[str, Any] = field(default_factory=dict)
    """Name in the trunk -> layer that has the adapter."""
    merged: bool = False
    """Whether adapters are added to the weights before the forward pass (see ``SMALL_MODEL``)."""
    blocks: Sequence[nn.Module] = ()
    """Layers that are computed again on the way back instead of being kept."""

    def trunk(self) -> Trunk:
        """Returns the model without its head, at the present weights; gradients reach ``tensors``."""
        for block in self.blocks:  # as transformers wants it; nothing else looks at these modules' own mode
            block.training = torch.is_grad_enabled()
        if self.merged:
            return _Merged(self)
        if self.peft is not None:
            self.peft.set_adapter(self.adapter)
        return self.model.base_model

    def low_rank(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Returns the adapter's two factors on the layer of that name, [r, in] and [out, r] scaled; None without."""
        found = self.factors(name)
        return None if found is None else (found[0].detach(), found[1].detach() * found[2])

    def factors(self, name: str) -> Factors | None:
        """Returns the same factors with their gradients, and the scale apart."""
        layer = self.layers.get(name)
        if layer is None:
            return None
        return layer.lora_A[self.adapter].weight, layer.lora_B[self.adapter].weight, layer.scaling[self.adapter]

    def restore_grad(self) -> None:
        """Undoes what peft does to adapters put aside: it freezes them, but an optimiser may hold them."""
        for tensor in self.tensors.values():
            tensor.requires_grad_(self.trainable)

    def save(self, folder: Path) -> None:
        """Writes the policy in peft's format, a fully fine-tuned one as a whole model."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.peft is None:
            self.model.save_pretrained(folder, max_shard_size="1TB")  # one file, so that load finds it
            self.base.chat.tokenizer.save_pretrained(folder)
            return
        save_file({k: v.detach().cpu().contiguous() for k, v in self.tensors.items()}, folder / _FILE)
        self.peft.peft_config[self.adapter].save_pretrained(str(folder))

    def load(self, folder: Path) -> None:
        """Reads what ``save`` or peft wrote."""
        file = folder / (_FILE if self.peft is not None else "model.safetensors")
        if not file.is_file():
            near = [str(found.parent) for found in folder.parent.glob(f"*/{file.name}")]
            raise ConfigError(f"There is no {file.name} in '{folder}'. {did_you_mean(str(folder), near)}")
        self.copy_from(load_file(file), f"'{folder}'")

    def copy_from(self, saved: Mapping[str, Tensor], source: str) -> None:
        """Overwrites the tensors in place: they stay trainable, and optimisers keep hold of them."""
        own = self.tensors
        wrong = sorted(own.keys() ^ saved.keys())
        wrong += [name for name in own.keys() & saved.keys() if own[name].shape != saved[name].shape]
        if wrong:
            raise ConfigError(
                f"The weights in {source} do not fit: '{wrong[0]}' is missing, unknown or of another shape. Expected"
                " the base model, policies and LoRA settings they were trained with."
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])


class _Merged:
    """A trunk with adapters added to its weights, once, when it first runs."""

    def __init__(self, held: Weights) -> None:
        self._held = held
        self._weights: dict[str, Tensor] = {}

    def __call__(self, **kwargs: Any) -> Any:
        if not self._weights:
            self._weights = {
                f"{name}.weight": layer.get_base_layer().weight + layer.get_delta_weight(self._held.adapter)
                for name, layer in self._held.layers.items()
            }
        return functional_call(self._held.base.model.base_model, self._weights, (), kwargs)


def is_small(base: BaseModel) -> bool:
    """Returns whether adapters are added to the weights of this model; see ``SMALL_MODEL``."""
    size = sum(p.numel() for p in base.model.parameters())
    return size <= SMALL_MODEL and base.dtype == torch.float32 and not base.quantized


def reader(base: BaseModel) -> Reader | None:
    """Returns our own pass over this model if it is small and known, else None: transformers' is used."""
    try:
        return Reader(base.model) if is_small(base) else None
    except Unsupported:
        return None


def adapters(
    base: BaseModel, names: Sequence[str], lora: LoraSettings, frozen: frozenset[str], seed: int, again: bool = False
) -> dict[str, Weights]:
    """Puts one fresh adapter per policy on a copy of the base's modules over the same tensors.

    Args:
        base: the model.
        names: policy ids.
        lora: the adapters' shape.
        frozen: policies that are not trained.
        seed: of the initial weights.
        again: compute layers again on the way back.
    """
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    model = share(base.model)
    merge = is_small(base) and not again
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    with seeds.initial_weights(seed), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="(?s).*(is_gradient_checkpointing|fan_in_fan_out)"
        )  # between libraries
        try:
            peft = get_peft_model(model, config, adapter_name=_adapter(names[0]))
            for name in names[1:]:
                peft.add_adapter(_adapter(name), config)
        except ValueError as error:
            raise ConfigError(
                f"Could not put an adapter on '{base.spec}': {error}. Expected names of its linear layers, or "
                "'all-linear'."
            ) from error
    for part, where in ((head_of(model), "output head"), (model.get_input_embeddings(), "embeddings")):
        if isinstance(part, LoraLayer):
            raise ConfigError(
                f"lora_targets = {lora.targets!r} puts an adapter on the {where} of '{base.spec}', which is not"
                " supported. Expected names of layers inside the model, or 'all-linear'."
            )
    peft.eval()
    layers = {n: m for n, m in model.base_model.named_modules() if isinstance(m, LoraLayer)}
    blocks = _computed_again(model) if again else ()
    found: dict[str, Weights] = {}
    for name in names:
        marker = f".{_adapter(name)}."
        tensors = {n.replace(marker, "."): p for n, p in sorted(peft.named_parameters()) if marker in n}
        for tensor in tensors.values():
            tensor.data = tensor.data.float()
        found[name] = Weights(base, model, tensors, name not in frozen, peft, _adapter(name), layers, merge, blocks)
        found[name].restore_grad()
    return found


def _adapter(policy: str) -> str:
    return f"policy_{policy}"  # peft stumbles over adapter names that are part of "lora_", such as "a"


def _computed_again(model: PreTrainedModel) -> list[nn.Module]:
    newer = getattr(model, "activation_checkpointing_enable", None)  # its name since transformers 5.2x
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return checkpointed(model)


def whole(base: BaseModel, *, trainable: bool, again: bool = False) -> Weights:
    """Gives a policy all weights: a float32 copy of the base to train, or the base itself if frozen."""
    if not trainable:
        return Weights(base, base.model, {}, trainable=False)
    model = load_base(base.spec, dtype=base.dtype, device=base.device, trainable=True).model.requires_grad_(True)
    blocks = _computed_again(model) if again else ()
    return Weights(base, model, dict(model.named_parameters()), trainable=True, blocks=blocks)
