"""The protocol of rollout engines, and the randomness they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from marft_algos.types import Generation, GenerationRequest, SamplingParams
from marft_envs.errors import ConfigError, MarftError

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class EngineError(MarftError, RuntimeError):
    """A generation that failed, or a request that no engine can answer."""


class RolloutEngine(Protocol):
    """Turns requests into replies. A failed request comes back with ``StopReason.ERROR``, never as ``""``."""

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order; each is independent of the others in the batch."""

    def publish(self, version: int) -> None:
        """Takes over the policies' present weights as ``version``; called after every update."""

    def close(self) -> None:
        """Frees processes and connections."""


def check_sampling(params: SamplingParams) -> None:
    """Raises ``ConfigError`` for settings that no distribution belongs to."""
    if params.max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {params.max_new_tokens}. Expected 1 or more.")
    if not params.temperature > 0:
        raise ConfigError(
            f"temperature is {params.temperature}. Expected a number above 0; for greedy decoding use greedy = true."
        )


def row_seed(run_seed: int, iteration: int, episode: int, turn: int) -> int:
    """Returns the seed of one reply. Stateless: a resumed run draws what the unbroken one would have drawn."""
    state = 0
    for part in (run_seed, iteration, episode, turn):
        state = _mix((state ^ (part & _MASK)) + _GOLDEN & _MASK)
    return state


def uniforms(seeds: Sequence[int], steps: int) -> NDArray[np.float64]:
    """Returns numbers in [0, 1), [len(seeds), steps]: a counter hashed with each row's seed (splitmix64).

    Row i depends on ``seeds[i]`` alone, and step t does not depend on how many steps there are.
    """
    start = np.array([seed & _MASK for seed in seeds], dtype=np.uint64)[:, None]
    counter = np.arange(1, steps + 1, dtype=np.uint64)[None, :] * np.uint64(_GOLDEN)
    x = start + counter
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
