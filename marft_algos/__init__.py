"""Reinforcement fine-tuning of teams of language-model agents, on any environment of ``marft_envs``.

Importing this package brings in nothing heavy: the names below load torch and transformers on first use.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing's own is out of reach: under `python -m` a file of the current folder comes before it

if TYPE_CHECKING:
    from marft_algos.api import train as train
    from marft_algos.config import TrainConfig as TrainConfig
    from marft_algos.trainer import Trainer as Trainer

__version__ = "0.1.0"

_LAZY = {"TrainConfig": "config", "Trainer": "trainer", "train": "api"}
__all__ = ["TrainConfig", "Trainer", "train"]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'marft_algos' has no attribute '{name}'")
    if name != "TrainConfig":
        importlib.import_module("marft_algos.lazy").check_packages()
    return getattr(importlib.import_module(f"marft_algos.{_LAZY[name]}"), name)
