"""A client of any OpenAI-compatible endpoint: hosted agents that are not trained, or trained ones that are re-scored.

A hosted policy sends the chat and gets text: no tokenizer, no log-probs, no training. A policy that is trained on an
endpoint's replies sends token ids and must get token ids and log-probs back; the endpoint keeps its own weights, so
the learner scores the replies anew (``old_logprobs = "learner"``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from marft_algos.config import keys
from marft_algos.config.endpoints import Endpoint
from marft_algos.engines import calls
from marft_algos.engines.base import EngineBase, EngineError, Notes, failure
from marft_algos.engines.http import MESSAGE, NONSENSE, careful, refuses_prompt
from marft_algos.engines.usage import Meter, Usage
from marft_algos.models.chat import Renderer
from marft_algos.types import FOREIGN, Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError, imported

_SEED = (1 << 31) - 1
"""Endpoints differ in how large a seed may be; all take 31 bits."""
_REFUSALS = (400, 403, 404, 413, 422, 451)
"""Statuses of an endpoint that was reached and does not answer: because of the prompt, or whatever the prompt is."""
_BROKEN = ("error", "abort", "cancelled")
"""Reasons to finish that are the server's: it gave up."""
_FILTERED = "the endpoint filtered it (content_filter)"
_SPENT = "its limit of tokens was spent before the answer began, as by reasoning. For more of them: --max-new-tokens"
_SILENT = "it ended before it began"
_CALLS = (
    "native tool calls, which are not read. No tools are sent to it; calls are read from the text, in the form"
    ' that the environment\'s prompt shows. To have them read, add tools = "native" to its table'
)
_NO_CALLS = "native tool calls, which are none of a function that was sent to it"
_REFUSED = {
    "max_tokens": "is sent max_completion_tokens, as it takes no max_tokens.",
    "temperature": "takes no temperature of 0, so none is sent: it samples at its server's default, and is not greedy.",
}
_CHARACTERS = 256
"""Of a token at most; the longest in common vocabularies are 128 blanks."""


