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
    from marft_algos.algorithm import Algorithm as Algorithm
    from marft_algos.algorithm import UpdateConfig as UpdateConfig
    from marft_algos.algorithm import register as register
    from marft_algos.api import train as train
    from marft_algos.config import TrainConfig as TrainConfig
    from marft_algos.engines.base import RolloutEngine as RolloutEngine
    from marft_algos.engines.conformance import check_engine as check_engine
    from marft_algos.parts import Parts as Parts
    from marft_algos.parts import build as build
    from marft_algos.renderer import Renderer as Renderer
    from marft_algos.rollout import Collector as Collector
    from marft_algos.trainer import Trainer as Trainer
    from marft_algos.update import Learner as Learner

__version__ = "0.1.0"

_LAZY = {
    "Algorithm": "algorithm",
    "Collector": "rollout",
    "Learner": "update",
    "Parts": "parts",
    "Renderer": "renderer",
    "RolloutEngine": "engines.base",
    "TrainConfig": "config",
    "Trainer": "trainer",
    "UpdateConfig": "algorithm",
    "build": "parts",
    "check_engine": "engines.conformance",
    "register": "algorithm",
    "train": "api",
}
_HEAVY = {"Learner", "Parts", "Trainer", "build", "check_engine", "train"}
"""What loads the packages of the train extra."""
__all__ = sorted(_LAZY)


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'marft_algos' has no attribute '{name}'")
    if name in _HEAVY:
        importlib.import_module("marft_algos.lazy").check_packages()
    return getattr(importlib.import_module(f"marft_algos.{_LAZY[name]}"), name)
