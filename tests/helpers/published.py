"""Folders with nothing but the configurations that models of billions of parameters publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen2Config

SHAPES: dict[str, dict[str, Any]] = {
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
           "num_key_value_heads": 4},
    "14B": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48, "num_attention_heads": 40,
            "num_key_value_heads": 8},
    "32B": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8},
    "72B": {"hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 8},
}  # fmt: skip
"""Of Qwen2.5, from the models' own config.json."""


def config(size: str) -> Qwen2Config:
    """The configuration of Qwen2.5 of this size."""
    return Qwen2Config(
        **SHAPES[size],
        vocab_size=152064,
        tie_word_embeddings=False,
        max_position_embeddings=32768,
        architectures=["Qwen2ForCausalLM"],
    )


def save(folder: Path, size: str) -> Path:
    """Writes a folder that holds this configuration and nothing else; returns it."""
    config(size).save_pretrained(folder / size)
    return folder / size
