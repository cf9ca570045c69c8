"""Rollout engines: what turns prompts into replies. The native one, which loads torch, is imported at its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marft_algos.engines.base import EngineBase, EngineError, Publisher, RolloutEngine, row_seed
from marft_algos.engines.mixed import MixedEngine
from marft_algos.engines.scripted import ScriptedEngine

if TYPE_CHECKING:
    from marft_algos.engines.native import NativeEngine as NativeEngine

__all__ = [
    "EngineBase",
    "EngineError",
    "MixedEngine",
    "NativeEngine",
    "Publisher",
    "RolloutEngine",
    "ScriptedEngine",
    "row_seed",
]


def __getattr__(name: str) -> Any:
    if name != "NativeEngine":
        raise AttributeError(f"module 'marft_algos.engines' has no attribute '{name}'")
    from marft_algos.engines.native import NativeEngine

    return NativeEngine
