"""Base models: finding, loading and checking them before anything is trained."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
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

from marft_algos.models import DATE, EMBEDDED, attention, embedded_path, finite_weights, gguf
from marft_algos.models.chat import Chat
from marft_algos.models.layers import move_all_but_layers
from marft_algos.models.scoring import Fp32Head, head_of, logits, softcap_of, widen_head
from marft_algos.models.switches import fused_passes
from marft_algos.ranks.group import local_rank
from marft_envs import artefacts
from marft_envs.errors import ConfigError, MarftError, MissingExtraError, check_known, did_you_mean

_GENERIC_TOKENIZERS = {"PreTrainedTokenizerFast", "TokenizersBackend"}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_REASON = 300
"""Most characters that an error quotes of another library's."""
_WAYS = (
    "A model is 'embedded' (tiny, works offline), 'smollm2-135m' (in a package of its own, works offline), a folder"
    " that model.save_pretrained and tokenizer.save_pretrained wrote, a file in GGUF format, or an id of the Hugging"
    " Face hub."
)


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
    date: str = DATE
    """See ``Chat``."""
    chat_template: str | Mapping[str, str] = ""
    """Of all models, or model -> its; for others, their own."""
    head_dtype: str = "auto"
    """``fp32``: the output head computes in float32, whatever the rest does."""
    sharded: bool = False
    """Ranks are to hold shares of the layers: these are read to the CPU only."""


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
    def fp32_head(self) -> bool:
        """Whether the output head computes in float32, whatever the rest does."""
        return isinstance(head_of(self.model), Fp32Head)

    @property
    def softcap(self) -> float | None:
        """Bound of the logits (Gemma 2)."""
        return softcap_of(self.model)


