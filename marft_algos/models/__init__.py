"""The embedded model: weights, tokenizer and chat template in ``embedded/``, and the script that made them.

>>> AutoModelForCausalLM.from_pretrained(embedded_path())
"""

from __future__ import annotations

from pathlib import Path


def embedded_path() -> Path:
    """Returns the folder of the embedded model, in Hugging Face format."""
    return Path(__file__).parent / "embedded"
