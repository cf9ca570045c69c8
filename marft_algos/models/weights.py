"""The weights of a policy: an adapter on a shared base, a whole model of its own, or the bare base."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from marft_algos import seeds
from marft_algos.models.layers import share
from marft_algos.models.loading import BaseModel, ModelSettings, load_base
from marft_algos.models.saved import SETTINGS, WEIGHTS, LoraSettings, check_adapter, read_tensors
from marft_algos.models.scoring import head_of
from marft_algos.models.switches import fused_passes
from marft_envs.errors import ConfigError

Trunk = Callable[..., Any]
"""Runs a model without its head: keyword arguments of ``forward`` -> output with ``last_hidden_state``."""

SMALL_MODEL = 20_000_000
"""Parameters up to which float32 adapters are added to the weights before the forward pass: LoRA's thin products
cost a small model more than they save (prefill 1.9 times faster without them), and in float32 nothing is lost."""


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
    modules: dict[str, Any] = field(default_factory=dict)
    """Name in the trunk -> module that has the adapter."""
    merged: bool = False
    """Whether adapters are added to the weights before the forward pass (see ``SMALL_MODEL``)."""
    blocks: Sequence[nn.Module] = ()
    """Modules that are computed again on the way back instead of being kept."""
    siblings: Sequence[Weights] = field(default=(), repr=False)
    """The policies with an adapter on the same modules."""

    @property
    def source(self) -> PreTrainedModel:
        """The model without adapters: the base model, or the fully fine-tuned copy."""
        return self.model if self.peft is None else self.base.model

    def trunk(self) -> Trunk:
        """Returns the model without its head, at the present weights; gradients reach ``tensors``."""
        for block in self.blocks:  # as transformers wants it; nothing else looks at these modules' own mode
            block.training = torch.is_grad_enabled()
        if self.merged:
            return _MergedLora(self)
        if self.peft is not None:
            self.peft.set_adapter(self.adapter)
            for weights in self.siblings:
                weights.restore_grad()
        return self.model.base_model

    def factors(self, name: str) -> tuple[Tensor, Tensor, float] | None:
        """Returns the adapter on the linear layer of that name: first factor [r, in], second factor [out, r], scale."""
        if (module := self.modules.get(name)) is None:
            return None
        return module.lora_A[self.adapter].weight, module.lora_B[self.adapter].weight, module.scaling[self.adapter]

    def restore_grad(self) -> None:
        """Undoes what peft does to adapters that are not active: it freezes them, but an optimiser may hold them."""
        for tensor in self.tensors.values():
            tensor.requires_grad_(self.trainable)

    def save(self, folder: Path) -> None:
        """Writes the policy in peft's format, a fully fine-tuned one as a whole model."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.peft is None:
            self.model.save_pretrained(folder, max_shard_size="1TB")  # one file, so that load finds it
            self.base.chat.tokenizer.save_pretrained(folder)
            return
        save_file({k: v.detach().cpu().contiguous() for k, v in self.tensors.items()}, folder / WEIGHTS)
        described = self.peft.peft_config[self.adapter].to_dict()
        described |= {key: sorted(value) for key, value in described.items() if isinstance(value, set)}  # always alike
        (folder / SETTINGS).write_text(json.dumps(described, indent=2, sort_keys=True))

    def load(self, folder: Path) -> None:
        """Reads what ``save`` or peft wrote."""
        if self.peft is None:
            self.copy_from(read_tensors(folder, "model.safetensors"), f"'{folder}'")
            return
        lora: Any = self.peft.peft_config[self.adapter]
        places = filter(None, (self.base.spec, self.base.model.name_or_path))
        base = check_adapter(folder, LoraSettings(lora.r, lora.lora_alpha), *places)
        saved = read_tensors(folder, WEIGHTS)
        self.copy_from(saved, f"'{folder}'{f' (an adapter of {base!r})' if base else ''}")

    def copy_from(self, saved: Mapping[str, Tensor], source: str) -> None:
        """Overwrites the tensors in place: they stay trainable, and optimisers keep hold of them."""
        tensors = self.tensors
        shapes = [{name: list(tensor.shape) for name, tensor in table.items()} for table in (tensors, saved)]
        wrong = sorted(name for name in tensors.keys() | saved.keys() if shapes[0].get(name) != shapes[1].get(name))
        if wrong:
            mine, theirs = ({n.split(".lora_")[0].rpartition(".")[2] for n in s if ".lora_" in n} for s in shapes)
            layers = f" Type: --lora-targets {' '.join(sorted(theirs))}" if theirs and theirs != mine else ""
            here, there = (table.get(wrong[0], "not there") for table in shapes)
            raise ConfigError(
                f"The weights in {source} do not fit: '{wrong[0]}' is {there} in them, and {here} in the model."
                f" Expected the base model, policies and LoRA settings they were trained with.{layers}"
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])