def pick_device(device: str) -> torch.device:
    """Resolves ``auto | cpu | cuda[:n]``; each of several ranks of a machine has a GPU of its own."""
    if device in ("auto", "cuda") and torch.cuda.is_available() and (place := local_rank()) is not None:
        return torch.device(f"cuda:{place}")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigError(f"Unknown device '{device}'. {did_you_mean(device, ('auto', 'cpu', 'cuda'))}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("Device 'cuda' was asked for, but torch sees no GPU. Type: --device cpu")
    return torch.device(device)


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Resolves ``auto | fp32 | bf16``; ``auto`` is bf16 on a GPU, fp32 on a CPU (many have no bf16)."""
    names = {"fp32": torch.float32, "bf16": torch.bfloat16}
    names["auto"] = names["bf16" if device.type == "cuda" else "fp32"]
    check_known([dtype], names, "Unknown dtype '{}'.")
    return names[dtype]


def locate(spec: str) -> str:
    """Returns the folder or hub id behind a model's name; a missing folder is an error that lists its neighbours."""
    if not spec.strip():
        raise ConfigError(f"A model has an empty name. {_WAYS}")
    if (file := gguf.file_of(spec)) is not None:
        return str(gguf.converted(file))
    path = embedded_path(spec) if spec in EMBEDDED else Path(spec).expanduser()
    if (path / "config.json").is_file():
        return str(path)
    if path.is_file():
        raise ConfigError(f"'{spec}' is a file, and no model in GGUF format. {_WAYS}")
    if path.is_dir():
        raise ConfigError(_no_model(spec, path))
    if _HUB_ID.fullmatch(spec) and not spec.startswith("."):
        return spec
    raise ConfigError(f"There is no model folder '{spec}'. {did_you_mean(spec, _near(path))}")


def _near(path: Path) -> list[str]:
    """Returns the names of models that may have been meant: folders beside this one, and those that need none."""
    siblings = [str(entry) for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    return [*siblings, *EMBEDDED, *gguf.PACKAGED]


def _no_model(spec: str, path: Path) -> str:
    """Says what a folder is that is no model, and what to type."""
    if (path / "config.toml").is_file():
        made = f"exports/{path.resolve().name}/POLICY-merged"
        return (
            f"'{spec}' is a run, and no model. To score its team: marft eval {shlex.quote(spec)}. To begin with its"
            f" weights: --start. As a model, by the name {made}: marft export {shlex.quote(spec)} --merged"
        )
    if (path / "adapter_config.json").is_file():
        return (
            f"'{spec}' is an adapter, and no model. Expected its base model (--adapters POLICY={spec} puts it on), or"
            " both added up: marft export RUN --merged"
        )
    return (
        f"The folder '{spec}' holds no config.json, so it is no model in Hugging Face format. Expected what"
        " model.save_pretrained(folder) and tokenizer.save_pretrained(folder) write."
    )


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
    artefacts.check_around(Path(location), ".json", ".jinja", ".model", ".txt")
    with read(spec):
        tokenizer, described = load_tokenizer(location), AutoConfig.from_pretrained(location, trust_remote_code=False)
        own = generation(location, described)
    if not tokenizer.encode("a 1", add_special_tokens=False):
        raise ConfigError(
            f"The model '{spec}' has no tokenizer: there is none in tokenizer.json or tokenizer.model. Expected what"
            " tokenizer.save_pretrained(folder) writes beside the weights."
        )
    return _chat(spec, tokenizer, settings, own, described)


def _chat(spec: str, tokenizer: Any, settings: ModelSettings, own: GenerationConfig, described: Any) -> Chat:
    """Returns how a model is spoken to, with its end tokens, its context and its vocabulary."""
    given = settings.chat_template
    tokenizer.chat_template = (given if isinstance(given, str) else given.get(spec)) or tokenizer.chat_template
    if not tokenizer.chat_template:
        raise ConfigError(
            f"The model '{spec}' has no chat template, so its agents cannot be addressed. Expected an instruction"
            " model. Choose one (for example the '-Instruct' variant), or give a template: --chat-template FILE."
            " docs/models.md has one for base models."
        )
    chat = Chat(spec, tokenizer, settings.thinking, settings.template_tools, settings.date)
    ends = own.eos_token_id
    listed = ends if isinstance(ends, list) else [ends]
    end_ids = {i for i in (*listed, chat.tokenizer.eos_token_id, chat.closing()) if i is not None}
    chat.end_ids = tuple(sorted(end_ids))
    text = described.get_text_config()
    chat.context = int(getattr(text, "max_position_embeddings", None) or 1 << 30)
    chat.vocabulary = int(text.vocab_size)
    return chat


def generation(location: str, described: Any) -> GenerationConfig:
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
    artefacts.check_around(Path(location), ".safetensors", ".bin")
    told: dict[str, Any] = {**options, "output_loading_info": True, "ignore_mismatched_sizes": True}
    stored = torch.float32 if trainable else dtype
    with read(spec), _without_bars():  # _check_whole tells of what is missing, and of what does not fit
        loaded: Any = AutoModelForCausalLM.from_pretrained(location, dtype=stored, trust_remote_code=False, **told)
    model, found = loaded
    _check_whole(spec, found)
    if not options and not settings.sharded:
        nn.Module.to(model, device)  # transformers' own wrapper is typed wrongly
    if device.type == "cuda" and "attention" in fused_passes():
        attention.use(model)
    _prepare(spec, model, settings)
    if settings.sharded:
        move_all_but_layers(model, device)
    return BaseModel(spec=spec, model=model, dtype=dtype, device=device, chat=chat)


def wrap_base(model: PreTrainedModel, tokenizer: Any, settings: ModelSettings | None = None) -> BaseModel:
    """Wraps a model that the caller has loaded, on its device and in its dtype, as a base model.

    Args:
        model: A causal language model of ``transformers``; its weights are frozen.
        tokenizer: Its tokenizer, with a chat template.
        settings: how it is spoken to; a head in float32 is put into the caller's model.

    Raises:
        ConfigError: no chat template or an unsuitable one, unsupported output head.
    """
    settings, dtype = settings or ModelSettings(), model.dtype
    spec = str(getattr(model, "name_or_path", "") or type(model).__name__)
    own = model.generation_config or GenerationConfig.from_model_config(model.config)
    chat = _chat(spec, tokenizer, settings, own, model.config)
    _prepare(spec, model, settings)
    return BaseModel(spec=spec, model=model, dtype=dtype, device=model.device, chat=chat)


def _prepare(spec: str, model: PreTrainedModel, settings: ModelSettings) -> None:
    """Freezes and checks a model, and lets its pad token be one like others: of many it is one that ends replies, too.

    Padding is left out by its place. By its id, the embedding of the end would get no gradient in a full fine-tune.
    """
    model.requires_grad_(False).eval()
    embeddings: Any = model.get_input_embeddings()
    embeddings.padding_idx = None
    if settings.head_dtype == "fp32":
        widen_head(model)
    _check_head(spec, model)


def _four_bits(quantize: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    check_known([quantize], ("none", "nf4"), "Unknown quantisation '{}'.")
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


@contextmanager
def read(spec: str) -> Iterator[None]:
    """Wraps what reads a model's files: an error says whether they are damaged or not there, and what to type.

    Raises:
        ConfigError: Something in them cannot be read; a hub cannot be reached, or does not have them.
    """
    try:
        yield
    except (MarftError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # transformers, safetensors and pickle raise whatever a broken file leads them to
        raise ConfigError(_unloadable(spec, error)) from error


def _unloadable(spec: str, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0][:_REASON].rstrip(".") or type(error).__name__
    if (file := gguf.file_of(spec)) is not None:
        return (
            f"The model '{spec}', converted, cannot be loaded: {reason}. Delete {gguf.converted(file)}, and it is"
            " converted again; if that does not help, download the file again."
        )
    if Path(spec).expanduser().is_dir() or spec in EMBEDDED:
        return (
            f"The model '{spec}' cannot be loaded: {reason}. Expected a causal language model as model.save_pretrained"
            " and tokenizer.save_pretrained write it. Save or download it again, or choose another: --models"
        )
    near = did_you_mean(spec, _near(Path(spec)))
    meant = f" {near}" if near.startswith("Did") else ""
    offline = " The hub is switched off here: unset HF_HUB_OFFLINE." if constants.HF_HUB_OFFLINE else ""
    return (
        f"Could not load the model '{spec}': there is no such folder here, and from the hub: {reason}.{meant}{offline}"
        f" Where there is a network: hf download {spec} (gated models: hf auth login, first), then the same command"
        f" again; a copy of its folder goes by its path, --models FOLDER. {_WAYS}"
    )


def _check_whole(spec: str, found: Mapping[str, Any]) -> None:
    """Checks that a checkpoint had all of its model's weights: others would be drawn at random."""
    missing, other = sorted(found["missing_keys"]), sorted(str(key[0]) for key in found["mismatched_keys"])
    if missing or other:
        raise ConfigError(
            f"The weights of the model '{spec}' are not those that its config.json describes: {len(missing)} are"
            f" missing, {len(other)} have another shape (the first: {[*missing, *other][0]}). Expected all of a causal"
            " language model's. Save or download it again, or choose another: --models"
        )


@torch.no_grad()
def _check_head(spec: str, model: PreTrainedModel) -> None:
    """Scoring applies the output head to chosen positions: it must be all there is between trunk and logits."""
    finite_weights.check_model(model, spec)
    ids = torch.tensor([[0, 1]], device=model.device)
    expected = model(input_ids=ids).logits
    never = expected == -torch.inf  # tokens that a head lets nobody say, such as padding of the vocabulary
    if bool((expected.isnan() | (expected == torch.inf) | (never != never[:, :1])).any() or never.all()):
        raise ConfigError(
            f"The model '{spec}' gives infinity or NaN: its weights are damaged, or too large for {expected.dtype}."
            " Download it again, or type --dtype fp32."
        )
    scored = logits(head_of(model), model.base_model(input_ids=ids).last_hidden_state, softcap_of(model))
    close = 1e-3 if expected.dtype == torch.float32 else 0.03  # theirs round on the way through a cap
    if not torch.allclose(scored, expected.float(), rtol=close, atol=close):
        raise ConfigError(
            f"The model '{spec}' changes its logits after the output head in a way of its own (such as a scale),"
            " which is not supported. Choose a model of another family, such as Qwen, Llama, Gemma or Mistral."
        )
