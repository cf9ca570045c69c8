"""The native engine: our own decode loop over the very weights that are trained."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import EngineBase, EngineError, Notes, too_long, uniforms
from marft_algos.engines.sampler import Sampler, TokenStep, bucket
from marft_algos.memory import MIN_PREFIX, Budget, common
from marft_algos.models.forward import ForwardPass, KVCache
from marft_algos.models.forward.decode import ALIGNED, FusedCache, KeptContext, Known
from marft_algos.models.policy import PolicySet
from marft_algos.models.switches import fused_passes
from marft_algos.models.weights import Weights
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason

Captured = tuple[KVCache, Sampler, list[TokenStep]]
"""What batches of one shape are decoded with, and from the first one on their step, with its graphs."""
MOST_CAPTURED = 8
"""Shapes of batches whose graphs are kept, those that were used last."""


class Contexts:
    """Keys and values of what each chain of requests has read and written, under the weights that they belong to.

    Args:
        size_gb: most of them to keep, in GB; what was used longest ago goes first.
        notes: gets one note where it was too little.
    """

    def __init__(self, size_gb: float, notes: Notes) -> None:
        self._size, self._notes = size_gb * 1e9, notes
        self._kept: dict[tuple[str, Hashable], KeptContext] = {}
        self._weights: dict[str, list[tuple[int, int]]] = {}
        self._gone: set[tuple[str, Hashable]] = set()

    def clear(self) -> None:
        """Forgets everything."""
        self._kept.clear()
        self._gone.clear()

    def wanted(self, requests: Sequence[GenerationRequest]) -> bool:
        """Returns whether any of these may be extended."""
        return self._size > 0 and any(request.chain is not None for request in requests)

    def find(self, request: GenerationRequest, weights: Weights) -> Known | None:
        """Returns what is kept of a prompt's beginning, if that is worth it."""
        if request.chain is None or self._size <= 0:
            return None
        now = [(id(tensor), tensor._version) for tensor in weights.tensors.values()]
        if self._weights.get(request.policy) != now:
            self._weights[request.policy] = now
            for key in [key for key in self._kept if key[0] == request.policy]:
                del self._kept[key]
        key = request.policy, request.chain
        if key in self._gone:
            self._notes.tell(
                "kept",
                f"keys and values of earlier rounds take more than --cache-gb {self._size / 1e9:g}: prompts are"
                " read again.",
            )
        if key not in self._kept:
            return None
        n = min(common(self._kept[key].tokens, request.prompt_ids), len(request.prompt_ids) - 1)
        return (self._kept[key], n) if n >= MIN_PREFIX else None

    def keep(self, requests: Sequence[GenerationRequest], contexts: Sequence[KeptContext]) -> None:
        """Keeps what was read and written for these requests, if anything, in the place of what was before."""
        for request, context in zip(requests, contexts, strict=bool(contexts)):
            if request.chain is not None:
                self._kept.pop((request.policy, request.chain), None)
                self._kept[request.policy, request.chain] = context
        while self._kept and self._bytes() > self._size:
            oldest = next(iter(self._kept.values())).blocks
            for key in [key for key, context in self._kept.items() if context.blocks is oldest]:
                del self._kept[key]
                self._gone.add(key)

    def _bytes(self) -> int:
        blocks = {id(context.blocks): context.blocks for context in self._kept.values()}
        return sum(block.untyped_storage().nbytes() for batch in blocks.values() for block in batch)


class CapturedSteps:
    """Batches whose steps were captured in CUDA graphs: by policies, rows and capacity, rounded up, and sampling.

    Graphs read the memory that they were captured with. Adapters are copied there for every batch, so that new weights,
    and policies that others were swapped for, need no new graph. All batches over a model keep keys and values in the
    same memory; where a larger one comes, or the model's own weights have moved, its graphs are forgotten.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Hashable, ...], Captured] = {}
        self._memory: dict[int, tuple[int, list[int], list[Tensor]]] = {}

    def clear(self) -> None:
        """Forgets everything."""
        self._kept.clear()
        self._memory.clear()

    def batch(
        self, forward: ForwardPass, policies: Sequence[Weights], rows: int, tokens: int, params: SamplingParams
    ) -> Captured:
        """Returns what to decode so many rows of so many tokens with, empty."""
        chat, model, source = policies[0].base.chat, policies[0].model, policies[0].source
        tokens = min(tokens + -tokens % max(ALIGNED, (1 << tokens.bit_length()) // 16), chat.context)
        places = [parameter.data_ptr() for parameter in source.parameters()]
        size, before, memory = self._memory.get(id(forward), (0, places, []))
        if rows * tokens > size or places != before:
            self._kept = {key: batch for key, batch in self._kept.items() if key[0] != id(forward)}
            size, memory = rows * tokens, []
        self._memory[id(forward)] = size, places, memory
        key = id(forward), tuple(map(id, policies)), rows, tokens, params, tuple(chat.end_ids)
        if key in self._kept:
            batch = self._kept.pop(key)
            cast(FusedCache, batch[0]).renew(policies)
        else:
            cache = forward.cache(policies, rows, tokens, fixed=True, memory=memory)
            batch = cache, Sampler(model, params, chat), []
        if source is not model or not policies[0].tensors:  # of a whole model that is trained, graphs would hold a copy
            self._kept[key] = batch
        if len(self._kept) > MOST_CAPTURED:
            del self._kept[next(iter(self._kept))]
        return batch


class NativeEngine(EngineBase):
    """Samples from a ``PolicySet`` in this process; always at the present weights.

    Models of the families that the fused decoder knows run in its pass, policies of one base in one batch; others run
    in transformers' own, a policy at a time, and one warning says so.

    Args:
        policies: whose weights. Where ranks hold shares of the base models, all of them make an engine, and let it
            sleep and wake together: awake, each holds whole ones.
        max_batch: rows decoded at once; halved, once, if memory runs out.
        decode_graph: on a GPU, capture the fused decoder's step in a CUDA graph, and repeat it.
        cache_gb: keys and values, in GB, that are kept of what agents have read and written, until the weights change,
            so that their next prompts are read from there on; 0: every prompt is read whole.
    """

    def __init__(
        self,
        policies: PolicySet,
        max_batch: int = TrainConfig.engine_batch,
        *,
        decode_graph: bool = TrainConfig.decode_graph,
        cache_gb: float = TrainConfig.cache_gb,
    ) -> None:
        self._policies, self._decode_graph = policies, decode_graph
        self._batch = Budget(max_batch, "rows", "--engine-batch")
        self._notes = Notes()
        self._captured = CapturedSteps()
        self._contexts = Contexts(cache_gb if "prefix" in fused_passes() else 0.0, self._notes)
        policies.gather()
        self._groups: dict[str, tuple[int, str]] = {}
        """Policies that are decoded together have the same value: those on one model, if its pass can."""
        for policy in policies.here:
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
                with self._batch, self._forgetting():
                    for start in range(0, len(rows), size):
                        batch = sorted(rows[start : start + size], key=lambda i: requests[i].policy)
                        generations |= zip(batch, self._decode([requests[i] for i in batch], params), strict=True)
        return [generations[i] for i in range(len(requests))]

    def sleep(self) -> None:
        """Keeps of sharded base models this rank's share only, and nothing of what was read or captured."""
        self._forget()
        self._policies.release()

    def _forget(self) -> None:
        self._contexts.clear()
        self._captured.clear()

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Gives the memory back where it is short, or anything else has failed."""
        try:
            yield
        except BaseException:
            self._forget()
            raise

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
        rows = bucket(len(requests), self._batch.size) if graph else len(requests)
        seeds = [request.seed for request in requests] + [0] * (rows - len(requests))
        streams = torch.from_numpy(uniforms(seeds, params.max_new_tokens)).to(policies[0].base.device)
        known = [self._contexts.find(request, self._policies.weights(request.policy)) for request in requests]
        with forward.autocast():
            if graph:
                cache, sampler, steps = self._captured.batch(forward, policies, rows, capacity, params)
            else:
                cache, steps = forward.cache(policies, rows, capacity), []
                sampler = Sampler(policies[0].model, params, chat)
            cache.keeps = self._contexts.wanted(requests)
            hidden = cache.prefill(list(prompts.values()), known)
            ids, logprobs = sampler.run(cache, hidden, streams, graph=graph, kept=steps)
        texts_read = [[*request.prompt_ids, *row] for request, row in zip(requests, ids, strict=True)]
        self._contexts.keep(requests, cache.contexts(texts_read))
        texts = map(chat.text_of, ids)
        generations = []
        for row, scores, text, found in zip(ids, logprobs, texts, known, strict=True):
            reason, kept = StopReason.EOS if chat.end_of(row) else StopReason.LENGTH, found[1] if found else 0
            generations.append(Generation(row, scores, reason, self._policies.version, text, kept=kept))
        return generations
