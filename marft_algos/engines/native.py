"""The native engine: our own decode loop over the very weights that are trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marft_algos.engines.base import EngineBase, EngineError, Notes, too_long, uniforms
from marft_algos.engines.sampler import Sampler
from marft_algos.memory import Budget
from marft_algos.models.policy import PolicySet
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason


class NativeEngine(EngineBase):
    """Samples from a ``PolicySet`` in this process; always at the present weights.

    Models of the families that the fused decoder knows run in its pass, policies of one base in one batch; others run
    in transformers' own, a policy at a time, and one warning says so.

    Args:
        policies: whose weights. Where ranks hold shares of the base models, all of them make an engine, and let it
            sleep and wake together: awake, each holds whole ones.
        max_batch: rows decoded at once; halved, once, if memory runs out.
        decode_graph: on a GPU, capture the fused decoder's step in a CUDA graph, and repeat it.
    """

    def __init__(self, policies: PolicySet, max_batch: int = 256, decode_graph: bool = True) -> None:
        self._policies, self._decode_graph = policies, decode_graph
        self._batch = Budget(max_batch, "rows", "--engine-batch")
        self._notes = Notes()
        policies.gather()
        self._groups: dict[str, tuple[int, str]] = {}
        """Policies that are decoded together have the same value: those on one model, if its pass can."""
        for policy in policies.policies:
            forward = policies.forward_pass(policy)
            self._groups[policy] = id(forward), "" if forward.joint else policy

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
                whose = f"the model of policy '{request.policy}'"
                length, limit = len(request.prompt_ids), params.max_new_tokens
                generations[i] = too_long(length, limit, context, whose, self._policies.version)
                self._notes.tell(request.policy, f"{generations[i].error}. Such a reply is empty, and scores as one.")
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

    def sleep(self) -> None:
        """Keeps of sharded base models this rank's share only."""
        self._policies.release()

    def wake(self) -> None:
        """Gathers them again."""
        self._policies.gather()

    @torch.inference_mode()
    def _decode(self, requests: list[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Decodes requests of one group, which are sorted by policy."""
        prompts: dict[str, list[list[int]]] = {}
        for request in requests:
            prompts.setdefault(request.policy, []).append(request.prompt_ids)
        policies = [self._policies.weights(policy) for policy in prompts]
        chat, forward = policies[0].base.chat, self._policies.forward_pass(requests[0].policy)
        capacity = max(len(request.prompt_ids) for request in requests) + params.max_new_tokens
        graph = self._decode_graph and policies[0].base.device.type == "cuda" and forward.joint
        seeds = [request.seed for request in requests]
        streams = torch.from_numpy(uniforms(seeds, params.max_new_tokens)).to(policies[0].base.device)
        with forward.autocast():
            cache = forward.cache(policies, len(requests), capacity, fixed=graph)
            hidden = cache.prefill(list(prompts.values()))
            sampler = Sampler(policies[0].model, params, chat.end_ids)
            ids, logprobs = sampler.run(cache, hidden, streams, graph)
        texts = map(chat.text_of, ids)
        generations = []
        for row, scores, text in zip(ids, logprobs, texts, strict=True):
            reason = StopReason.EOS if row[-1] in chat.end_ids else StopReason.LENGTH
            generations.append(Generation(row, scores, reason, self._policies.version, text))
        return generations
