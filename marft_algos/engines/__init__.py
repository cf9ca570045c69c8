"""Rollout engines: what turns prompts into replies."""

from marft_algos.engines.base import EngineBase, EngineError, Publisher, RolloutEngine, row_seed
from marft_algos.engines.mixed import MixedEngine
from marft_algos.engines.native import NativeEngine
from marft_algos.engines.scripted import ScriptedEngine

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
