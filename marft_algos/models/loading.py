"""Base models: finding, loading and checking them before anything is trained."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging

from marft_algos.models import EMBEDDED, embedded_path, gguf
from marft_algos.models.chat import Chat
from marft_algos.models.scoring import head_of, logits, softcap_of
from marft_envs.errors import ConfigError, MissingExtraError, did_you_mean

_GENERIC_TOKENIZERS = {"PreTrainedTokenizerFast", "TokenizersBackend"}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class ModelSettings:
    """How base models are kept, run and spoken to."""

    quantize: str = "none"
    """``nf4``: the weights of linear layers, without the head, in 4 bits (QLoRA, arXiv 2305.14314)."""
    gradient_checkpointing: bool = False
    """Keep the layers' inputs only, and compute the rest again on the way back."""
    thinking: bool = False
    """See ``Chat``."""
    template_tools: bool = False
    """See ``Chat``."""


@dataclass(slots=True)
class BaseModel:
    """One loaded base model, shared by the policies on top of it. Its weights never change."""

    spec: str
    """As the user named it: ``embedded``, ``smollm2-135m``, a folder, a GGUF file, or a hub id."""
    model: PreTrainedModel
    dtype: torch.dtype
    """Compute dtype: float32, or bfloat16 by autocast."""
    device: torch.device
    chat: Chat
    """How it is spoken to: template, tokenizer, context, ends."""

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def quantized(self) -> bool:
        """Whether weights are kept in 4 bits."""
        return getattr(self.model, "is_quantized", False)

    @property
    def softcap(self) -> float | None:
        """Bound of the logits (Gemma 2)."""
        return softcap_of(self.model)


