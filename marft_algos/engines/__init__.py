"""Rollout engines: what turns prompts into replies. The native one, which loads torch, is imported at its first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from marft_algos.engines.base import EngineBase, EngineError, Publisher, RolloutEngine, row_seed
from marft_algos.engines.mixed import MixedEngine

if TYPE_CHECKING:
    from marft_algos.engines.native import NativeEngine as NativeEngine
    from marft_algos.engines.scripted import ScriptedEngine as ScriptedEngine

__all__ = [
    "EngineBase", "EngineError", "MixedEngine", "NativeEngine", "Publisher", "RolloutEngine", "ScriptedEngine",
    "row_seed",
]  # fmt: skip
_LAZY = {"NativeEngine": "native", "ScriptedEngine": "scripted"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'marft_algos.engines' has no attribute '{name}'")
    return getattr(importlib.import_module(f"marft_algos.engines.{_LAZY[name]}"), name)
