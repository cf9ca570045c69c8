"""Tiny randomly initialised models in Hugging Face format, each with its own tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ +-*/=()[]{}<>|.,:;?!\\^_'\"$%&#@~`\n"
SPECIALS = ("<|pad|>", "<|im_start|>", "<|im_end|>", "<|unk|>")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer(chat_template: str | None = CHATML, pad_token: str | None = "<|pad|>") -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per character, ChatML markers as special tokens."""
    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *CHARACTERS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<|unk|>",
        eos_token="<|im_end|>",
        pad_token=pad_token,
        additional_special_tokens=["<|im_start|>"],
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def save_tiny(
    folder: Path,
    arch: str = "qwen2",
    *,
    hidden: int = 32,
    layers: int = 2,
    context: int = 512,
    seed: int = 0,
    chat_template: str | None = CHATML,
    pad_token: str | None = "<|pad|>",
) -> Path:
    """Saves a random model (``qwen2``, ``llama`` or ``gpt2``) with its tokenizer; returns ``folder``."""
    tokenizer = tiny_tokenizer(chat_template, pad_token)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config: Qwen2Config | LlamaConfig | GPT2Config
    if arch == "gpt2":
        config = GPT2Config(
            vocab_size=len(tokenizer), n_embd=hidden, n_layer=layers, n_head=4, n_positions=context, **ends
        )
    else:
        config = {"qwen2": Qwen2Config, "llama": LlamaConfig}[arch](
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            initializer_range=0.2,
            tie_word_embeddings=True,
            **ends,
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
