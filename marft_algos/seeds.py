"""Every stream of random numbers that a run draws from, each under a name; nothing else in a run draws.

A draw depends on the run's seed and on its place (iteration, episode, turn), never on what was drawn before: a resumed
run draws what the unbroken one would have drawn. Streams differ by the words that their generators start from:

    training problems      seed, 1, iteration[, refill]        orders of policies    seed, 12, iteration + 1
    the evaluation set     2                                   shuffled messages     0
    permuted rewards       seed, 3, iteration                  minibatches           seed, CRC of the policy's id, place
    who plays the pool     seed, 4, iteration, episode         drawn coalitions      seed, 5, iteration + 1, episode
    users' tasks           seed, 6, iteration + 2, refill      … while evaluating    0, 7, 1
    demonstrations         seed, 8, pass + 1                   learnable starts      seed, 9, iteration + 1, refill
    states to expand       seed, 10, iteration + 1, episode, round
    parents of profiles    seed, 11, proposal + 1

No two places share a stream, which ``tests/rollout/test_seeds.py`` checks for all places of some runs. Zeros at the end
of words count for nothing in numpy, so no stream's words are those of another with zeros behind them.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

EVALUATION = 1 << 31
"""Stands for the iteration in the seeds of sampled evaluations: no training reply shares them."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
Words = tuple[int, ...]


def training_problems(seed: int, iteration: int, refill: int = 0) -> Words:
    """Which problems an iteration is played on; ``refill``: further ones, of fresh starts."""
    return (seed, 1, iteration, *((refill,) if refill else ()))


def held_out() -> Words:
    """Seeds of the held-out evaluation set: the same for every run."""
    return (2,)


def permuted_rewards(seed: int, iteration: int) -> Words:
    """Which episode gets whose rewards, in the control that permutes them."""
    return (seed, 3, iteration)


def opponents(seed: int, iteration: int, episode: int) -> Words:
    """Who plays an episode against the pool, and which past state."""
    return (seed, 4, iteration, episode)


def parents(seed: int, proposal: int) -> Words:
    """Whose profiles are rewritten next."""
    return (seed, 11, proposal + 1)


def coalitions(seed: int, iteration: int, episode: int) -> Words:
    """The orders that a Shapley value is estimated from."""
    return (seed, 5, iteration + 1, episode)


def tasks(seed: int, iteration: int, refill: int = 0, chunk: int = 0) -> Words:
    """What users' tasks draw from global generators while a chunk is collected; iteration −1: while a run is built."""
    return (seed, 6, iteration + 2, refill, *([chunk] if chunk else []))


def tasks_at_evaluation(chunk: int = 0) -> Words:
    """The same at every evaluation: the problems of the evaluation set do not depend on the run's seed either."""
    return (0, 7, 1, *([chunk] if chunk else []))


def demonstrations(seed: int, through: int) -> Words:
    """The order in which recorded demonstrations are learnt from, for the ``through``-th pass through them."""
    return (seed, 8, through + 1)


def curriculum(seed: int, iteration: int, refill: int = 0) -> Words:
    """Which of several starts is played, where the run's past decides how likely each is."""
    return (seed, 9, iteration + 1, refill)


def expansions(seed: int, iteration: int, episode: int, number: int) -> Words:
    """Which states of an episode's tree are expanded in a round; rounds count from 1."""
    return (seed, 10, iteration + 1, episode, number)


def order(seed: int, iteration: int) -> Words:
    """The order in which policies are updated one after the other."""
    return (seed, 12, iteration + 1)


def minibatches(seed: int, policy: str, iteration: int, epoch: int, *, critic: bool = False) -> Words:
    """How a policy's turns, or those of its value head, are split into minibatches."""
    return (seed, zlib.crc32(policy.encode()), iteration, epoch, *((1,) if critic else ()))


def shuffled() -> Words:
    """The permutation of episodes whose messages replace each other: the same for every team."""
    return (0,)


def generator(words: Words) -> np.random.Generator:
    """The generator of a stream."""
    return np.random.default_rng(words)


def start_global(words: Words) -> None:
    """Starts the generators that whole programs share, those of ``random``, ``numpy.random`` and torch, at these words.

    Nothing in this project draws from them; users' tasks and models may. torch has nobody who draws where it was not
    imported, as where every agent is hosted.
    """
    first, second, third = (int(x) for x in generator(words).integers(2**32, size=3))
    random.seed(first)
    np.random.seed(second)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(third)


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """While inside, torch draws initial weights (of adapters; of value heads), and its own state is kept."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def row_seed(run_seed: int, iteration: int, episode: int, turn: int, sample: int = 0) -> int:
    """Returns the seed of one reply. Stateless: a resumed run draws what the unbroken one would have drawn.

    ``sample`` tells the reply of the episode (0) from others at its state, or in its place.
    """
    state = 0
    for part in (run_seed, iteration, episode, turn, *((sample,) if sample else ())):
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
