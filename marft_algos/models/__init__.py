"""Policies: base models and adapters, how they are spoken to, critics on their features; the embedded models.

Of an embedded model a folder here holds weights, tokenizer and chat template; ``benchmarks/embedded`` made them.

>>> AutoModelForCausalLM.from_pretrained(embedded_path())
"""

from __future__ import annotations

from pathlib import Path

EMBEDDED = {"embedded": "math", "embedded-code": "code", "embedded-tools": "tools", "embedded-docs": "docs"}
"""Name of a model inside the package, also its folder's -> its recipe in ``benchmarks/embedded/recipes``."""


def embedded_path(name: str = "embedded") -> Path:
    """Returns the folder of an embedded model, in Hugging Face format."""
    return Path(__file__).parent / name
