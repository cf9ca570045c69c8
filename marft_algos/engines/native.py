"""The native engine: our own decode loop over the very weights that are trained.

Sampling is by inverse CDF with one uniform per row and step, drawn from the row's own seed, so a row's sample does
not depend on what else is in the batch (up to float rounding: padding moves log-probabilities by about 1e-6).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from marft_algos.engines.base import EngineBase, EngineError, uniforms
from marft_algos.memory import Budget
from marft_algos.models.kernels.decode import FusedTrunk, Past, Unsupported, fuse
from marft_algos.models.kernels.plain import PlainPast
from marft_algos.models.loading import BaseModel, head_of, logits
from marft_algos.models.policy import PolicySet
from marft_algos.types import FloatArray, Generation, GenerationRequest, SamplingParams, StopReason

BLOCK = 64
"""Tokens in a block of long rows of chances."""
COMPACT_BELOW = 0.75
"""Share of rows still alive at which finished rows are dropped from the batch."""


class NativeEngine(EngineBase):
    """Samples from a ``PolicySet`` in this process; always at the present weights.

    Models of the families that ``decode.py`` knows run in its fused pass, policies of one base in one batch; others
    run in transformers' own, a policy at a time, and one warning says so.

    Args:
        policies: whose weights.
        max_batch: rows decoded at once; halved, once, if memory runs out.
    """

    def __init__(self, policies: PolicySet, max_batch: int = 256) -> None:
        self._policies = policies
        self._batch = Budget(max_batch, "rows", "--engine-batch")
        self._fused: dict[int, FusedTrunk | None] = {}

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order.

        Raises:
            EngineError: a request has an empty prompt.
            OutOfMemory: memory ran out twice.
            ConfigError: settings that cannot be sampled with, or an unknown policy.
        """
        found: dict[int, Generation] = {}
        groups: dict[tuple[int, str], list[int]] = {}
        for i, request in enumerate(requests):
            if not request.prompt_ids:
                raise EngineError(
                    f"Request {i} (policy '{request.policy}') has an empty prompt. Expected the token ids of a"
                    " rendered chat: PolicySet.render(policy, messages)."
                )
            context = self._policies.renderer.chat(request.policy).context
            if len(request.prompt_ids) + params.max_new_tokens > context:
                found[i] = self._too_long(request, params, context)
            else:
                groups.setdefault(self._group(request.policy), []).append(i)
        for rows in groups.values():
            rows.sort(key=lambda i: len(requests[i].prompt_ids))
            asked = [requests[i] for i in rows]
            made = self._batch.run(lambda size, asked=asked: self._decode_all(asked, params, size), len(rows))  # type: ignore[misc]
            found |= zip(rows, made, strict=True)
        return [found[i] for i in range(len(requests))]

    def _group(self, policy: str) -> tuple[int, str]:
        """Policies of one group can be decoded together: those whose fused pass is the same."""
        held = self._policies.weights(policy)
        model = held.base.model if held.peft is not None else held.model
        if id(model) not in self._fused:
            self._fused[id(model)] = self._fuse(policy)
        return id(model), "" if self._fused[id(model)] is not None else policy

    def _fuse(self, policy: str) -> FusedTrunk | None:
        held = self._policies.weights(policy)
        try:
            trunk = fuse(held.base.model if held.peft is not None else held.model, held.base.dtype)
            if not held.layers.keys() <= trunk.names or type(head_of(held.model)) is not nn.Linear:
                raise Unsupported("has adapters outside its linear layers")
        except Unsupported as reason:
            warnings.warn(
                f"'{held.base.spec}' {reason}: it is decoded by transformers' own forward pass, which is slower.",
                stacklevel=4,
            )
            return None
        return trunk

    def _decode_all(self, asked: list[GenerationRequest], params: SamplingParams, size: int) -> list[Generation]:
        parts = [asked[start : start + size] for start in range(0, len(asked), size)]
        return [generation for part in parts for generation in self._decode(part, params)]

    def _too_long(self, request: GenerationRequest, params: SamplingParams, context: int) -> Generation:
        message = (
            f"the prompt has {len(request.prompt_ids)} tokens and the reply may have {params.max_new_tokens}, but the"
            f" model of policy '{request.policy}' has a context of {context}. Lower max_new_tokens, or let the"
            " environment cut long inputs with max_chars"
        )
        empty = np.zeros(0, np.float32)
        return Generation([], empty, StopReason.ERROR, self._policies.version, error=message)

    @torch.inference_mode()
    def _decode(self, requests: list[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Decodes requests of one group."""
        order = sorted(range(len(requests)), key=lambda i: requests[i].policy)
        requests = [requests[i] for i in order]
        base = self._policies.base(requests[0].policy)
        draws = torch.from_numpy(uniforms([r.seed for r in requests], params.max_new_tokens)).to(base.device)
        with self._policies.running(requests[0].policy) as (trunk, head):
            fused = self._fused[self._group(requests[0].policy)[0]]
            if fused is None:
                room = max(len(r.prompt_ids) for r in requests) + params.max_new_tokens
                past: _Past = PlainPast(trunk, base.model, room)
                hidden = past.read([r.prompt_ids for r in requests])
            else:
                past, hidden = self._read(fused, requests, params.max_new_tokens)
            to_logits = partial(logits, head, softcap=base.softcap)
            ids, logprobs = _Loop(past, to_logits, draws, params, base.chat.end_ids).run(hidden)
        made = self._generations(base, ids, logprobs)
        return [generation for _, generation in sorted(zip(order, made, strict=True), key=lambda pair: pair[0])]

    def _read(self, fused: FusedTrunk, requests: list[GenerationRequest], new: int) -> tuple[Past, Tensor]:
        """Runs the prompts of requests that are sorted by policy."""
        prompts: dict[str, list[list[int]]] = {}
        for request in requests:
            prompts.setdefault(request.policy, []).append(request.prompt_ids)
        weights = [self._policies.weights(policy) for policy in prompts]
        room = max(len(request.prompt_ids) for request in requests) + new
        past = Past(fused, weights, len(requests), room)
        if len(weights) == 1:
            return past, past.read(next(iter(prompts.values())))
        return past, past.read_each(list(zip(weights, prompts.values(), strict=True)))

    def _generations(self, base: BaseModel, ids: list[list[int]], logprobs: list[FloatArray]) -> list[Generation]:
        texts = base.chat.tokenizer.batch_decode(ids, skip_special_tokens=True)
        ended = [StopReason.EOS if row[-1] in base.chat.end_ids else StopReason.LENGTH for row in ids]
        version = self._policies.version
        parts = zip(ids, logprobs, ended, texts, strict=True)
        return [Generation(row, lp, reason, version, text) for row, lp, reason, text in parts]


def invert(chances: Tensor, draw: Tensor) -> Tensor:
    """Returns where the cumulative sum of each row's chances [b, n], in float64, first exceeds its draw [b].

    Long rows are summed block by block, and cumulated within the block that holds the place.

    Args:
        chances: float32, at least 0; they need not add up to 1.
        draw: share of the row's sum, in [0, 1), float64.
    """
    n = chances.shape[1]
    if n <= BLOCK * BLOCK:
        cdf = chances.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(cdf, draw[:, None] * cdf[:, -1:], right=True)[:, 0].clamp(max=n - 1)
    blocks = nn.functional.pad(chances, (0, -n % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(-1)
    cdf = sums.cumsum(-1, dtype=torch.float64)
    goal = draw[:, None] * cdf[:, -1:]
    block = torch.searchsorted(cdf, goal, right=True).clamp(max=sums.shape[1] - 1)
    within = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]].cumsum(-1, dtype=torch.float64)
    # The sums are rounded: what is left must not lie outside the block, where a token without a chance would be next.
    rest = torch.minimum((goal - (cdf - sums).gather(1, block)).clamp(min=0), within[:, -1:] * (1 - 2**-50))
    return (block * BLOCK + torch.searchsorted(within, rest, right=True))[:, 0]


class _Past(Protocol):
    """What a batch has seen, and how it goes on."""

    def read(self, prompts: Sequence[list[int]]) -> Tensor: ...

    def step(self, token: Tensor) -> Tensor: ...

    def keep(self, rows: Tensor) -> None: ...


class _Loop:
    """Decodes one batch, token by token."""

    def __init__(
        self,
        past: _Past,
        to_logits: Callable[[Tensor], Tensor],
        draws: Tensor,
        params: SamplingParams,
        ends: Sequence[int],
    ) -> None:
        self.past, self.to_logits, self.draws, self.params, self.ends = past, to_logits, draws, params, ends

    def run(self, hidden: Tensor) -> tuple[list[list[int]], list[FloatArray]]:
        """Returns ids and log-probabilities of every row, given the states at its last prompt token."""
        total, steps = self.draws.shape
        draws, rows = self.draws, torch.arange(total, device=hidden.device)
        ids = torch.zeros(total, steps, dtype=torch.long, device=hidden.device)
        logprobs = torch.zeros(total, steps, device=hidden.device)
        alive = torch.ones(total, dtype=torch.bool, device=hidden.device)
        for step in range(steps):
            token, logprob = self._pick(hidden, draws[:, step])
            if len(rows) == total:
                ids[:, step], logprobs[:, step] = token, logprob
            else:
                ids[rows, step], logprobs[rows, step] = token, logprob
            for end in self.ends:
                alive &= token != end
            left = int(alive.sum())
            if left == 0 or step == steps - 1:
                break
            if left <= COMPACT_BELOW * len(rows):
                keep = alive.nonzero()[:, 0]
                self.past.keep(keep)
                rows, alive, token, draws = rows[keep], alive[keep], token[keep], draws[keep]
            hidden = self.past.step(token)
        scores, found = logprobs.cpu().numpy(), []
        for row in ids.tolist():
            length = next((i + 1 for i, token in enumerate(row) if token in self.ends), steps)
            found.append(row[:length])
        return found, [scores[i, : len(row)].copy() for i, row in enumerate(found)]

    def _pick(self, hidden: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Returns one token per row and its log-probability at the sampling temperature, in float32."""
        scores = torch.log_softmax(self.to_logits(hidden) / self.params.temperature, dim=-1)
        token = scores.argmax(-1) if self.params.greedy else invert(scores.exp(), draw)
        return token, scores.gather(-1, token[:, None])[:, 0]