def share(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a copy of the modules over the same tensors: adapters put on one leave the other plain."""
    states = (getattr(module, "quant_state", None) for module in model.modules())  # scales of 4-bit weights
    shared = (*model.parameters(), *model.buffers(), *(state for state in states if state is not None))
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def pick_device(device: str) -> torch.device:
    """Resolves ``auto | cpu | cuda[:n]``."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"Unknown device '{device}'. {did_you_mean(device, ('auto', 'cpu', 'cuda'))}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("Device 'cuda' was asked for, but torch sees no GPU. Type: --device cpu")
    return torch.device(device)


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Resolves ``auto | fp32 | bf16``; ``auto`` is bf16 on a GPU, fp32 on a CPU (many have no bf16)."""
    names = {"auto": torch.bfloat16 if device.type == "cuda" else torch.float32}
    names |= {"fp32": torch.float32, "bf16": torch.bfloat16}
    if dtype not in names:
        raise ConfigError(f"Unknown dtype '{dtype}'. {did_you_mean(dtype, names)}")
    return names[dtype]


def locate(spec: str) -> str:
    """Returns the folder or hub id behind a model's name; a missing folder is an error that lists its neighbours."""
    if (file := gguf.file_of(spec)) is not None:
        return str(gguf.converted(file))
    path = embedded_path(spec) if spec in EMBEDDED else Path(spec).expanduser()
    if (path / "config.json").is_file():
        return str(path)
    if path.is_dir():
        raise ConfigError(
            f"The folder '{spec}' holds no config.json, so it is no model in Hugging Face format. Expected what"
            " model.save_pretrained(folder) and tokenizer.save_pretrained(folder) write."
        )
    if _HUB_ID.fullmatch(spec) and not spec.startswith("."):
        return spec
    siblings = [str(entry) for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    known = [*siblings, *EMBEDDED, *gguf.PACKAGED]
    raise ConfigError(f"There is no model folder '{spec}'. {did_you_mean(spec, known)}")


def load_tokenizer(location: str) -> Any:
    """Loads a tokenizer as its own folder declares it.

    ``AutoTokenizer`` of transformers 5 replaces a custom ``tokenizer.json`` of some architectures (qwen2 among
    them) by the family's stock pipeline, which drops what the custom vocabulary spells differently.
    """
    declared = get_tokenizer_config(location).get("tokenizer_class")
    loader = PreTrainedTokenizerFast if declared in _GENERIC_TOKENIZERS else AutoTokenizer
    return loader.from_pretrained(location, trust_remote_code=False)


def load_chat(spec: str, settings: ModelSettings | None = None) -> Chat:
    """Loads how a model is spoken to: tokenizer and template, end tokens and context, without its weights.

    Args:
        spec: ``embedded``, a folder in Hugging Face format, or a hub id.
        settings: how it is spoken to.

    Raises:
        ConfigError: not found, hub out of reach, no chat template or an unsuitable one.
    """
    location, settings = locate(spec), settings or ModelSettings()
    try:
        tokenizer, described = load_tokenizer(location), AutoConfig.from_pretrained(location, trust_remote_code=False)
        generation = _generation(location, described)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(_unreachable(spec, error)) from error
    chat = _chat(spec, tokenizer, settings)
    _describe(chat, generation, described)
    return chat


def _describe(chat: Chat, generation: GenerationConfig, described: Any) -> None:
    """Notes a model's end tokens and its context."""
    ends = generation.eos_token_id
    listed = ends if isinstance(ends, list) else [ends]
    end_ids = {i for i in (*listed, chat.tokenizer.eos_token_id, chat.closing()) if i is not None}
    chat.end_ids = tuple(sorted(end_ids))
    chat.context = int(getattr(described.get_text_config(), "max_position_embeddings", None) or 1 << 30)


def _generation(location: str, described: Any) -> GenerationConfig:
    """Returns a model's own settings of generation, or what its configuration says of them."""
    try:
        return GenerationConfig.from_pretrained(location)
    except OSError:
        return GenerationConfig.from_model_config(described)


def load_base(
    spec: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trainable: bool = False,
    settings: ModelSettings | None = None,
) -> BaseModel:
    """Loads a base model and checks what training needs of it.

    Args:
        spec: ``embedded``, a folder in Hugging Face format, or a hub id.
        dtype: compute dtype; also the weights' dtype unless ``trainable``.
        device: where it lives.
        trainable: keep the weights in float32, because they will be trained.
        settings: how it is kept and spoken to.

    Raises:
        ConfigError: not found, hub out of reach, no chat template or an unsuitable one, unsupported output head.
        MissingExtraError: quantised weights without bitsandbytes.
    """
    location, settings = locate(spec), settings or ModelSettings()
    options = {} if settings.quantize == "none" else _four_bits(settings.quantize, dtype, device)
    chat = load_chat(spec, settings)
    try:
        with _without_bars():
            model = AutoModelForCausalLM.from_pretrained(
                location, dtype=torch.float32 if trainable else dtype, trust_remote_code=False, **options
            )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(_unreachable(spec, error)) from error
    model.requires_grad_(False).eval()
    if not options:
        nn.Module.to(model, device)  # transformers' own wrapper is typed wrongly
    _check_head(spec, model)
    return BaseModel(spec=spec, model=model, dtype=dtype, device=device, chat=chat)


def wrap_base(model: PreTrainedModel, tokenizer: Any, settings: ModelSettings | None = None) -> BaseModel:
    """Wraps a model that the caller has loaded, on its device and in its dtype, as a base model.

    Args:
        model: A causal language model of ``transformers``; its weights are frozen.
        tokenizer: Its tokenizer, with a chat template.
        settings: how it is spoken to.

    Raises:
        ConfigError: no chat template or an unsuitable one, unsupported output head.
    """
    spec = str(getattr(model, "name_or_path", "") or type(model).__name__)
    chat = _chat(spec, tokenizer, settings or ModelSettings())
    _describe(chat, model.generation_config or GenerationConfig.from_model_config(model.config), model.config)
    model.requires_grad_(False).eval()
    _check_head(spec, model)
    return BaseModel(spec=spec, model=model, dtype=model.dtype, device=model.device, chat=chat)


def _four_bits(quantize: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    if quantize != "nf4":
        raise ConfigError(f"Unknown quantisation '{quantize}'. {did_you_mean(quantize, ('none', 'nf4'))}")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError("Base weights of 4 bits (package 'bitsandbytes')", "quant")
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantize,
        bnb_4bit_use_double_quant=True,  # the scales in 8 bits: .4 bits a weight less
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": settings, "device_map": {"": device}}


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keeps transformers' bar for reading weights off the screen; downloads keep theirs."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _unreachable(spec: str, error: Exception) -> str:
    return (
        f"Could not load the model '{spec}': {error}\nThere are these ways to give a model: 'embedded' (the tiny one"
        " in the package, works offline), 'smollm2-135m' (in a package of its own, works offline), a folder that"
        " model.save_pretrained and tokenizer.save_pretrained wrote, a file FILE.gguf, or a Hugging Face hub id, which"
        f" needs the network or an earlier download. {did_you_mean(spec, [*EMBEDDED, *gguf.PACKAGED])}"
    )


def _chat(spec: str, tokenizer: Any, settings: ModelSettings) -> Chat:
    if not tokenizer.chat_template:
        raise ConfigError(
            f"The model '{spec}' has no chat template, so its agents cannot be addressed. Expected an instruction"
            " model. Choose one (for example the '-Instruct' variant), or set tokenizer.chat_template and"
            " tokenizer.save_pretrained(folder)."
        )
    return Chat(spec, tokenizer, settings.thinking, settings.template_tools)


@torch.no_grad()
def _check_head(spec: str, model: PreTrainedModel) -> None:
    """Scoring applies the output head to chosen positions: it must be all there is between trunk and logits."""
    ids = torch.tensor([[0, 1]], device=model.device)
    expected = model(input_ids=ids).logits
    scored = logits(head_of(model), model.base_model(input_ids=ids).last_hidden_state, softcap_of(model))
    close = 1e-3 if expected.dtype == torch.float32 else 0.03  # theirs round on the way through a cap
    if not torch.allclose(scored, expected.float(), rtol=close, atol=close):
        raise ConfigError(
            f"The model '{spec}' changes its logits after the output head in a way of its own (such as a scale),"
            " which is not supported. Choose a model of another family, such as Qwen, Llama, Gemma or Mistral."
        )
