"""Samples tokens from final hidden states, and the replies of a batch, on a GPU by a step captured in a CUDA graph.

Without a graph the host asks for some fifteen operations a block and a dozen more for sampling, one after the other,
and a GPU that is done with them sooner waits. With it an H200 decodes a model of 3B nine times as fast
(docs/performance.md).

Sampling is by inverse CDF with one uniform per row and step, drawn from the row's own seed, so a row's sample does
not depend on the rest of the batch (up to float rounding: padding moves log-probabilities by about 1e-6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft_algos.engines.base import EngineError
from marft_algos.memory import out_of_memory
from marft_algos.models.chat import Chat
from marft_algos.models.forward import KVCache
from marft_algos.models.forward.decode import kept_rows
from marft_algos.models.scoring import head_of, logits, softcap_of
from marft_algos.types import FloatArray, SamplingParams

BLOCK = 64
"""Tokens in a block of long rows of probabilities."""
CHECK_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens between two looks at which rows are done, by kind of device: on a GPU each look makes the host wait for all
that it has asked for, and a few tokens behind the end of the last row cost less than that."""
COMPACT_BELOW, CAPTURED_COMPACT_BELOW = 0.75, 0.5
"""Share of rows still alive at which finished rows are dropped from the batch, and that where steps are captured: less,
since other shapes are captured anew."""

_graphs = WeakSet[Any]()
"""Graphs that are alive: they use the same memory, for of what a step allocates nothing outlasts it."""


def sample_inverse_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """Returns where the cumulative sum of each row's probabilities [b, n], in float64, first exceeds its uniform [b].

    Long rows are summed block by block, and cumulated within the block that holds the place.

    Args:
        probs: float32, at least 0; they need not add up to 1.
        uniform: share of the row's sum, in [0, 1), float64.
    """
    n = probs.shape[1]
    if n <= BLOCK * BLOCK:
        cdf = probs.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(cdf, uniform[:, None] * cdf[:, -1:], right=True)[:, 0].clamp(max=n - 1)
    blocks = nn.functional.pad(probs, (0, -n % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)
    cdf = sums.cumsum(-1, dtype=torch.float64)
    goal = uniform[:, None] * cdf[:, -1:]
    block = torch.searchsorted(cdf, goal, right=True).clamp(max=sums.shape[1] - 1)
    within = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]].cumsum(-1, dtype=torch.float64)
    # The sums are rounded: what is left must not lie outside the block, where a token of probability 0 would be next.
    rest = torch.minimum((goal - (cdf - sums).gather(1, block)).clamp(min=0), within[:, -1:] * (1 - 2**-50))
    return (block * BLOCK + torch.searchsorted(within, rest, right=True))[:, 0]


def bucket(rows: int, most: int) -> int:
    """Returns for how many rows a step is captured: a power of two or three quarters of one, at most ``most``."""
    power = 1 << (rows - 1).bit_length()
    return max(rows, min(most, power * 3 // 4 if power * 3 // 4 >= rows else power))


class Sampler:
    """Samples the replies of a batch, token by token."""

    def __init__(self, model: PreTrainedModel, params: SamplingParams, chat: Chat) -> None:
        self._head, self._softcap = head_of(model), softcap_of(model)
        self._params, self.chat = params, chat

    def run(
        self,
        cache: KVCache,
        hidden: Tensor,
        uniforms: Tensor,
        *,
        graph: bool = False,
        kept: list[TokenStep] | None = None,
    ) -> tuple[list[list[int]], list[FloatArray]]:
        """Returns ids and log-probabilities of every row.

        Args:
            cache: of the prompts.
            hidden: states [b, d] at the last prompt tokens.
            uniforms: [rows of the cache, steps], of each row's stream.
            graph: capture a step, and repeat it; the cache must be a fixed one.
            kept: holds the step of an earlier batch with this cache, whose graphs are used again; gets it of the first.
        """
        total, steps = uniforms.shape
        if kept:
            step = kept[0]
            step.start(hidden, uniforms)
        else:
            step = TokenStep(self, cache, hidden, uniforms)
            if kept is not None:
                kept.append(step)
        ids, logprobs = torch.zeros_like(step.ids), torch.zeros_like(step.logprobs)
        rows = torch.arange(total, device=hidden.device)
        every, compact_below = CHECK_EVERY[hidden.device.type], CAPTURED_COMPACT_BELOW if graph else COMPACT_BELOW
        for done in range(1, steps):
            if done % every == 0:
                step.end_by_text(done)
                alive = step.alive.tolist()
                left = [i for i, goes_on in enumerate(alive) if goes_on]
                if not left:
                    break
                size = bucket(len(left), len(rows)) if graph else len(left)
                if size < len(rows) and len(left) <= compact_below * len(rows):
                    ended = [i for i, goes_on in enumerate(alive) if not goes_on]
                    keep = torch.tensor([*left, *ended[: size - len(left)]], device=hidden.device)
                    ids[rows], logprobs[rows] = step.ids, step.logprobs
                    step.compact(keep)
                    rows = rows[keep]
            if graph and len(rows) in step.graphs:
                step.graphs[len(rows)]()
            elif graph and done < steps - 1:
                step.graphs[len(rows)] = capture(step)
            else:
                step()
        ids[rows], logprobs[rows] = step.ids, step.logprobs
        return self.replies(ids[: len(hidden)], logprobs[: len(hidden)])

    def replies(self, ids: Tensor, logprobs: Tensor) -> tuple[list[list[int]], list[FloatArray]]:
        """Returns what was sampled of every row [b, steps] up to its end, on the host."""
        scores, replies = logprobs.cpu().numpy(), [row[: self.chat.end_of(row) or None] for row in ids.tolist()]
        return replies, [scores[i, : len(row)].copy() for i, row in enumerate(replies)]

    def sample(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Returns one token per row and its log-probability at the sampling temperature, in float32."""
        raw = logits(self._head, hidden, self._softcap)
        logprobs = torch.log_softmax(raw / self._params.temperature, dim=-1)
        token = logprobs.argmax(-1) if self._params.greedy else sample_inverse_cdf(logprobs.exp(), uniform)
        return token, logprobs.gather(-1, token[:, None])[:, 0]


class TokenStep:
    """Runs the model on the last token of each row, and samples the next.

    All that it reads and writes are tensors, which stay where they are when rows are dropped, and from batch to batch.

    Args:
        sampler: of the batch.
        cache: of the prompts.
        hidden: states [b, d] at the last prompt tokens, behind which the first token is sampled at once.
        uniforms: [rows of the cache, steps], of each row's stream; rows without a state hold nothing.
    """

    def __init__(self, sampler: Sampler, cache: KVCache, hidden: Tensor, uniforms: Tensor) -> None:
        self._sampler, self._cache = sampler, cache
        self.graphs: dict[int, Callable[[], None]] = {}
        """What repeats the step with so many rows."""
        self._step = torch.zeros(1, dtype=torch.long, device=hidden.device)
        self._whole = (
            uniforms.clone(),
            torch.zeros(len(uniforms), dtype=torch.long, device=hidden.device),
            torch.zeros(uniforms.shape, dtype=torch.long, device=hidden.device),
            torch.zeros(uniforms.shape, device=hidden.device),
            torch.zeros(len(uniforms), dtype=torch.bool, device=hidden.device),
        )
        self.start(hidden, uniforms)

    def start(self, hidden: Tensor, uniforms: Tensor) -> None:
        """Begins the replies of a batch, of the same shape as the one before."""
        self._uniforms, self._token, self.ids, self.logprobs, self.alive = self._whole
        for part in (self._step, self.ids, self.logprobs):
            part.zero_()
        self._uniforms.copy_(uniforms)
        self.alive.copy_(torch.arange(len(uniforms), device=hidden.device) < len(hidden))
        self._sample(nn.functional.pad(hidden, (0, 0, 0, len(uniforms) - len(hidden))))

    def __call__(self) -> None:
        """Writes the next token of every row, and moves on."""
        self._sample(self._cache.decode(self._token))

    def _sample(self, hidden: Tensor) -> None:
        uniform = self._uniforms.index_select(1, self._step)[:, 0]
        token, logprob = self._sampler.sample(hidden, uniform)
        self.ids.index_copy_(1, self._step, token[:, None])
        self.logprobs.index_copy_(1, self._step, logprob[:, None])
        for end in self._sampler.chat.end_ids:
            self.alive.logical_and_(token != end)
        self._token.copy_(token)
        self._step.add_(1)

    def end_by_text(self, tokens: int) -> None:
        """Ends the rows whose first tokens hold a text that closes a reply."""
        chat = self._sampler.chat
        if chat.end_text:
            for i, row in enumerate(self.ids[:, :tokens].tolist()):
                self.alive[i].logical_and_(torch.tensor(not chat.end_of(row)))

    def compact(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self._cache.compact(rows)
        self._token, self._uniforms = kept_rows(self._token, rows), kept_rows(self._uniforms, rows)
        self.alive, self.ids = kept_rows(self.alive, rows), kept_rows(self.ids, rows)
        self.logprobs = kept_rows(self.logprobs, rows)


def capture(step: Callable[[], None]) -> Callable[[], None]:
    """Runs a step once, which prepares the libraries that it calls, and captures it in a CUDA graph.

    Returns:
        What runs the step again.

    Raises:
        EngineError: it cannot be captured.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    pool = next((other.pool() for other in _graphs), None)
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            step()
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                step()
    except RuntimeError as error:
        cause: BaseException = error
        while cause.__context__ is not None and not out_of_memory(cause):
            cause = cause.__context__  # the end of an interrupted capture says so, and not why
        if out_of_memory(cause):
            raise cause from None
        why = str(cause).partition("\n")[0]
        raise EngineError(
            f"A step of decoding could not be captured in a CUDA graph: {why}. Decode without: type --no-decode-graph."
        ) from error
    torch.cuda.current_stream().wait_stream(stream)
    _graphs.add(graph)
    return graph.replay
