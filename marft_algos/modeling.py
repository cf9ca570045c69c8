"""Base models: finding, loading and checking them before anything is trained."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.cache_utils import DynamicLayer
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import logging

from marft_algos.models import EMBEDDED, embedded_path
from marft_envs.errors import ConfigError, did_you_mean

_GENERIC_TOKENIZERS = {"PreTrainedTokenizerFast", "TokenizersBackend"}
MIN_PREFIX = 8
"""Shared tokens from which a pass of their own pays."""
Trunk = Callable[..., Any]
"""Runs a model without its head: keyword arguments of ``forward`` -> output with ``last_hidden_state``."""
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(slots=True)
class BaseModel:
    """One loaded base model, shared by the policies on top of it. Its weights never change."""

    spec: str
    """As the user named it: ``embedded``, a folder, or a hub id."""
    model: PreTrainedModel
    tokenizer: Any
    dtype: torch.dtype
    """Compute dtype: float32, or bfloat16 by autocast."""
    device: torch.device
    end_ids: tuple[int, ...]
    """Tokens that close a reply."""
    context: int
    """Most tokens of prompt and reply together."""
    control: re.Pattern[str] | None
    """Matches the tokenizer's control tokens written out as text."""

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def render(self, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
        """Returns prompt ids by the chat template, with the opening of the assistant's turn.

        Control tokens written out in a message are broken up first, so a message cannot close its own turn.
        """
        chats = [[{**m, "content": self.neutralise(m["content"])} for m in messages] for messages in conversations]
        try:
            return self.tokenizer.apply_chat_template(
                chats, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        except TemplateError as error:
            roles = [m["role"] for m in conversations[0]]
            raise ConfigError(
                f"The chat template of '{self.spec}' refuses a conversation with roles {roles}: {error}. Expected a"
                " template that takes system, user and assistant messages. Choose a model whose template does, or"
                " give the agents empty profiles."
            ) from error

    def neutralise(self, text: str) -> str:
        """Puts a space inside every control token that ``text`` spells out."""
        return self.control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text) if self.control else text


def share(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a copy of the modules over the same tensors: adapters put on one leave the other plain."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


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
    """Resolves ``auto | fp32 | bf16``; ``auto`` is bf16 on a GPU, fp32 on a CPU (where bf16 is slower)."""
    names = {"auto": torch.bfloat16 if device.type == "cuda" else torch.float32}
    names |= {"fp32": torch.float32, "bf16": torch.bfloat16}
    if dtype not in names:
        raise ConfigError(f"Unknown dtype '{dtype}'. {did_you_mean(dtype, names)}")
    return names[dtype]


def locate(spec: str) -> str:
    """Returns the folder or hub id behind a model's name; a missing folder is an error that lists its neighbours."""
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
    raise ConfigError(f"There is no model folder '{spec}'. {did_you_mean(spec, [*siblings, *EMBEDDED])}")


def load_tokenizer(location: str) -> Any:
    """Loads a tokenizer as its own folder declares it.

    ``AutoTokenizer`` of transformers 5 replaces a custom ``tokenizer.json`` of some architectures (qwen2 among
    them) by the family's stock pipeline, which drops what the custom vocabulary spells differently.
    """
    declared = get_tokenizer_config(location).get("tokenizer_class")
    loader = PreTrainedTokenizerFast if declared in _GENERIC_TOKENIZERS else AutoTokenizer
    return loader.from_pretrained(location)


def load_base(spec: str, *, dtype: torch.dtype, device: torch.device, trainable: bool = False) -> BaseModel:
    """Loads a base model and checks what training needs of it.

    Args:
        spec: ``embedded``, a folder in Hugging Face format, or a hub id.
        dtype: compute dtype; also the weights' dtype unless ``trainable``.
        device: where it lives.
        trainable: keep the weights in float32, because they will be trained.

    Raises:
        ConfigError: not found, hub out of reach, no chat template, no pad token, unsupported output head.
    """
    location = locate(spec)
    try:
        tokenizer = load_tokenizer(location)
        with _without_bars():
            model = AutoModelForCausalLM.from_pretrained(location, dtype=torch.float32 if trainable else dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(_unreachable(spec, error)) from error
    _check_tokenizer(spec, tokenizer)
    model.requires_grad_(False).eval().to(device)
    _check_head(spec, model)
    ends = model.generation_config.eos_token_id if model.generation_config else None
    listed = ends if isinstance(ends, list) else [ends]
    end_ids = {i for i in (*listed, tokenizer.eos_token_id) if i is not None}
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30
    return BaseModel(
        spec=spec,
        model=model,
        tokenizer=tokenizer,
        dtype=dtype,
        device=device,
        end_ids=tuple(sorted(end_ids)),
        context=int(context),
        control=_control_pattern(tokenizer),
    )


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
        f"Could not load the model '{spec}': {error}\nThere are three ways to give a model: 'embedded' (the tiny one"
        " in the package, works offline), a folder that model.save_pretrained and tokenizer.save_pretrained wrote,"
        f" or a Hugging Face hub id, which needs the network or an earlier download. {did_you_mean(spec, EMBEDDED)}"
    )


def _check_tokenizer(spec: str, tokenizer: Any) -> None:
    if not tokenizer.chat_template:
        raise ConfigError(
            f"The model '{spec}' has no chat template, so its agents cannot be addressed. Expected an instruction"
            " model. Choose one (for example the '-Instruct' variant), or set tokenizer.chat_template and"
            " tokenizer.save_pretrained(folder)."
        )
    if tokenizer.pad_token_id is None:
        raise ConfigError(
            f"The tokenizer of '{spec}' has no pad token. Expected one, so that saved adapters pad as they were"
            " trained. Type, in Python: tokenizer.pad_token = tokenizer.eos_token; tokenizer.save_pretrained(folder)"
            " and model.save_pretrained(folder), then name that folder."
        )


@torch.no_grad()
def _check_head(spec: str, model: PreTrainedModel) -> None:
    """Scoring applies the output head to chosen positions: it must be all there is between trunk and logits."""
    ids = torch.tensor([[0, 1]], device=model.device)
    expected = model(input_ids=ids).logits
    scored = head_of(model)(model.base_model(input_ids=ids).last_hidden_state)
    if not torch.allclose(scored.float(), expected.float(), rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"The model '{spec}' changes its logits after the output head (scaling or capping), which is not"
            " supported. Choose a model of another family, such as Qwen2, Llama or GPT-2."
        )


def head_of(model: PreTrainedModel) -> nn.Linear:
    """Returns the output head: hidden states [..., d] to logits [..., V]."""
    return model.get_output_embeddings()


def _control_pattern(tokenizer: Any) -> re.Pattern[str] | None:
    names = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special} | set(
        tokenizer.all_special_tokens
    )
    spelled = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spelled))) if spelled else None


