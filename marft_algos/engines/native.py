"""The native engine: our own decode loop over the very weights that are trained.

Sampling is by inverse CDF with one uniform per row and step, drawn from the row's own seed, so a row's sample does
not depend on what else is in the batch (up to float rounding: padding moves log-probabilities by about 1e-6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from marft_algos.engines.base import EngineBase, EngineError, check_sampling, uniforms
from marft_algos.modeling import Trunk, prefix_length, run_prefix
from marft_algos.policy import PolicySet
from marft_algos.types import FloatArray, Generation, GenerationRequest, SamplingParams, StopReason

COMPACT_BELOW = 0.75
"""Share of rows still alive at which finished rows are dropped from the batch."""


class NativeEngine(EngineBase):
    """Samples from a ``PolicySet`` in this process; always at the present weights.

    Args:
        policies: whose weights.
        max_batch: rows decoded at once; lower it when memory runs out.
    """

    def __init__(self, policies: PolicySet, max_batch: int = 256) -> None:
        self._policies = policies
        self._max_batch = max_batch

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order.

        Raises:
            EngineError: a request has an empty prompt.
            ConfigError: settings that cannot be sampled with, or an unknown policy.
        """
        check_sampling(params)
        found: dict[int, Generation] = {}
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            if not request.prompt_ids:
                raise EngineError(
                    f"Request {i} (policy '{request.policy}') has an empty prompt. Expected the token ids of a"
                    " rendered chat: PolicySet.render(policy, messages)."
                )
            context = self._policies.base(request.policy).context
            if len(request.prompt_ids) + params.max_new_tokens > context:
                found[i] = self._too_long(request, params, context)
            else:
                groups.setdefault(request.policy, []).append(i)
        for policy, rows in groups.items():
            rows.sort(key=lambda i: len(requests[i].prompt_ids))
            for start in range(0, len(rows), self._max_batch):
                part = rows[start : start + self._max_batch]
                found |= zip(part, self._decode(policy, [requests[i] for i in part], params), strict=True)
        return [found[i] for i in range(len(requests))]

    def _too_long(self, request: GenerationRequest, params: SamplingParams, context: int) -> Generation:
        message = (
            f"the prompt has {len(request.prompt_ids)} tokens and the reply may have {params.max_new_tokens}, but the"
            f" model of policy '{request.policy}' has a context of {context}. Lower max_new_tokens, or let the"
            " environment cut long inputs with max_chars"
        )
        empty = np.zeros(0, np.float32)
        return Generation([], empty, StopReason.ERROR, self._policies.version, error=message)

    @torch.inference_mode()
    def _decode(self, policy: str, requests: list[GenerationRequest], params: SamplingParams) -> list[Generation]:
        base = self._policies.base(policy)
        draws = torch.from_numpy(uniforms([r.seed for r in requests], params.max_new_tokens)).to(base.device)
        with self._policies.running(policy) as (trunk, head):
            loop = _Loop(trunk, head, draws, params, torch.tensor(base.end_ids, device=base.device))
            ids, logprobs = loop.run(
                *self._prefill(trunk, policy, [r.prompt_ids for r in requests], params.max_new_tokens)
            )
        closed = [bool(row) and row[-1] in base.end_ids for row in ids]
        texts = base.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            Generation(row, lp, StopReason.EOS if end else StopReason.LENGTH, self._policies.version, text)
            for row, lp, end, text in zip(ids, logprobs, closed, texts, strict=True)
        ]

    def _prefill(self, trunk: Trunk, policy: str, prompts: list[list[int]], new_tokens: int) -> tuple[Tensor, _Past]:
        """Runs the prompts: what they all start with once, the rest padded on the left."""
        model = self._policies.base(policy).model
        shared = prefix_length(prompts, limit=min(map(len, prompts)) - 1)
        rest = [prompt[shared:] for prompt in prompts]
        width = max(map(len, rest))
        cache = run_prefix(trunk, prompts[0][:shared], len(prompts), model, room=shared + width + new_tokens)
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rest], device=model.device)
        lengths = torch.tensor([len(row) for row in rest], device=model.device)
        real = torch.arange(width, device=model.device) >= width - lengths[:, None]
        mask = torch.cat([real.new_ones(len(rest), shared), real], dim=1)
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        past = _Past(cache, mask.long(), positions[:, -1:], ragged=not bool(real.all()))
        output = trunk(
            input_ids=ids,
            attention_mask=past.visible(),
            position_ids=positions[:, shared:],
            past_key_values=cache,
            use_cache=True,
        )
        return output.last_hidden_state[:, -1], past


@dataclass(slots=True)
class _Past:
    """What the rows have seen so far."""

    cache: DynamicCache
    mask: Tensor
    """[b, S], 0 at pads."""
    position: Tensor
    """[b, 1] of the last token."""
    ragged: bool

    def visible(self) -> Tensor | None:
        """Returns the attention mask, or None when nothing is padded."""
        return self.mask if self.ragged else None

    def advance(self) -> None:
        """Makes room for one more token in every row."""
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
        self.position = self.position + 1

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these."""
        self.cache.batch_select_indices(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]


class _Loop:
    """Decodes one batch, token by token."""

    def __init__(self, trunk: Trunk, head: nn.Module, draws: Tensor, params: SamplingParams, ends: Tensor) -> None:
        self.trunk, self.head, self.draws, self.params, self.ends = trunk, head, draws, params, ends

    def run(self, hidden: Tensor, past: _Past) -> tuple[list[list[int]], list[FloatArray]]:
        """Returns ids and log-probabilities of every row, given the state at its last prompt token."""
        total, steps = self.draws.shape
        ids = torch.zeros(total, steps, dtype=torch.long, device=hidden.device)
        logprobs = torch.zeros(total, steps, device=hidden.device)
        lengths = torch.full((total,), steps, device=hidden.device)
        rows = torch.arange(total, device=hidden.device)
        alive = torch.ones(total, dtype=torch.bool, device=hidden.device)
        for step in range(steps):
            token, logprob = self._pick(hidden, self.draws[rows, step])
            ids[rows, step], logprobs[rows, step] = token, logprob
            ended = alive & torch.isin(token, self.ends)
            lengths[rows[ended]] = step + 1
            alive = alive & ~ended
            left = int(alive.sum())
            if left == 0 or step == steps - 1:
                break
            if left <= COMPACT_BELOW * len(rows):
                keep = alive.nonzero()[:, 0]
                past.keep(keep)
                rows, alive, token = rows[keep], alive[keep], token[keep]
            past.advance()
            hidden = self.trunk(
                input_ids=token[:, None],
                attention_mask=past.visible(),
                position_ids=past.position,
                past_key_values=past.cache,
                use_cache=True,
            ).last_hidden_state[:, -1]
        ends, table, scores = lengths.tolist(), ids.tolist(), logprobs.cpu().numpy()
        return [row[:n] for row, n in zip(table, ends, strict=True)], [scores[i, :n].copy() for i, n in enumerate(ends)]

    def _pick(self, hidden: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
        """Returns one token per row and its log-probability at the sampling temperature, in float32."""
        scores = torch.log_softmax(self.head(hidden).float() / self.params.temperature, dim=-1)
        if self.params.greedy:
            token = scores.argmax(-1)
        else:
            cdf = scores.exp().cumsum(-1, dtype=torch.float64)
            token = torch.searchsorted(cdf, draw[:, None] * cdf[:, -1:], right=True)[:, 0]
            token = token.clamp(max=scores.shape[1] - 1)
        return token, scores.gather(-1, token[:, None])[:, 0]
