"""A scripted team whose replies depend on what was said before."""

from __future__ import annotations

from helpers.tiny import tiny_tokenizer
from marft_algos.engines import ScriptedEngine
from marft_algos.models.renderer import Renderer
from marft_algos.types import SamplingParams

PARAMS = SamplingParams(max_new_tokens=3)


class Trusting(Renderer):
    """A scripted team all of whose turns count as trained."""

    def __init__(self) -> None:
        super().__init__({}, {})

    def policy_of(self, agent: str) -> str:
        return agent

    def trains(self, policy: str) -> bool:
        return True


def sample(request: object) -> str:
    """A reply that depends on the seed and on what was said before."""
    return f"{request.seed % 1000}"  # type: ignore[attr-defined]


def engine(**scripts: object) -> ScriptedEngine:
    return ScriptedEngine({"*": sample, **scripts}, tiny_tokenizer())  # type: ignore[dict-item]
