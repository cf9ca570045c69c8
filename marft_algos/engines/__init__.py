"""Rollout engines: what turns prompts into replies."""

from marft_algos.engines.base import EngineError, RolloutEngine, row_seed
from marft_algos.engines.native import NativeEngine
from marft_algos.engines.scripted import ScriptedEngine

__all__ = ["EngineError", "NativeEngine", "RolloutEngine", "ScriptedEngine", "row_seed"]
