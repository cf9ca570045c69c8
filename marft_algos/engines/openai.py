"""A client of any OpenAI-compatible endpoint: hosted agents that are not trained, or trained ones that are re-scored.

A hosted policy sends the chat and gets text: no tokenizer, no log-probs, no training. A policy that is trained on an
endpoint's replies sends token ids and must get token ids and log-probs back; the endpoint keeps its own weights, so
the learner scores the replies anew (``old_logprobs = "learner"``).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from marft_algos.config.endpoints import Endpoint
from marft_algos.engines.base import EngineBase, EngineError, failure
from marft_algos.engines.http import ANSWER_BYTES, NONSENSE
from marft_algos.engines.usage import Meter, Usage
from marft_algos.models.chat import Renderer
from marft_algos.types import FOREIGN, STRAIGHT, Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError, MissingExtraError

_SEED = (1 << 31) - 1
"""Endpoints differ in how large a seed may be; all take 31 bits."""


class OpenAIEngine(EngineBase):
    """Replies of one hosted model.

    Lost connections, rate limits (with the endpoint's own waiting times) and overload are tried again by the
    ``openai`` package; what still fails is that request's ``StopReason.ERROR``.

    Args:
        endpoint: Model, address and limits.
        renderer: Tokenizers of the policies that are trained on its replies; None for hosted ones.

    Raises:
        MissingExtraError: The ``openai`` package is not installed.
        ConfigError: A key that is not there.
    """

    one_by_one = True

    def __init__(self, endpoint: Endpoint, renderer: Renderer | None = None) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError("The engine 'openai'", "hosted") from error
        self._errors = openai
        self._endpoint, self._renderer = endpoint, renderer
        url = endpoint.urls[0] if endpoint.urls else None
        if url and url.count("/") == 2:
            url += "/v1"
        self._is_openai = url is None or "api.openai.com" in url
        self._client = openai.OpenAI(
            api_key=endpoint.key(),
            base_url=url,
            timeout=endpoint.timeout,
            max_retries=endpoint.retries,
            http_client=_careful(openai, endpoint.timeout),
        )
        self._meter = Meter(endpoint.price_in, endpoint.price_out)
        self._pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="openai")

    @property
    def usage(self) -> Usage:
        """Requests, retries, failures, tokens and cost so far."""
        return self._meter.total

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order. Seeds are passed on; whether they hold is up to the endpoint.

        Raises:
            ConfigError: The endpoint refuses the key or the model, or lacks what training needs.
            EngineError: The replies have cost as much as they may.
        """
        self._check_cost()
        return [job.result() for job in [self._pool.submit(self._one, request, params) for request in requests]]

    def metrics(self) -> dict[str, float]:
        """Returns requests, retries, failures, tokens and cost since the last call."""
        return self._meter.since()

    def close(self) -> None:
        """Closes the connections."""
        self._pool.shutdown()
        self._client.close()

    def probe(self) -> None:
        """Asks for one token, to see whether the endpoint gives what training needs.

        Raises:
            ConfigError: It does not.
            EngineError: It does not answer.
        """
        reply = self._one(GenerationRequest("", [1], 0), SamplingParams(1))
        if reply.stop_reason is StopReason.ERROR:
            raise EngineError(f"The endpoint of '{self._endpoint.model}' does not answer: {reply.error}")

    def _one(self, request: GenerationRequest, params: SamplingParams) -> Generation:
        self._check_cost()
        api = self._errors
        try:
            answer = self._tokens(request, params) if self._endpoint.train else self._chat(request, params)
        except (api.AuthenticationError, api.PermissionDeniedError, api.NotFoundError) as error:
            raise ConfigError(
                f"The endpoint refuses model '{self._endpoint.model}': {error}. Check the model's name, the address,"
                ' and that the key\'s variable is named: key_env = "NAME"'
            ) from error
        except api.BadRequestError as error:
            self._meter.count(failed=True)
            return failure(f"the endpoint cannot answer this request: {error}", FOREIGN)
        except api.OpenAIError as error:
            self._meter.count(retries=self._endpoint.retries, failed=True)
            return failure(f"the endpoint did not answer: {type(error).__name__}: {error}", FOREIGN)
        reply, usage = self._read(request, answer)
        self._meter.count(retries=answer.retries_taken, failed=reply.stop_reason is StopReason.ERROR, **usage)
        return replace(reply, usage=(usage["tokens_in"], usage["tokens_out"])) if usage else reply

    def _read(self, request: GenerationRequest, answer: Any) -> tuple[Generation, dict[str, int]]:
        """Returns the reply, and its tokens by direction; an answer of another shape is this request's failure."""
        try:
            completion = answer.parse()
            used = completion.usage
            usage = {"tokens_in": int(used.prompt_tokens), "tokens_out": int(used.completion_tokens)} if used else {}
            train = self._endpoint.train
            return self._read_tokens(request, completion) if train else self._read_chat(completion), usage
        except ConfigError:
            raise
        except (self._errors.OpenAIError, RecursionError, *NONSENSE) as error:
            return failure(f"the endpoint's answer is no completion: {type(error).__name__}: {error}", 0), {}

    def _chat(self, request: GenerationRequest, params: SamplingParams) -> Any:
        limit = "max_completion_tokens" if self._is_openai else "max_tokens"
        settings: dict[str, Any] = {limit: params.max_new_tokens, "seed": request.seed & _SEED}
        if params.greedy or params.temperature != 1.0:  # some models know no other than 1, and refuse the setting
            settings["temperature"] = 0.0 if params.greedy else params.temperature
        messages: list[Any] = [dict(message) for message in request.messages]
        return self._client.chat.completions.with_raw_response.create(
            model=self._endpoint.model, messages=messages, extra_body=self._endpoint.extra_body, **settings
        )

    def _tokens(self, request: GenerationRequest, params: SamplingParams) -> Any:
        ends = () if self._renderer is None else self._renderer.chat(request.policy).end_ids
        extra = {"return_token_ids": True, "add_special_tokens": False, "stop_token_ids": list(ends), **STRAIGHT}
        return self._client.completions.with_raw_response.create(
            model=self._endpoint.model,
            prompt=request.prompt_ids,
            max_tokens=params.max_new_tokens,
            temperature=0.0 if params.greedy else params.temperature,
            seed=request.seed & _SEED,
            logprobs=1,
            extra_body=extra,
        )

    def _read_chat(self, answer: Any) -> Generation:
        choice = answer.choices[0] if answer.choices else None
        text = choice.message.content if choice is not None else None
        if choice is None or not isinstance(text, str) or not text or choice.finish_reason == "content_filter":
            why = choice.finish_reason if choice is not None else "no choice"
            return failure(
                f"the endpoint returned no text ({why}); a limit of tokens may be spent on reasoning", FOREIGN
            )
        reason = StopReason.LENGTH if choice.finish_reason == "length" else StopReason.EOS
        return Generation([], np.zeros(0, np.float32), reason, FOREIGN, text)

    def _read_tokens(self, request: GenerationRequest, answer: Any) -> Generation:
        choice = answer.choices[0]
        scored = choice.logprobs.token_logprobs if choice.logprobs is not None else None
        ids = (choice.model_extra or {}).get("token_ids")
        if not scored or ids is None:
            lacking = "token ids" if scored else "log-probs"
            raise ConfigError(
                f"The endpoint of '{self._endpoint.model}' gives no {lacking}, so no policy can be trained on its"
                " replies. Leave out train = true to let it play untrained, or use a server that takes token ids and"
                " returns them with log-probs (vLLM: return_token_ids)."
            )
        if len(ids) != len(scored):
            return failure(f"the endpoint sent {len(ids)} tokens with {len(scored)} log-probs", FOREIGN)
        if self._renderer is None:
            return Generation(list(ids), np.asarray(scored, np.float32), StopReason.LENGTH, FOREIGN)
        chat = self._renderer.chat(request.policy)
        reason = StopReason.EOS if ids[-1] in chat.end_ids else StopReason.LENGTH
        text = chat.text_of(ids)
        return Generation(list(ids), np.asarray(scored, np.float32), reason, FOREIGN, text)

    def _check_cost(self) -> None:
        spent = self._meter.total.cost
        if spent >= self._endpoint.max_cost:
            raise EngineError(
                f"Replies of '{self._endpoint.model}' have cost {spent:.2f}, and may cost {self._endpoint.max_cost:.2f}"
                " (max_cost). The last checkpoint stands; go on from it with a larger max_cost."
            )


def _careful(api: Any, timeout: float) -> Any:
    """Makes an HTTP client that follows no redirect, so that a key stays with its host, and reads no endless answer."""

    class Careful(api.DefaultHttpxClient):
        def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            answer = super().send(request, stream=True, **{**options, "follow_redirects": False})
            if stream:
                return answer
            data, until = bytearray(), time.monotonic() + timeout
            try:
                for piece in answer.iter_bytes():
                    data += piece
                    if len(data) > ANSWER_BYTES:
                        problem = f"more than {ANSWER_BYTES >> 20} MiB came"
                        raise api.APIConnectionError(message=problem, request=request)
                    if time.monotonic() > until:
                        raise api.APIConnectionError(message="the answer did not end in time", request=request)
            finally:
                answer.close()
            dropped = ("content-encoding", "content-length")  # of what came over the wire
            headers = [(key, value) for key, value in answer.headers.multi_items() if key not in dropped]
            extensions = {k: v for k, v in answer.extensions.items() if k != "network_stream"}
            response = type(answer)(answer.status_code, headers=headers, content=bytes(data), extensions=extensions)
            response.request = request
            return response

    return Careful(timeout=timeout)
