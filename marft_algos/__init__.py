"""Reinforcement fine-tuning of teams of language-model agents, on any environment of ``marft_envs``.

Importing this package brings in nothing heavy: the names below load torch and transformers on first use.
"""

import sys

from marft_algos.started import leave_current_folder

if sys.argv[:1] == ["-m"]:  # Python is looking for the module that it will start; nothing else is imported before
    leave_current_folder(__name__)

import importlib
from typing import TYPE_CHECKING

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
