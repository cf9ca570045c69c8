"""Samples tokens from final hidden states, and the replies of a batch with a cache that grows.

Sampling is by inverse CDF with one uniform per row and step, drawn from the row's own seed, so a row's sample does
not depend on what else is in the batch (up to float rounding: padding moves log-probabilities by about 1e-6).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft_algos.models.kernels import KVCache
from marft_algos.models.scoring import head_of, logits, softcap_of
from marft_algos.types import FloatArray, SamplingParams

BLOCK = 64
"""Tokens in a block of long rows of probabilities."""
CHECK_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens between two looks at which rows are done, by kind of device: on a GPU each look makes the host wait for all
that it has asked for, and a few tokens behind the end of the last row cost less than that."""
COMPACT_BELOW = 0.75
"""Share of rows still alive at which finished rows are dropped from the batch."""


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


class Sampler:
    """Samples the replies of one batch, token by token."""

    def __init__(self, model: PreTrainedModel, params: SamplingParams, end_ids: Sequence[int]) -> None:
        self._head, self._softcap = head_of(model), softcap_of(model)
        self._params, self.end_ids = params, end_ids

    def run(self, cache: KVCache, hidden: Tensor, uniforms: Tensor) -> tuple[list[list[int]], list[FloatArray]]:
        """Returns ids and log-probabilities of every row.

        Args:
            cache: of the prompts.
            hidden: states [b, d] at the last prompt tokens.
            uniforms: [b, steps], of each row's stream.
        """
        total, steps = uniforms.shape
        rows = torch.arange(total, device=hidden.device)
        ids = torch.zeros(total, steps, dtype=torch.long, device=hidden.device)
        logprobs = torch.zeros(total, steps, device=hidden.device)
        alive = torch.ones(total, dtype=torch.bool, device=hidden.device)
        every = CHECK_EVERY[hidden.device.type]
        for step in range(steps):
            token, logprob = self.sample(hidden, uniforms[:, step])
            if len(rows) == total:
                ids[:, step], logprobs[:, step] = token, logprob
            else:
                ids[rows, step], logprobs[rows, step] = token, logprob
            for end in self.end_ids:
                alive &= token != end
            if step == steps - 1:
                break
            if (step + 1) % every == 0:
                left = [i for i, goes_on in enumerate(alive.tolist()) if goes_on]
                if not left:
                    break
                if len(left) <= COMPACT_BELOW * len(rows):
                    keep = torch.tensor(left, device=hidden.device)
                    cache.compact(keep)
                    rows, alive, token, uniforms = rows[keep], alive[keep], token[keep], uniforms[keep]
            hidden = cache.decode(token)
        return self.replies(ids, logprobs)

    def replies(self, ids: Tensor, logprobs: Tensor) -> tuple[list[list[int]], list[FloatArray]]:
        """Returns what was sampled of every row [b, steps] up to its end, on the host."""
        scores, replies = logprobs.cpu().numpy(), []
        for row in ids.tolist():
            length = next((i + 1 for i, token in enumerate(row) if token in self.end_ids), len(row))
            replies.append(row[:length])
        return replies, [scores[i, : len(row)].copy() for i, row in enumerate(replies)]

    def sample(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Returns one token per row and its log-probability at the sampling temperature, in float32."""
        raw = logits(self._head, hidden, self._softcap)
        logprobs = torch.log_softmax(raw / self._params.temperature, dim=-1)
        token = logprobs.argmax(-1) if self._params.greedy else sample_inverse_cdf(logprobs.exp(), uniform)
        return token, logprobs.gather(-1, token[:, None])[:, 0]
