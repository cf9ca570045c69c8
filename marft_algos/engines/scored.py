"""Replies of a server that are trained on: token ids with log-probs, as vLLM's and llama.cpp's write them."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from marft_algos.engines.base import failure, wrong_tokens
from marft_algos.models.chat import Chat
from marft_algos.types import FOREIGN, STRAIGHT, Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError

INSTEAD = "To train on replies, use a server that takes token ids and gives log-probs: llama.cpp's or vLLM's."
COLD = 0.01
"""A temperature at which the likeliest token has nearly all of the probability."""
_RAW = -0.3
"""Log-prob of such a token that is another temperature's."""


def fields(params: SamplingParams, end_ids: tuple[int, ...]) -> dict[str, Any]:
    """Returns fields of a request that make either server sample from the whole distribution, and say how likely."""
    return {
        **{"return_token_ids": True, "add_special_tokens": False, "stop_token_ids": list(end_ids), **STRAIGHT},
        # Of llama.cpp's samplers some bend the distribution by default, and its log-probs are those before them, unless
        # one asks for those behind (which are all 0 in a greedy reply).
        **{"samplers": ["temperature"], "mirostat": 0, "post_sampling_probs": not params.greedy},
    }


def is_raw(reply: Generation) -> bool:
    """Returns whether the log-prob of a token that was sampled at ``COLD`` is that of another temperature."""
    return bool(reply.action_ids) and bool(reply.logprobs[0] < _RAW)


def read(
    model: str,
    request: GenerationRequest,
    params: SamplingParams,
    choice: Any,
    used: tuple[int, int] | None,
    chat: Chat | None,
) -> Generation:
    """Returns a completion as a reply; without tokens, if the server has sampled none.

    Args:
        model: The endpoint's, for messages.
        request: What was asked.
        params: How.
        choice: The completion, as the package ``openai`` reads it.
        used: Tokens of prompt and reply by the server's count.
        chat: How the policy is spoken to; None: nothing is known of its tokens.

    Raises:
        ConfigError: No policy can be trained on what the server sends.
    """
    ids, scored = _tokens(choice)
    lacking = "token ids" if scored else "log-probs"
    if ids is None or (ids and not scored):
        raise ConfigError(
            f"The endpoint of '{model}' gives no {lacking}, so no policy can be trained on its replies. Leave out"
            f" train = true to let it play untrained. {INSTEAD}"
        )
    sent, (read_, sampled) = len(request.prompt_ids), used or (len(request.prompt_ids), len(ids))
    if read_ != sent:
        raise ConfigError(
            f"The endpoint of '{model}' has read {read_} tokens where {sent} were sent, so its replies are to other"
            f" prompts than are scored. {INSTEAD}"
        )
    # llama.cpp's server gives one for all tokens of a character; its own count is what tells that some are missing.
    if sampled != len(ids) or (used is None and getattr(choice.logprobs, "content", None)):
        many = "an unknown number of" if used is None else sampled
        return failure(f"the endpoint sampled {many} tokens and sent log-probs of {len(ids)}", FOREIGN)
    if problem := wrong_tokens(ids, scored, params.max_new_tokens, sys.maxsize if chat is None else chat.vocabulary):
        return failure(f"the endpoint sent {problem}", FOREIGN)
    if chat is None:
        return Generation(ids, np.asarray(scored, np.float32), StopReason.LENGTH, FOREIGN)
    end = chat.end_of(ids)  # what was sampled behind an end of text is another's: it changes nothing of what is before
    ids, scored = ids[: end or None], scored[: end or None]
    reason = StopReason.EOS if end else StopReason.LENGTH
    return Generation(ids, np.asarray(scored, np.float32), reason, FOREIGN, chat.text_of(ids))


def _tokens(choice: Any) -> tuple[Any, Any]:
    """Returns ids and log-probs; None: they are not there."""
    content = getattr(choice.logprobs, "content", None)
    if content and all("id" in token for token in content):  # llama.cpp's; older ones give log-probs before sampling
        ids = [token["id"] for token in content]
        return ids, [math.log(token["prob"]) if "prob" in token else token["logprob"] for token in content]
    return (choice.model_extra or {}).get("token_ids"), getattr(choice.logprobs, "token_logprobs", None)
