"""Tiny random models of the families that people use, with tokenizers and chat templates built like the real ones.

The templates are written for these tests; what they take and refuse is what the families' own do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from helpers.tiny import CHARACTERS

ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)
QWEN2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are Qwen.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "# Tools{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if not (tools and loop.first and m.role == 'system') %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    '{{ m.content }}{% for call in m.tool_calls or [] %}\n<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}" + ALTERNATE + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA3 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}" + ALTERNATE + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Family:
    config: PretrainedConfig
    template: str
    special: tuple[str, ...]
    bos: str | None
    eos: str
    """Of the tokenizer."""
    closing: str
    """What the template writes behind a reply."""
    prompt: str
    """Of the profile P and the task T."""
    pad: str | None = None
    ends: tuple[str, ...] = ()
    """Of the generation settings, beside ``eos``."""
    fused: bool = True
    shape: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "qwen2.5": Family(
        Qwen2Config(tie_word_embeddings=True), QWEN2, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), None,
        "<|im_end|>", "<|im_end|>",
        "<|im_start|>system\nP<|im_end|>\n<|im_start|>user\nT<|im_end|>\n<|im_start|>assistant\n",
        pad="<|endoftext|>", ends=("<|endoftext|>",),
    ),
    "qwen3": Family(
        Qwen3Config(head_dim=12), QWEN3, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), None,
        "<|im_end|>", "<|im_end|>",
        "<|im_start|>system\nP<|im_end|>\n<|im_start|>user\nT<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        pad="<|endoftext|>",
    ),
    "llama3": Family(
        LlamaConfig(rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                                     "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
        LLAMA3, ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nP<|eot_id|><|start_header_id|>user"
        "<|end_header_id|>\n\nT<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ends=("<|eot_id|>",),
    ),
    "gemma2": Family(
        Gemma2Config(tie_word_embeddings=True), GEMMA2, ("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<bos>", "<eos>", "<end_of_turn>",
        "<bos><start_of_turn>user\nP\n\nT<end_of_turn>\n<start_of_turn>model\n", pad="<pad>", fused=False,
        shape={"head_dim": 16, "sliding_window": 8, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0},
    ),
    "gemma3": Family(
        Gemma3TextConfig(tie_word_embeddings=True), GEMMA3,
        ("<pad>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<bos>", "<eos>", "<end_of_turn>",
        "<bos><start_of_turn>user\nP\n\nT<end_of_turn>\n<start_of_turn>model\n", pad="<pad>", fused=False,
        shape={"head_dim": 16, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral": Family(
        MistralConfig(), MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "<s>", "</s>", "</s>",
        "<s>[INST] P\n\nT [/INST]", shape={"sliding_window": None},
    ),
    "mistral with a window": Family(
        MistralConfig(), MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "<s>", "</s>", "</s>",
        "<s>[INST] P\n\nT [/INST]", fused=False, shape={"sliding_window": 8},
    ),
}  # fmt: skip


def tokenizer(family: Family) -> PreTrainedTokenizerFast:
    """One token per character, beside the family's own control tokens."""
    words = ("<unk>", *family.special, "<think>", "</think>", *CHARACTERS)
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.add_tokens([AddedToken("<think>"), AddedToken("</think>")])  # not special: they are content
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token=family.bos, eos_token=family.eos, pad_token=family.pad,
        additional_special_tokens=[s for s in family.special if s not in (family.bos, family.eos, family.pad)],
        chat_template=family.template, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def save(folder: Path, name: str, **changes: Any) -> Path:
    """Saves a random model of two layers, norms and biases away from where they start; returns ``folder``."""
    family = FAMILIES[name]
    made = tokenizer(family)
    shape = {
        "vocab_size": len(made), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2,
        "eos_token_id": made.eos_token_id, "pad_token_id": made.pad_token_id, "bos_token_id": made.bos_token_id,
    }  # fmt: skip
    given = {key: value for key, value in family.config.to_dict().items() if key != "layer_types"}
    config = type(family.config).from_dict({**given, **shape, **family.shape, **changes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        for key, tensor in model.named_parameters():
            if "norm" in key or "bias" in key:
                tensor.add_(0.2 * torch.randn(tensor.shape))
    ends = made.convert_tokens_to_ids([family.eos, *family.ends])
    model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder
