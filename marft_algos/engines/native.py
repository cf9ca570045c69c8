"""The native engine: our own decode loop over the very weights that are trained.

Sampling is by inverse CDF with one uniform per row and step, drawn from the row's own seed, so a row's sample does
not depend on what else is in the batch (up to float rounding: padding moves log-probabilities by about 1e-6).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft_algos.engines.base import EngineBase, EngineError, failure, uniforms
from marft_algos.memory import Budget
from marft_algos.models.kernels import KVCache
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import head_of, logits, softcap_of
from marft_algos.types import FloatArray, Generation, GenerationRequest, SamplingParams, StopReason

BLOCK = 64
"""Tokens in a block of long rows of probabilities."""
CHECK_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens between two looks at which rows are done, by kind of device: on a GPU each look makes the host wait for all
that it has asked for, and a few tokens behind the end of the last row cost less than that."""
COMPACT_BELOW = 0.75
"""Share of rows still alive at which finished rows are dropped from the batch."""


class NativeEngine(EngineBase):
    """Samples from a ``PolicySet`` in this process; always at the present weights.

    Models of the families that the fused decoder knows run in its pass, policies of one base in one batch; others run
    in transformers' own, a policy at a time, and one warning says so.

    Args:
        policies: whose weights.
        max_batch: rows decoded at once; halved, once, if memory runs out.
    """

    def __init__(self, policies: PolicySet, max_batch: int = 256) -> None:
        self._policies = policies
        self._batch = Budget(max_batch, "rows", "--engine-batch")
        self._groups: dict[str, tuple[int, str]] = {}
        """Policies that are decoded together have the same value: those with one kernel, if that can."""
        for policy in policies.policies:
            kernel = policies.kernel(policy)
            self._groups[policy] = id(kernel), "" if kernel.joint else policy

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order.

        Raises:
            EngineError: a request has an empty prompt.
            OutOfMemory: memory ran out twice.
            ConfigError: settings that cannot be sampled with, or an unknown policy.
        """
        generations: dict[int, Generation] = {}
        groups: dict[tuple[int, str], list[int]] = {}
        for i, request in enumerate(requests):
            if not request.prompt_ids:
                raise EngineError(
                    f"Request {i} (policy '{request.policy}') has an empty prompt. Expected the token ids of a"
                    " rendered chat: policies.renderer.render(policy, messages)."
                )
            context = self._policies.renderer.chat(request.policy).context
            if len(request.prompt_ids) + params.max_new_tokens > context:
                message = (
                    f"the prompt has {len(request.prompt_ids)} tokens and the reply may have {params.max_new_tokens},"
                    f" but the model of policy '{request.policy}' has a context of {context}. Lower max_new_tokens, or"
                    " let the environment cut long inputs with max_chars"
                )
                generations[i] = failure(message, self._policies.version)
            else:
                groups.setdefault(self._groups[request.policy], []).append(i)
        for rows in groups.values():
            rows.sort(key=lambda i: len(requests[i].prompt_ids))
            for size in self._batch.sizes(len(rows)):
                with self._batch:
                    for start in range(0, len(rows), size):
                        batch = sorted(rows[start : start + size], key=lambda i: requests[i].policy)
                        generations |= zip(batch, self._decode([requests[i] for i in batch], params), strict=True)
        return [generations[i] for i in range(len(requests))]

    @torch.inference_mode()
    def _decode(self, requests: list[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Decodes requests of one group, which are sorted by policy."""
        prompts: dict[str, list[list[int]]] = {}
        for request in requests:
            prompts.setdefault(request.policy, []).append(request.prompt_ids)
        policies = [self._policies.weights(policy) for policy in prompts]
        chat, kernel = policies[0].base.chat, self._policies.kernel(requests[0].policy)
        capacity = max(len(request.prompt_ids) for request in requests) + params.max_new_tokens
        seeds = [request.seed for request in requests]
        streams = torch.from_numpy(uniforms(seeds, params.max_new_tokens)).to(policies[0].base.device)
        with kernel.autocast():
            cache = kernel.cache(policies, len(requests), capacity)
            hidden = cache.prefill(list(prompts.values()))
            sampler = _Sampler(policies[0].model, params, chat.end_ids)
            ids, logprobs = sampler.run(cache, hidden, streams)
        texts = map(chat.text_of, ids)
        generations = []
        for row, scores, text in zip(ids, logprobs, texts, strict=True):
            reason = StopReason.EOS if row[-1] in chat.end_ids else StopReason.LENGTH
            generations.append(Generation(row, scores, reason, self._policies.version, text))
        return generations


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


class _Sampler:
    """Samples the replies of one batch, token by token."""

    def __init__(self, model: PreTrainedModel, params: SamplingParams, end_ids: Sequence[int]) -> None:
        self._head, self._softcap = head_of(model), softcap_of(model)
        self._params, self._end_ids = params, end_ids

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
            token, logprob = self._sample(hidden, uniforms[:, step])
            if len(rows) == total:
                ids[:, step], logprobs[:, step] = token, logprob
            else:
                ids[rows, step], logprobs[rows, step] = token, logprob
            for end in self._end_ids:
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
        scores, replies = logprobs.cpu().numpy(), []
        for row in ids.tolist():
            length = next((i + 1 for i, token in enumerate(row) if token in self._end_ids), steps)
            replies.append(row[:length])
        return replies, [scores[i, : len(row)].copy() for i, row in enumerate(replies)]

    def _sample(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Returns one token per row and its log-probability at the sampling temperature, in float32."""
        raw = logits(self._head, hidden, self._softcap)
        logprobs = torch.log_softmax(raw / self._params.temperature, dim=-1)
        token = logprobs.argmax(-1) if self._params.greedy else sample_inverse_cdf(logprobs.exp(), uniform)
        return token, logprobs.gather(-1, token[:, None])[:, 0]
