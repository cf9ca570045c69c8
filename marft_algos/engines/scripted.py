"""Replies without a model: fixed texts or functions, for tests, null teams and gold teams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos.engines.base import EngineBase, failure
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError, did_you_mean

Script = str | Sequence[str] | Callable[[GenerationRequest], str]
"""A fixed reply, replies to choose from by the request's seed, or a function of the request."""


class ScriptedEngine(EngineBase):
    """Answers by script.

    Args:
        scripts: what each agent says; ``"*"`` speaks for everybody without a script.
        tokenizer: gives the replies token ids (closed by its end token) with log-probability 0; without one they
            have none, and the turns cannot be trained on.
    """

    def __init__(self, scripts: Mapping[str, Script], tokenizer: Any = None) -> None:
        self._scripts = dict(scripts)
        self._tokenizer = tokenizer
        self._versions: dict[str, int] = {}

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one reply per request; an exception in a script becomes that request's ``StopReason.ERROR``."""
        return [self._answer(request) for request in requests]

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        """Records the version; scripts have no weights."""
        self._versions[policy] = version

    def _answer(self, request: GenerationRequest) -> Generation:
        if (script := self._scripts.get(request.agent, self._scripts.get("*"))) is None:
            raise ConfigError(f"No script for agent '{request.agent}'. {did_you_mean(request.agent, self._scripts)}")
        version = self._versions.get(request.policy, 0)
        try:
            text = script if isinstance(script, str) else self._choose(script, request)
        except Exception as error:
            return failure(f"{type(error).__name__}: {error}", version)
        ids: list[int] = []
        if self._tokenizer is not None:
            ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        return Generation(ids, np.zeros(len(ids), np.float32), StopReason.EOS, version, text)

    @staticmethod
    def _choose(script: Sequence[str] | Callable[[GenerationRequest], str], request: GenerationRequest) -> str:
        return script(request) if callable(script) else script[request.seed % len(script)]