class _MergedLora:
    """A trunk with adapters added to its weights, once, when it first runs."""

    def __init__(self, policy: Weights) -> None:
        self._policy = policy
        self._merged: dict[str, Tensor] = {}

    def __call__(self, **kwargs: Any) -> Any:
        if not self._merged:
            self._merged = {
                f"{name}.weight": module.get_base_layer().weight + module.get_delta_weight(self._policy.adapter)
                for name, module in self._policy.modules.items()
            }
        return functional_call(self._policy.base.model.base_model, self._merged, (), kwargs)


def is_small(base: BaseModel) -> bool:
    """Returns whether adapters are added to the weights of this model; see ``SMALL_MODEL``."""
    size = sum(p.numel() for p in base.model.parameters())
    return size <= SMALL_MODEL and base.dtype == torch.float32 and not base.quantized


def adapters(
    base: BaseModel,
    names: Sequence[str],
    lora: LoraSettings,
    frozen: frozenset[str],
    seed: int,
    checkpointing: bool,
    *,
    merge: bool = True,
) -> dict[str, Weights]:
    """Puts one fresh adapter per policy on a copy of the base's modules over the same tensors.

    Args:
        base: the model.
        names: policy ids.
        lora: the adapters' shape.
        frozen: policies that are not trained.
        seed: of the initial weights.
        checkpointing: keep the blocks' inputs only, and compute the rest again on the way back.
        merge: add adapters to the weights of small models before the forward pass.
    """
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    model = share(base.model)
    merge = merge and is_small(base) and not checkpointing and "merge" in fused_passes()
    config = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    with seeds.initial_weights(seed), warnings.catch_warnings():
        # What libraries say to each other.
        warnings.filterwarnings("ignore", message="(?s).*(is_gradient_checkpointing|fan_in_fan_out)")
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
    modules = {n: m for n, m in model.base_model.named_modules() if isinstance(m, LoraLayer)}
    blocks = _checkpointed(model) if checkpointing else ()
    siblings: list[Weights] = []
    for name, own in zip(names, map(_adapter, names), strict=True):
        tensors = {n.replace(f".{own}.", "."): p for n, p in sorted(peft.named_parameters()) if f".{own}." in n}
        for tensor in tensors.values():
            tensor.data = tensor.data.to(base.device, torch.float32)
        trained = name not in frozen
        siblings.append(Weights(base, model, tensors, trained, peft, own, modules, merge, blocks, siblings))
        siblings[-1].restore_grad()
    return dict(zip(names, siblings, strict=True))


def _adapter(policy: str) -> str:
    return f"policy_{policy}"  # peft stumbles over adapter names that are part of "lora_", such as "a"


def _checkpointed(model: PreTrainedModel) -> list[nn.Module]:
    """Returns the modules that are computed again on the way back, while they are in training mode."""
    newer = getattr(model, "activation_checkpointing_enable", None)  # its name since transformers 5.2x
    (newer or model.gradient_checkpointing_enable)({"use_reentrant": False})
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]


def full_weights(base: BaseModel, *, trainable: bool, checkpointing: bool) -> Weights:
    """Gives a policy all weights: a float32 copy of the base to train, or the base itself if frozen."""
    if not trainable:
        return Weights(base, base.model, {}, trainable=False)
    settings = ModelSettings(head_dtype="fp32" if base.fp32_head else "auto")
    loaded = load_base(base.spec, dtype=base.dtype, device=base.device, trainable=True, settings=settings)
    model = loaded.model.requires_grad_(True)
    blocks = _checkpointed(model) if checkpointing else ()
    return Weights(base, model, dict(model.named_parameters()), trainable=True, blocks=blocks)


def frozen_copy(base: BaseModel) -> Weights:
    """Returns a float32 copy of all weights that is never trained: where a full fine-tune is kept."""
    weights = dataclasses.replace(full_weights(base, trainable=True, checkpointing=False), trainable=False)
    weights.restore_grad()
    return weights
