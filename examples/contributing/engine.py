"""A rollout engine of your own, complete in one file: one row at a time, no cache. Slow, and exact.

Check it: ``python examples/contributing/engine.py``. Train with it: ``Trainer(build(config, engine=PlainEngine))``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marft_algos import check_engine
from marft_algos.engines.base import EngineBase, EngineError, refusal
from marft_algos.models.policy import PolicySet
from marft_algos.models.scoring import logits
from marft_algos.seeds import uniforms
from marft_algos.types import Generation, GenerationRequest, SamplingParams, StopReason


class PlainEngine(EngineBase):
    """Samples from the trained tensors themselves, so that there is nothing to publish.

    Args:
        policies: Whose weights.
    """

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        params: SamplingParams,
    ) -> list[Generation]:
        """One reply per request, in order; none depends on the others."""
        return [self._reply(request, params) for request in requests]

    @torch.inference_mode()
    def _reply(self, request: GenerationRequest, params: SamplingParams) -> Generation:
        if not request.prompt_ids:
            raise EngineError(f"A request for policy '{request.policy}' has an empty prompt. Expected a rendered chat.")
        policies, base = self._policies, self._policies.base(request.policy)
        if len(request.prompt_ids) + params.max_new_tokens > base.chat.context:
            # What the prompt causes is an answer, of nothing; `failure` is for what breaks. The others go on.
            return refusal(f"prompt and reply exceed the model's context of {base.chat.context}", policies.version)
        ids, scores = list(request.prompt_ids), list[float]()
        ended = False
        with policies.running(request.policy) as (trunk, head):
            # The reply depends on the request's own seed, never on other requests.
            for draw in uniforms([request.seed], params.max_new_tokens)[0]:
                states = trunk(input_ids=torch.tensor([ids], device=base.device)).last_hidden_state
                row = logits(head, states[0, -1], base.softcap) / params.temperature
                # The whole distribution that is sampled from, in float32.
                logprobs = torch.log_softmax(row, -1)
                cdf = logprobs.double().exp().cumsum(-1)
                sampled = torch.searchsorted(cdf, draw * cdf[-1], right=True).clamp(max=len(cdf) - 1)
                token = int(logprobs.argmax() if params.greedy else sampled)
                ids.append(token)
                scores.append(float(logprobs[token]))
                ended = token in base.chat.end_ids
                if ended:
                    break
        reply = ids[len(request.prompt_ids) :]
        text = base.chat.tokenizer.decode(reply, skip_special_tokens=True)
        reason = StopReason.EOS if ended else StopReason.LENGTH
        scored = np.array(scores, np.float32)
        return Generation(reply, scored, reason, policies.version, text)


if __name__ == "__main__":
    team = PolicySet.build("embedded", {"reasoner_0": "reasoner", "actor_0": "actor"}, device="cpu")
    # Where the engine and the learner both round in float32, 1e-5 (the default) is tight at temperature 0.7.
    print(check_engine(PlainEngine(team), team, tokens=24, rows=8, tolerance=2e-5))