class OpenAIEngine(EngineBase):
    """Replies of one hosted model.

    Lost connections, rate limits (after the time that the endpoint names) and overload are tried again by the
    ``openai`` package; what still fails is that request's ``StopReason.ERROR``. An answer without text is an empty
    reply. A request that is refused, where the endpoint answers others with the same settings, is
    ``StopReason.REFUSED``.

    Args:
        endpoint: Model, address and limits.
        renderer: Tokenizers of the policies that are trained on its replies; None for hosted ones.

    Raises:
        MissingExtraError: The ``openai`` package is not installed.
        ConfigError: A key that is not there.
    """

    one_by_one = True

    def __init__(self, endpoint: Endpoint, renderer: Renderer | None = None) -> None:
        self._errors = openai = imported("openai", "The engine 'openai'", "hosted")
        self._endpoint, self._renderer = endpoint, renderer
        if endpoint.train:
            from marft_algos.engines import scored

            self._scored = scored
        url = endpoint.urls[0] if endpoint.urls else None
        if url and url.count("/") == 2:
            url += "/v1"
        self._refused = {"max_tokens"} if url is None or "api.openai.com" in url else set[str]()
        """Settings that the endpoint takes in another form, or not."""
        # A server that is started again here draws a new key: without a variable, each request asks for it.
        key = endpoint.key() if endpoint.key_use()[0] else lambda: endpoint.key() or ""
        self._answered: set[tuple[SamplingParams, bool]] = set()
        """Settings, and whether with tools, with which the endpoint has answered something."""
        seconds = endpoint.timeout
        http = careful(openai, seconds, lambda: bool(self._answered), self._late)
        self._client = openai.OpenAI(
            api_key=key, base_url=url, timeout=seconds, max_retries=endpoint.retries, http_client=http
        )
        self._meter, self._notes, self._asking = Meter(endpoint.price_in, endpoint.price_out), Notes(), threading.Lock()
        self._pool = ThreadPoolExecutor(endpoint.concurrency, thread_name_prefix="openai")

    @property
    def _key(self) -> str | None:
        """What no message may show."""
        key = self._endpoint.key()
        return None if key == "none" else key

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

    def probe(self, temperature: float = 1.0) -> None:
        """Asks for a token or two, to see whether the endpoint gives what training needs.

        Args:
            temperature: Of the run, whose log-probs are to be those of what is sampled.

        Raises:
            ConfigError: It does not.
            EngineError: It does not answer.
        """
        for asked in (1.0, self._scored.COLD) if temperature != 1.0 else (1.0,):
            reply = self._one(GenerationRequest("", [1], 0), SamplingParams(1, asked))
            if reply.stop_reason in (StopReason.ERROR, StopReason.REFUSED):
                raise EngineError(f"The endpoint of '{self._endpoint.model}' does not answer: {reply.error}")
        if temperature != 1.0 and self._scored.is_raw(reply):
            raise ConfigError(
                f"The endpoint of '{self._endpoint.model}' gives log-probs at temperature 1 whatever the temperature"
                f" is, so those of replies sampled at {temperature:g} are wrong. Type: --temperature 1 (or have the"
                " server give others; vLLM's does with --logprobs-mode processed_logprobs)."
            )

    def calls_tools(self) -> bool:
        """Asks for a call of a tool, and returns whether the endpoint makes it by its own tool calls.

        Raises:
            EngineError: It does not answer, and not only because of the tool.
        """
        with closing(OpenAIEngine(replace(self._endpoint, tools="native"))) as native:
            try:
                reply = native._one(calls.PROBE, SamplingParams(256))
            except ConfigError:  # it refuses tools, or everything
                return False
        if reply.stop_reason is StopReason.ERROR:
            raise EngineError(f"The endpoint of '{self._endpoint.model}' does not answer: {reply.error}")
        return "<tool_call>" in reply.text

    def _one(self, request: GenerationRequest, params: SamplingParams) -> Generation:
        self._check_cost()
        try:
            return self._ask(request, params)
        except self._errors.OpenAIError as error:
            return self._unanswered(request, params, error)

    def _unanswered(self, request: GenerationRequest, params: SamplingParams, error: Exception) -> Generation:
        """Returns what a request comes to that was refused, or got no answer.

        Raises:
            ConfigError: The endpoint refuses every request with these settings.
        """
        status = _status(error)
        if status in _REFUSALS and not refuses_prompt(status, f"{error} {getattr(error, 'code', '')}"):
            other = self._asked_for_nothing(request, params)
            if _status(other) in (401, *_REFUSALS):
                raise self._misconfigured(error) from None
            error = other or error
        if _status(error) == 401:
            raise self._misconfigured(error) from None
        if _status(error) in _REFUSALS:
            reply = self._nothing(StopReason.REFUSED, f"the endpoint refused the prompt: {self._said(error)}")
        else:
            reply = failure(f"the endpoint did not answer: {type(error).__name__}: {self._said(error)}", FOREIGN)
        self._meter.count(reply, retries=self._endpoint.retries if reply.stop_reason is StopReason.ERROR else 0)
        return reply

    def _ask(self, request: GenerationRequest, params: SamplingParams) -> Generation:
        """Returns what the endpoint answers.

        Raises:
            OpenAIError: It does not.
        """
        answer = self._tokens(request, params) if self._endpoint.train else self._learning(request, params)
        self._answered.add((params, self._native(request)))
        reply, usage = self._read(request, params, answer)
        self._meter.count(reply, retries=answer.retries_taken, **usage)
        return replace(reply, usage=(usage["tokens_in"], usage["tokens_out"])) if usage else reply

    def _asked_for_nothing(self, request: GenerationRequest, params: SamplingParams) -> Exception | None:
        """Asks an endpoint that has not answered with these settings yet to answer a greeting; returns why it does not.

        What it refuses then, it refuses whatever the prompt is.
        """
        with self._asking:
            if (params, self._native(request)) in self._answered:
                return None
            try:
                self._ask(replace(request, messages=[{"role": "user", "content": "Hello"}], prompt_ids=[1]), params)
            except self._errors.OpenAIError as error:
                return error
        return None

    def _late(self) -> None:
        """Tells the user, once, that requests run into the time limit: sent again, each may take as long again."""
        limit, at_once = self._endpoint.timeout, self._endpoint.concurrency
        self._notes.tell(
            "late",
            f"a request to '{self._endpoint.model}' had no whole answer in {limit:g} seconds (timeout), and is tried"
            f" again. If its server is slow, raise timeout, or lower concurrency (now {at_once}).",
        )

    def _chats(self) -> bool:
        """Returns whether the endpoint answers a greeting: what it refuses are prompts of token ids."""
        with closing(OpenAIEngine(replace(self._endpoint, train=False))) as hosted:
            greeting = GenerationRequest("", [], 0, messages=[{"role": "user", "content": "Hello"}])
            try:
                return hosted._one(greeting, SamplingParams(16)).stop_reason in (StopReason.EOS, StopReason.LENGTH)
            except ConfigError:
                return False

    def _misconfigured(self, error: Exception) -> ConfigError:
        if self._endpoint.train and _status(error) != 401 and self._chats():
            return ConfigError(
                f"The endpoint of '{self._endpoint.model}' answers chats, but no prompt of token ids at"
                f" /v1/completions: {self._said(error)}. So it can play and be evaluated untrained: leave out"
                f" train = true. {self._scored.INSTEAD}"
            )
        out = " Its own temperature is --temperature 1, which is not sent." if "temperature" in str(error) else ""
        return ConfigError(
            f"The endpoint refuses model '{self._endpoint.model}': {self._said(error)}. Check the model's name, the"
            " address, what it is sent (tools, extra_body, --temperature, --max-new-tokens), and that the key's"
            f' variable is named: key_env = "NAME".{out}'
        )

    def _said(self, error: object) -> str:
        """Returns an endpoint's words, which may be long, and may repeat the key."""
        return keys.masked(str(error), self._key)[:MESSAGE]

    def _read(
        self, request: GenerationRequest, params: SamplingParams, answer: Any
    ) -> tuple[Generation, dict[str, int]]:
        """Returns the reply, and its tokens by direction; an answer of another shape is this request's failure."""
        try:
            completion = answer.parse()
            if self._endpoint.api == "responses":
                completion = calls.completion(completion)
            used = completion.usage and (completion.usage.prompt_tokens, completion.usage.completion_tokens)
            usage = {"tokens_in": int(used[0]), "tokens_out": int(used[1])} if used and None not in used else {}
            if self._endpoint.train:
                return self._read_tokens(request, params, completion, usage), usage
            return self._read_chat(request, params, completion), usage
        except ConfigError:
            raise
        except (self._errors.OpenAIError, RecursionError, *NONSENSE) as error:
            said = f"{type(error).__name__}: {self._said(error)}"
            return failure(f"the endpoint's answer is no completion: {said}", FOREIGN), {}

    def _learning(self, request: GenerationRequest, params: SamplingParams) -> Any:
        """Asks again without a setting that a refusal names; what is answered then is remembered, and said.

        Raises:
            OpenAIError: It is refused as well.
        """
        refused = set(self._refused)
        while True:
            try:
                answer = self._chat(request, params, refused)
                break
            except self._errors.APIStatusError as error:
                names = {"max_tokens"} if "max_completion_tokens" in str(error) else set[str]()
                names |= {"temperature"} if params.greedy and "temperature" in str(error) else set()
                if _status(error) not in (400, 422) or names <= refused:
                    raise
                refused |= names
        for name in sorted(refused - self._refused):
            self._notes.tell(name, f"'{self._endpoint.model}' {_REFUSED[name]}")
        self._refused |= refused
        return answer

    def _chat(self, request: GenerationRequest, params: SamplingParams, refused: Set[str]) -> Any:
        """Asks for chat completions, or the Responses API, which takes no seed and is asked to store nothing."""
        responses, native = self._endpoint.api == "responses", self._native(request)
        limit = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        settings: dict[str, Any] = {"store": False} if responses else {"seed": request.seed & _SEED}
        settings |= {"model": self._endpoint.model, "max_output_tokens" if responses else limit: params.max_new_tokens}
        settings["extra_body"] = self._endpoint.extra_body
        if params.temperature != 1.0 and not params.greedy:  # some models know no other than 1, and refuse the setting
            settings["temperature"] = params.temperature
        elif params.greedy and "temperature" not in refused:
            settings["temperature"] = 0.0
        if native:
            settings["tools"] = calls.offered(request, responses=responses)
        chat: list[Any] = calls.received(calls.messages(request) if native else request.messages)
        if responses:
            chat = [*calls.items(chat)]
            return self._client.responses.with_raw_response.create(input=chat, **settings)
        chat = [calls.shown(message, responses=False) for message in chat]
        return self._client.chat.completions.with_raw_response.create(messages=chat, **settings)

    def _native(self, request: GenerationRequest) -> bool:
        return self._endpoint.tools == "native" and bool(request.tools)

    def _tokens(self, request: GenerationRequest, params: SamplingParams) -> Any:
        ends = () if self._renderer is None else self._renderer.chat(request.policy).end_ids
        extra = self._scored.fields(params, ends)
        settings: dict[str, Any] = {"model": self._endpoint.model, "max_tokens": params.max_new_tokens, "logprobs": 1}
        settings |= {"temperature": 0.0 if params.greedy else params.temperature, "seed": request.seed & _SEED}
        create = self._client.completions.with_raw_response.create
        return create(prompt=request.prompt_ids, extra_body=extra, **settings)

    def _read_chat(self, request: GenerationRequest, params: SamplingParams, answer: Any) -> Generation:
        if not answer.choices:
            return failure("the endpoint's answer is no completion: no choice", FOREIGN)
        choice = answer.choices[0]
        message, finish = choice.message, choice.finish_reason
        text, most = _text(message.content), _CHARACTERS * params.max_new_tokens
        named, native = calls.named(message), self._native(request)
        called = (_NO_CALLS if self._endpoint.tools == "native" else _CALLS) if message.tool_calls or named else ""
        if named and native:
            text, called = calls.text_of(request, text, named), ""
        text = keys.masked(text, self._key)  # which goes into records
        reason = StopReason.LENGTH if finish == "length" or len(text) > most else StopReason.EOS
        if finish == "content_filter":
            return self._nothing(StopReason.REFUSED, _FILTERED)
        if not text and message.refusal:
            return self._nothing(StopReason.REFUSED, f"the model refused: {self._said(message.refusal)}")
        if not text and finish in _BROKEN:
            return failure(f"the endpoint gave up on its reply ({finish})", FOREIGN)
        if not text:
            return self._nothing(reason, called or (_SPENT if finish == "length" else _SILENT))
        if called:
            self._notes.tell(called, f"a reply of '{self._endpoint.model}' has more than text: {called}")
        if len(text) > most:
            words = f"has {len(text)} characters where {params.max_new_tokens} tokens were asked for"
            cut = f"It is cut to {most}, {_CHARACTERS} for a token."
            self._notes.tell("cut", f"a reply of '{self._endpoint.model}' {words}. {cut}")
        return Generation([], np.zeros(0, np.float32), reason, FOREIGN, text[:most])

    def _nothing(self, reason: StopReason, why: str) -> Generation:
        """Returns an answer of nothing; tells the user why, once for each reason."""
        kind = why.partition(":")[0]
        self._notes.tell(kind, f"a reply of '{self._endpoint.model}' has no text, and scores as a wrong answer: {why}")
        return Generation([], np.zeros(0, np.float32), reason, FOREIGN, error=why)

    def _read_tokens(
        self, request: GenerationRequest, params: SamplingParams, answer: Any, usage: Mapping[str, int]
    ) -> Generation:
        choice, model = answer.choices[0], self._endpoint.model
        if choice.finish_reason == "content_filter":
            return self._nothing(StopReason.REFUSED, _FILTERED)
        chat = None if self._renderer is None else self._renderer.chat(request.policy)
        used = (usage["tokens_in"], usage["tokens_out"]) if usage else None
        reply = self._scored.read(model, request, params, choice, used, chat)
        if not reply.action_ids and not reply.error:
            spent = choice.finish_reason == "length"
            return self._nothing(StopReason.LENGTH if spent else StopReason.EOS, _SPENT if spent else _SILENT)
        return reply

    def _check_cost(self) -> None:
        spent = self._meter.total.cost
        if spent >= self._endpoint.max_cost:
            raise EngineError(
                f"Replies of '{self._endpoint.model}' have cost {spent:.2f}, and may cost {self._endpoint.max_cost:.2f}"
                " (max_cost). The last checkpoint stands; go on from it with a larger max_cost."
            )


def _status(error: Exception | None) -> int | None:
    """Returns the status that an endpoint refused with; None of an error of the line."""
    return getattr(error, "status_code", None)


def _text(content: Any) -> str:
    """Returns the text of a message's content, which some endpoints send in parts; thoughts and the like are none."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise TypeError(f"the content is a {type(content).__name__}")
    parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
    return "".join(str(part["text"]) for part in parts if part.get("type", "text") in ("text", "output_text"))