def prefix_length(rows: Sequence[list[int]], limit: int) -> int:
    """Returns how many first tokens all rows share, at most ``limit``; 0 where sharing would save nothing."""
    low, high = min(rows), max(rows)  # in lexicographic order: what these two share, all share
    shared = 0
    for a, b in zip(low[:limit], high[:limit], strict=False):
        if a != b:
            break
        shared += 1
    return shared if len(rows) > 1 and shared >= MIN_PREFIX else 0


class _RoomyLayer(DynamicLayer):
    """Keys and values written into room allocated ahead: appending a token copies that token, not the past."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._stores: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        end = old + key_states.shape[-2]
        assert self.keys is not None and self.values is not None
        if not self._stores or self.keys.data_ptr() != self._stores[0].data_ptr():  # first use, or rows were dropped
            shapes = [(*new.shape[:-2], self._room, new.shape[-1]) for new in (key_states, value_states)]
            self._stores = [key_states.new_empty(shape) for shape in shapes]
            for store, past in zip(self._stores, (self.keys, self.values), strict=True):
                if old:
                    store[..., :old, :] = past
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[..., old:end, :] = new
        self.keys, self.values = (store[..., :end, :] for store in self._stores)
        return self.keys, self.values


def run_prefix(
    run: Trunk, ids: Sequence[int], batch: int, model: PreTrainedModel, room: int | None = None
) -> DynamicCache:
    """Runs the first tokens that every row shares once; returns their cache, repeated for the batch.

    Args:
        run: the trunk.
        ids: the shared tokens; may be none.
        batch: rows.
        model: the model that the trunk belongs to.
        room: tokens to allocate room for (without gradients only); else the cache grows by copying.
    """
    cache = DynamicCache(config=model.config)
    if room is not None and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [_RoomyLayer(room) for _ in cache.layers]
    if ids:
        run(input_ids=torch.tensor([ids], device=model.device), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(batch)
    return cache


def hidden_states(run: Trunk, model: PreTrainedModel, input_ids: Tensor, first: int) -> tuple[Tensor, int]:
    """Returns the trunk's final states of right-padded rows, and how many first positions they leave out.

    Turns of one policy start with the same profile; that shared prefix runs once, not once a row. Right pads
    need no mask: attention is causal, and what pads see is not read.

    Args:
        run: the trunk.
        model: the model it belongs to (for its configuration).
        input_ids: [B, T].
        first: the earliest position whose state is wanted.
    """
    shared = prefix_length(input_ids[:, : first or 1].tolist(), limit=first)
    if not shared:
        return run(input_ids=input_ids, use_cache=False).last_hidden_state, 0
    cache = run_prefix(run, input_ids[0, :shared].tolist(), len(input_ids), model)
    output = run(input_ids=input_ids[:, shared:], past_key_values=cache, use_cache=True)
    return output.last_hidden_state, shared
