"""Policies: base models and adapters, how they are spoken to, critics on their features; the embedded models.

Of an embedded model a folder here holds weights, tokenizer and chat template; ``benchmarks/embedded`` made them.

>>> AutoModelForCausalLM.from_pretrained(embedded_path())
"""

from __future__ import annotations

from pathlib import Path

EMBEDDED = {"embedded": "math", "embedded-code": "code", "embedded-tools": "tools", "embedded-docs": "docs"}
"""Name of a model inside the package, also its folder's -> its recipe in ``benchmarks/embedded/recipes``."""

DATE = "2024-07-26"
"""The day that it is for chat templates that write one: always the same, so that prompts, replies and weights do not
depend on when a run is started, resumed or compared. It is what Llama 3's templates write where there is no clock."""


def embedded_path(name: str = "embedded") -> Path:
    """Returns the folder of an embedded model, in Hugging Face format."""
    return Path(__file__).parent / name
