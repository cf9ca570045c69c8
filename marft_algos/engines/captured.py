"""Decoding by a step of fixed shape, which a GPU captures in a CUDA graph: the host asks for one thing a token.

Without it the host asks for some fifteen operations a block and a dozen more for sampling, one after the other, and a
GPU that is done with them sooner waits. With it an H200 decodes a model of 3B nine times as fast (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marft_algos.engines.base import EngineError
from marft_algos.engines.sampler import CHECK_EVERY, Sampler
from marft_algos.memory import out_of_memory
from marft_algos.models.kernels.static import StaticStep
from marft_algos.types import FloatArray

ALIGNED = 16
"""Capacities are multiples of it: attention's kernels copy masks whose rows do not begin at such a place."""
COMPACT_BELOW = 0.5
"""Share of rows still alive at which finished rows are dropped from the batch; less than without a graph, since other
shapes are captured anew."""


class TokenStep:
    """Samples a token a row, and runs the model on it; whatever it reads and writes are tensors of fixed shape.

    Args:
        sampler: of the batch.
        decode: the model's step.
        hidden: states [b, d] at the last prompt tokens.
        uniforms: [b, steps], of each row's stream.
    """

    def __init__(self, sampler: Sampler, decode: StaticStep, hidden: Tensor, uniforms: Tensor) -> None:
        self._sampler, self._decode, self._uniforms = sampler, decode, uniforms
        self._hidden = hidden.clone()
        self._step = torch.zeros(1, dtype=torch.long, device=hidden.device)
        self.ids = torch.zeros(uniforms.shape, dtype=torch.long, device=hidden.device)
        self.logprobs = torch.zeros(uniforms.shape, device=hidden.device)
        self.alive = torch.ones(len(uniforms), dtype=torch.bool, device=hidden.device)

    def __call__(self) -> None:
        """Writes the next token of every row, moves on, and leaves the states behind it."""
        uniform = self._uniforms.index_select(1, self._step)[:, 0]
        token, logprob = self._sampler.sample(self._hidden, uniform)
        self.ids.index_copy_(1, self._step, token[:, None])
        self.logprobs.index_copy_(1, self._step, logprob[:, None])
        for end in self._sampler.end_ids:
            self.alive.logical_and_(token != end)
        self._hidden.copy_(self._decode(token))
        self._step.add_(1)

    def compact(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self._decode.compact(rows)
        self._hidden, self._uniforms, self.alive = self._hidden[rows], self._uniforms[rows], self.alive[rows]
        self.ids, self.logprobs = self.ids[rows], self.logprobs[rows]


def run(
    sampler: Sampler, decode: StaticStep, hidden: Tensor, uniforms: Tensor
) -> tuple[list[list[int]], list[FloatArray]]:
    """Returns ids and log-probabilities of every row, as ``Sampler.run`` does.

    Args:
        sampler: of the batch.
        decode: the model's step, behind the prompts.
        hidden: states [b, d] at the last prompt tokens.
        uniforms: [b, steps], of each row's stream.
    """
    total, steps = uniforms.shape
    step = TokenStep(sampler, decode, hidden, uniforms)
    ids, logprobs = torch.zeros_like(step.ids), torch.zeros_like(step.logprobs)
    rows = torch.arange(total, device=hidden.device)
    repeat: Callable[[], None] | None = None
    every = CHECK_EVERY[hidden.device.type]
    for done in range(1, steps + 1):
        if repeat is not None:
            repeat()
        elif done < steps:
            repeat = capture(step)
        else:
            step()
        if done % every or done == steps:
            continue
        left = [i for i, goes_on in enumerate(step.alive.tolist()) if goes_on]
        if not left:
            break
        if len(left) <= COMPACT_BELOW * len(rows):
            keep = torch.tensor(left, device=hidden.device)
            ids[rows], logprobs[rows] = step.ids, step.logprobs
            step.compact(keep)
            rows, repeat = rows[keep], None
    ids[rows], logprobs[rows] = step.ids, step.logprobs
    return sampler.replies(ids, logprobs)


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """Runs a step once, which prepares the libraries that it calls, and captures it in a CUDA graph.

    Returns:
        What runs the step again.

    Raises:
        EngineError: it cannot be captured.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            step()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                step()
    except RuntimeError as error:
        cause: BaseException = error
        while cause.__context__ is not None and not out_of_memory(cause):
            cause = cause.__context__  # the end of a capture that was broken off says so, and not why
        if out_of_memory(cause):
            raise cause from None
        why = str(cause).partition("\n")[0]
        raise EngineError(
            f"A step of decoding could not be captured in a CUDA graph: {why}. Decode without: type --no-decode-graph."
        ) from error
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay
