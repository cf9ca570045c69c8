"""The rollout engine of policies on a Tinker server: its samplers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos.engines.base import EngineBase, failure, too_long
from marft_algos.engines.usage import Meter
from marft_algos.extras.tinker.client import TinkerError, sample
from marft_algos.extras.tinker.policies import RemotePolicy, RemoteTeam
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason

_SEED = (1 << 31) - 1


class TinkerEngine(EngineBase):
    """Samples the remote policies of a team, each from a snapshot of its weights.

    Args:
        team: Whose.
        price_in: Of a million prompt tokens.
        price_out: Of a million reply tokens.
    """

    one_by_one = True

    def __init__(self, team: RemoteTeam, price_in: float = 0.0, price_out: float = 0.0) -> None:
        self._team, self._meter = team, Meter(price_in, price_out)

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        """Takes a snapshot of the policy's weights, which replies come from until the next."""
        self._team.remote[policy].publish(version)

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order; all are in flight together, as many as may be.

        A reply that does not come in time, or cannot be one, is ``StopReason.ERROR``.
        """
        for policy in {request.policy for request in requests}:
            if self._team.remote[policy].sampler is None:  # at first, and when other weights were loaded
                self.publish(policy, self._team.version)
        jobs = [self._team.server.later(partial(self._one, request, params)) for request in requests]
        return [job.result() for job in jobs]

    def metrics(self) -> dict[str, float]:
        """Returns requests, tokens and cost of replies, and what went over the line, since the last call."""
        return self._meter.since() | {f"line_{name}": x for name, x in self._team.server.taken().items()}

    def close(self) -> None:
        """Ends the session, and frees the places of the weights, which are saved."""
        for remote in self._team.remote.values():
            remote.unload()
        self._team.server.close()

    def _one(self, request: GenerationRequest, params: SamplingParams) -> Generation:
        reply = self._reply(self._team.remote[request.policy], request, params)
        read = 0 if reply.error else len(request.prompt_ids)  # of a prompt that was refused, or has failed, nothing
        self._meter.count(reply, tokens_in=read, tokens_out=len(reply.action_ids))
        return reply

    def _reply(self, remote: RemotePolicy, request: GenerationRequest, params: SamplingParams) -> Generation:
        assert remote.sampler is not None
        (session, version, heard), chat = remote.sampler, remote.chat
        if len(request.prompt_ids) + params.max_new_tokens > chat.context:
            whose = f"the model '{chat.spec}'"
            return too_long(len(request.prompt_ids), params.max_new_tokens, chat.context, whose, version)
        heat = 0.0 if params.greedy else params.temperature
        wanted: dict[str, Any] = {
            "max_tokens": params.max_new_tokens,
            "seed": request.seed & _SEED,
            "temperature": heat,
        }
        wanted |= {"stop": list(chat.end_ids), "top_k": -1, "top_p": 1.0}
        try:
            said = sample(remote.server, session, request.prompt_ids, chat.vocabulary, **wanted)
        except TinkerError as error:
            return failure(str(error), version)
        ended = bool(said.ids) and said.ids[-1] in chat.end_ids
        if ended != said.stopped:
            return failure(f"the server says stopped: {said.stopped} after tokens {said.ids[-3:]}", version)
        if heat == 1.0:
            unsaid = np.full(len(request.prompt_ids) - 1, np.nan, np.float32)
            heard[*map(int, request.prompt_ids), *said.ids] = np.concatenate([unsaid, said.logprobs])
        end = chat.end_of(said.ids)  # an end of text, too, which the server knows nothing of
        ids, reason = said.ids[: end or None], StopReason.EOS if end else StopReason.LENGTH
        return Generation(ids, said.logprobs[: len(ids)], reason, version, chat.text_of(ids))
