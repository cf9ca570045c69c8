"""The weights of a policy: an adapter on a shared base, a whole model of its own, or the bare base."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from marft_algos import seeds
from marft_algos.models.layers import share
from marft_algos.models.loading import BaseModel, ModelSettings, load_base
from marft_algos.models.scoring import head_of
from marft_algos.models.switches import fused_passes
from marft_algos.ranges import COUNT, Settings
from marft_envs.errors import ConfigError, did_you_mean

Trunk = Callable[..., Any]
"""Runs a model without its head: keyword arguments of ``forward`` -> output with ``last_hidden_state``."""

SMALL_MODEL = 20_000_000
"""Parameters up to which float32 adapters are added to the weights before the forward pass: LoRA's thin products
cost a small model more than they save (prefill 1.9 times faster without them), and in float32 nothing is lost."""
_FILE, _SETTINGS = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class LoraSettings(Settings):
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
        module = self.modules.get(name)
        if module is None:
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
        save_file({k: v.detach().cpu().contiguous() for k, v in self.tensors.items()}, folder / _FILE)
        self.peft.peft_config[self.adapter].save_pretrained(str(folder))

    def load(self, folder: Path) -> None:
        """Reads what ``save`` or peft wrote."""
        if self.peft is None:
            self.copy_from(_tensors(folder, "model.safetensors"), f"'{folder}'")
            return
        lora: Any = self.peft.peft_config[self.adapter]
        base = check_adapter(folder, LoraSettings(lora.r, lora.lora_alpha))
        self.copy_from(_tensors(folder, _FILE), f"'{folder}'{f' (an adapter of {base!r})' if base else ''}")

    def copy_from(self, saved: Mapping[str, Tensor], source: str) -> None:
        """Overwrites the tensors in place: they stay trainable, and optimisers keep hold of them."""
        tensors = self.tensors
        wrong = sorted(tensors.keys() ^ saved.keys())
        wrong += [name for name in tensors.keys() & saved.keys() if tensors[name].shape != saved[name].shape]
        if wrong:
            raise ConfigError(
                f"The weights in {source} do not fit: '{wrong[0]}' is missing, unknown or of another shape. Expected"
                " the base model, policies and LoRA settings they were trained with."
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])


def check_adapter(folder: Path, lora: LoraSettings) -> str:
    """Checks that a saved adapter is there, and counts as much here as where it was trained; no weights are read.

    Returns:
        The name of its base model; empty if it is not known.

    Raises:
        ConfigError: There is none, or one of another rank or scale.
    """
    _file(folder, _FILE)
    if not (folder / _SETTINGS).is_file():
        return ""
    try:
        described = dict(json.loads((folder / _SETTINGS).read_text(encoding="utf-8")))
        r, alpha = int(described["r"]), float(described["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"'{folder / _SETTINGS}' cannot be read: {error!r}. Expected what peft writes.") from error
    if kind := next((kind for kind in ("use_dora", "use_rslora") if described.get(kind)), ""):
        raise ConfigError(
            f"The adapter in '{folder}' has {kind}, which is not supported. Expected a plain LoRA adapter."
        )
    if (r, alpha) != (lora.r, lora.alpha):
        raise ConfigError(
            f"The adapter in '{folder}' has rank {r} and alpha {alpha:g}; here they are {lora.r} and {lora.alpha}."
            f" Type: --lora-r {r} --lora-alpha {alpha:g}"
        )
    return str(described.get("base_model_name_or_path") or "")


def check_saved(folder: Path, lora: LoraSettings | None) -> None:
    """Checks that a saved policy can be read whole.

    Args:
        folder: Of the policy.
        lora: The adapter's shape; None for one that is a whole model.

    Raises:
        ConfigError: It cannot, or is another adapter.
    """
    if lora is not None:
        check_adapter(folder, lora)
    _tensors(folder, "model.safetensors" if lora is None else _FILE)


def _file(folder: Path, name: str) -> Path:
    """Returns a file of saved weights, or says where some are."""
    if not (folder / name).is_file():
        places = ("../*", "policies/*", "checkpoints/*/policies/*")
        near = [str(Path(os.path.normpath(file.parent))) for at in places for file in folder.glob(f"{at}/{name}")]
        raise ConfigError(
            f"There is no {name} in '{folder}'. Expected the folder of one saved policy."
            f" {did_you_mean(str(folder), near)}"
        )
    return folder / name


def _tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Reads saved weights."""
    file = _file(folder, name)
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"The weights in '{file}' cannot be read: {error}. The file is damaged, or cut: copy it again, or choose"
            " another checkpoint."
        ) from error


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
    policies: dict[str, Weights] = {}
    siblings: list[Weights] = []
    for name in names:
        marker = f".{_adapter(name)}."
        tensors = {n.replace(marker, "."): p for n, p in sorted(peft.named_parameters()) if marker in n}
        for tensor in tensors.values():
            tensor.data = tensor.data.to(base.device, torch.float32)
        policies[name] = Weights(
            base, model, tensors, name not in frozen, peft, _adapter(name), modules, merge, blocks, siblings
        )
        policies[name].restore_grad()
    siblings += policies.values()
    return policies


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
