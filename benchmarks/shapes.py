"""Randomly initialised models in the shapes that the measurements name, saved with the embedded model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from marft_algos.models.loading import load_tokenizer, locate
from marft_algos.models.policy import PolicySet

QWEN_3B: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}


def tiny(hidden: int, layers: int = 2, vocabulary: int = 1024) -> dict[str, Any]:
    """The shape of a small Qwen2: four heads, two of keys and values, a feed-forward four times as wide."""
    return {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
    }


def save(folder: Path, shape: dict[str, Any], dtype: torch.dtype = torch.float32, device: str = "cpu") -> Path:
    """Saves a random Qwen2 of this shape; returns ``folder``."""
    tokenizer = load_tokenizer(locate("embedded"))
    config = Qwen2Config(
        **shape,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def disturb(policies: PolicySet, size: float = 0.02) -> None:
    """Moves every adapter, so that policies differ from their base and from each other."""
    generator = torch.Generator(policies.device).manual_seed(0)
    with torch.no_grad():
        for policy in policies.policies:
            for tensor in policies.parameters(policy):
                tensor.add_(size * torch.randn(tensor.shape, generator=generator, device=tensor.device))
