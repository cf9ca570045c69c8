"""A client of vLLM servers: prompt ids in; ids and log-probs as sampled out; adapters swapped while the server runs.

One server is one replica: a server that runs data-parallel inside loads an adapter into one of its parts only.
Adapters are named ``policy@version-tag``, the tag being this engine's own, so that neither another run on the same
server nor its prefix cache is ever mixed up with ours.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from marft_algos.config import keys
from marft_algos.engines import agreement
from marft_algos.engines.agreement import Agreement
from marft_algos.engines.base import EngineBase, EngineError, Notes, failure, refusal, too_long, wrong_tokens
from marft_algos.engines.conformance import rounding
from marft_algos.engines.http import NONSENSE, EngineServer, ServerDown, ServerRefused, refuses_prompt
from marft_algos.engines.replicas import Restarts, check_slots, describe
from marft_algos.engines.usage import Meter
from marft_algos.models.policy import PolicySet
from marft_algos.types import STRAIGHT, FloatArray, Generation, GenerationRequest, SamplingParams, StopReason
from marft_envs.errors import ConfigError

BACKOFF = 0.5
"""Seconds before the second round over all replicas; doubled for each further one."""
_SEED = (1 << 63) - 1

_DIRECTIONS = {"in": "prompt", "out": "completion"}


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a policy's weights, as it was published."""

    number: int
    adapter: Path
    ids: list[int]
    """A text, which every server that takes the adapter scores."""
    scores: FloatArray
    """The learner's log-probs of it, and the base model's where the learner has them."""
    base: FloatArray | None


class VLLMEngine(EngineBase):
    """Samples policies on vLLM servers that serve the policies' base model with LoRA adapters.

    Args:
        policies: Whose weights; their tokenizer, end tokens and context.
        urls: One server per replica.
        members: Policies played here, all of one base model; by default all.
        timeout: Seconds one request may take.
        retries: Further attempts of a request, each on the next replica.
        concurrency: Requests in flight at once, per server.
        staleness: Versions that stay loaded behind the newest one.
        sleeps: Put the servers to sleep on request (they need ``--enable-sleep-mode`` and VLLM_SERVER_DEV_MODE=1).
        restart_timeout: Seconds to wait, when no server answers, for one that is started or started again.
        weights_tolerance: Largest mean difference of a token's log-prob between learner and server, in nats, when a
            server takes an adapter; by default what rounding may cause (see ``conformance.rounding``).
        key: Sent as bearer token; by default that of a server that this user has started here.

    Raises:
        ConfigError: A server that cannot serve these policies; the message says how to start it.
    """

    one_by_one = True

    def __init__(
        self,
        policies: PolicySet,
        urls: Sequence[str],
        members: Sequence[str] | None = None,
        *,
        timeout: float = 600.0,
        retries: int = 5,
        concurrency: int = 64,
        staleness: int = 0,
        sleeps: bool = False,
        restart_timeout: float = 600.0,
        weights_tolerance: float | None = None,
        key: str | None = None,
    ) -> None:
        self._policies, self._members = policies, list(members or policies.policies)
        self._retries, self._staleness, self._sleeps = retries, staleness, sleeps
        self._tag = uuid.uuid4().hex[:6]
        self._servers = [EngineServer(url, timeout, key or partial(keys.of_server, url)) for url in urls]
        self._restarts, self._tolerance = Restarts(self._servers, restart_timeout), weights_tolerance
        self._loaded: dict[str, list[Version]] = {}
        self._agreements = list[Agreement]()
        self._answered: dict[tuple[str, str], tuple[FloatArray, FloatArray]] = {}
        """Server and policy -> the log-probs of its version before, and the learner's."""
        self._meter, self._notes = Meter(), Notes()
        self._probed = False
        self._turn = itertools.count()  # requests are dealt to the replicas in turn
        self._pool = ThreadPoolExecutor(concurrency * len(urls), thread_name_prefix="vllm")
        base = policies.base(self._members[0])
        for member in self._members:
            if policies.base(member) is not base:
                raise ConfigError(
                    f"Policies '{self._members[0]}' and '{member}' have different base models, and a vLLM server has"
                    f' one. Give them servers of their own: --engines \'{member}={{kind = "vllm", url = "URL"}}\''
                )
        present = self._restarts.present()
        self._context = min(describe(server)[1] for server in present)
        here = base.chat.context
        if self._context < here:
            raise ConfigError(
                f"The server's context is {self._context} tokens, that of '{base.spec}' is {here} here. Type:"
                f" --context {self._context}, or start the server with --max-model-len {here}"
            )
        needed = len(self._members) * (staleness + 2)
        for server in present:
            check_slots(server, needed)

    def generate(self, requests: Sequence[GenerationRequest], params: SamplingParams) -> list[Generation]:
        """Returns one generation per request, in order; requests are spread over the replicas.

        Greedy replies carry log-probs at temperature 1.

        Raises:
            EngineError: A request has an empty prompt, or its policy was never published.
            ConfigError: Settings that cannot be sampled with; a server whose log-probs are not those of sampling.
        """
        for i, request in enumerate(requests):
            if not request.prompt_ids:
                raise EngineError(f"Request {i} (policy '{request.policy}') has an empty prompt. Expected token ids.")
            if request.policy not in self._loaded:
                raise EngineError(f"Policy '{request.policy}' was never published to its vLLM servers.")
        if requests and params.temperature != 1.0 and not params.greedy and not self._probed:
            self._probe(requests[0])
        for server in self._servers:
            server.down = server.down and not server.healthy()
        jobs = [self._pool.submit(self._one, request, params, next(self._turn)) for request in requests]
        return [job.result() for job in jobs]

    def needs_adapter(self, policy: str) -> bool:
        """Returns True: servers read adapters from disk."""
        return True

    def publish(self, policy: str, version: int, adapter: Path | None = None) -> None:
        """Loads the adapter on every replica; a replica that is down gets it when it is back.

        Raises:
            EngineError: No replica took it.
            ConfigError: Servers without LoRA or with too small a rank; the message has their words.
        """
        if adapter is None or not (adapter / "adapter_config.json").is_file():
            raise EngineError(f"Policy '{policy}' has no adapter to load. Expected a folder in peft's format.")
        self._publish(policy, self._scored(policy, version, adapter))

    def _publish(self, policy: str, new: Version) -> None:
        versions = self._loaded.setdefault(policy, [])
        versions[:] = [loaded for loaded in versions if loaded.number != new.number] + [new]
        for attempt in range(1 + self._retries):
            lost = [error for server in self._servers if (error := self._offer(server, policy, new)) is not None]
            if len(lost) < len(self._servers):
                break
            if attempt == self._retries or not self._restarts.awaited(str(lost[-1])):
                raise EngineError(f"No vLLM server took version {new.number} of policy '{policy}': {lost[-1]}")
            time.sleep(BACKOFF)
        while len(versions) > 1 + self._staleness:
            self._unload(policy, versions.pop(0).number)

    def sleep(self) -> None:
        """Frees the servers' weights and caches, if the engine was made with ``sleeps``."""
        self._tell("/sleep?level=1")

    def wake(self) -> None:
        """Brings them back."""
        self._tell("/wake_up")

    def metrics(self) -> dict[str, float]:
        """Returns requests, retries, failures and tokens since the last call, and how many replicas are down.

        ``gap_mean``, ``gap_p99`` and ``gap_max`` are the largest differences to the learner's log-probs that a server
        had with an adapter that it took, in nats.
        """
        gaps, self._agreements = self._agreements, []
        found = {f"gap_{name}": max(getattr(gap, name) for gap in gaps) for name in ("mean", "p99", "max") if gaps}
        return self._meter.since() | found | {"servers_down": float(sum(server.down for server in self._servers))}

    def close(self) -> None:
        """Unloads what was loaded."""
        self._restarts.close()
        for policy, versions in self._loaded.items():
            for version in versions:
                self._unload(policy, version.number)
        self._loaded = {}
        self._pool.shutdown()

    def _one(self, request: GenerationRequest, params: SamplingParams, start: int) -> Generation:
        """Returns one reply: from a replica that is up, else from the next; else a recorded failure."""
        published = self._loaded[request.policy][-1]
        version = published.number
        length = len(request.prompt_ids)
        if length + params.max_new_tokens > self._context:
            whose = f"the vLLM server of policy '{request.policy}'"
            return self._refused(too_long(length, params.max_new_tokens, self._context, whose, version))
        body = self._body(request, params, version)
        order = self._servers[start % len(self._servers) :] + self._servers[: start % len(self._servers)]
        order.sort(key=lambda server: server.down)
        problem = ""
        for attempt in range(1 + self._retries):
            server = order[attempt % len(order)]
            if attempt and attempt % len(order) == 0:
                time.sleep(BACKOFF * 2 ** min(attempt // len(order) - 1, 6))
            try:
                try:
                    answer = server.post("/v1/completions", body)
                except ServerRefused as error:
                    if error.status != 404:
                        raise
                    self._load(server, request.policy, published)  # it was started again, and knows nothing
                    answer = server.post("/v1/completions", body)
            except ServerRefused as error:
                problem = str(error)
                if refuses_prompt(error.status, problem):
                    return self._refused(refusal(f"the vLLM server refuses this prompt: {problem}", version))
                break
            except ServerDown as error:
                server.down, problem = True, str(error)
                if all(each.down for each in self._servers):
                    self._restarts.awaited(problem)
                continue
            reply, usage = self._read(request, params, answer, version)
            self._meter.count(reply, retries=attempt, **usage)
            return replace(reply, error=server.masked(reply.error))
        reply = failure(f"no vLLM server answered for policy '{request.policy}': {problem}", version)
        self._meter.count(reply, retries=attempt)
        return reply

    def _refused(self, reply: Generation) -> Generation:
        self._meter.count(reply)
        self._notes.tell("refused", f"{reply.error}. Such a reply is empty, and scores as one.")
        return reply

    def _body(self, request: GenerationRequest, params: SamplingParams, version: int) -> dict[str, Any]:
        """Every setting that could bend the distribution is stated: servers have defaults of the model's own."""
        chat = self._policies.renderer.chat(request.policy)
        by_text = {"stop": [chat.end_text], "include_stop_str_in_output": True} if chat.end_text else {}
        return {
            **by_text,
            "model": self._name(request.policy, version),
            "prompt": request.prompt_ids,
            "max_tokens": params.max_new_tokens,
            "temperature": 0.0 if params.greedy else params.temperature,
            **STRAIGHT,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": request.seed & _SEED,
            "logprobs": 0,
            "stop_token_ids": list(chat.end_ids),
            "add_special_tokens": False,
            "return_token_ids": True,
        }

    def _read(
        self, request: GenerationRequest, params: SamplingParams, answer: Any, version: int
    ) -> tuple[Generation, dict[str, int]]:
        """Returns the reply, and its tokens by direction; an answer of another shape is this request's failure."""
        try:
            usage = (answer.get("usage") if isinstance(answer, dict) else None) or {}
            counted = {f"tokens_{way}": int(usage.get(f"{what}_tokens", 0)) for way, what in _DIRECTIONS.items()}
            return self._reply(request, params, answer, version), counted
        except ConfigError:
            raise
        except NONSENSE as error:
            return failure(f"the server's answer is no completion: {type(error).__name__}: {error}", version), {}

    def _reply(self, request: GenerationRequest, params: SamplingParams, answer: Any, version: int) -> Generation:
        if not isinstance(answer, dict) or not answer.get("choices"):
            return failure(f"the server's answer is no completion: {str(answer)[:200]}", version)
        choice = answer["choices"][0]
        ids, scored = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if ids is None or scored is None:
            raise ConfigError(
                "The server's replies lack token ids or log-probs, without which nothing can be trained. Expected a"
                " vLLM server of version 0.10.2 or later, and no limit on log-probs (--max-logprobs)."
            )
        if choice.get("prompt_token_ids") not in (None, request.prompt_ids):
            return failure("the server changed the prompt's tokens", version)
        chat = self._policies.renderer.chat(request.policy)
        if problem := wrong_tokens(ids, scored, params.max_new_tokens, chat.vocabulary):
            return failure(f"the server sent {problem}", version)
        end = chat.end_of(ids)
        if bool(end) != (choice["finish_reason"] == "stop"):
            return failure(f"the server ended with '{choice['finish_reason']}' after tokens {ids[-3:]}", version)
        ids, scored = ids[: end or None], scored[: end or None]
        reason = StopReason.EOS if end else StopReason.LENGTH
        return Generation(list(ids), np.asarray(scored, np.float32), reason, version, chat.text_of(ids))

    def _name(self, policy: str, version: int) -> str:
        return f"{policy}@{version}-{self._tag}"

    def _scored(self, policy: str, version: int, adapter: Path) -> Version:
        """Scores the text that a server is to score once it has taken the adapter."""
        if known := self._loaded.get(policy):
            ids, base = known[-1].ids, known[-1].base  # of weights that no update changes
        else:
            ids = agreement.text(self._policies, policy)
            base = agreement.base(self._policies, policy, ids) if self._policies.starts_as_base(policy) else None
        return Version(version, adapter, ids, agreement.learner(self._policies, policy, ids), base)

    def _offer(self, server: EngineServer, policy: str, version: Version) -> ServerDown | None:
        """Loads an adapter on one server; returns why it has not taken it."""
        try:
            self._load(server, policy, version)
        except ServerDown as error:
            server.down = True
            return error
        server.down = False
        return None

    def _load(self, server: EngineServer, policy: str, version: Version) -> None:
        name = self._name(policy, version.number)
        try:
            server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(version.adapter)})
        except ServerRefused as error:
            if "already been loaded" in str(error):
                return
            raise ConfigError(
                f"The vLLM server at {server.url} refuses the adapter of policy '{policy}': {error}. Start it with"
                " VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and a --max-lora-rank that fits, on a machine that"
                f" sees {version.adapter.parent}; python -m marft_algos.engines.server prints the command."
            ) from error
        self._check(server, policy, version, agreement.server(server, name, version.ids))

    def _check(self, server: EngineServer, policy: str, version: Version, scores: FloatArray) -> None:
        """Checks that a server samples from the weights that were published.

        Raises:
            ConfigError: It does not.
        """
        gap = Agreement.of(scores, version.scores)
        self._agreements.append(gap)
        allowed = self._tolerance or rounding(self._policies, policy)
        what = f"version {version.number} of policy '{policy}' on the vLLM server at {server.url}"
        if not gap.within(allowed):
            base = None if version.base is None else agreement.server(server, describe(server)[0], version.ids)
            same = base is None or version.base is None or Agreement.of(base, version.base).within(allowed)
            raise agreement.refused(what, gap, allowed, "adapter" if same else "base model")
        before = self._answered.get((server.url, policy))
        if before and np.array_equal(before[0], scores) and Agreement.of(before[1], version.scores).max > allowed:
            raise ConfigError(
                f"The log-probs of {what} are those of the version before, bit for bit. Expected a server that reads"
                f" {version.adapter} anew: a folder that both see (adapter_dir), without a cache."
            )
        self._answered[server.url, policy] = scores, version.scores

    def _unload(self, policy: str, version: int) -> None:
        for server in self._servers:
            try:
                server.post("/v1/unload_lora_adapter", {"lora_name": self._name(policy, version)})
            except ServerDown:
                server.down = True
            except ServerRefused as error:
                if error.status != 404:  # it was started again and has no such adapter
                    raise

    def _tell(self, path: str) -> None:
        if self._sleeps:
            for server in self._servers:
                server.post(path, {})

    def _probe(self, request: GenerationRequest) -> None:
        """Asks each server for log-probs at two temperatures: equal ones are not those that were sampled from."""
        for server in self._servers:
            tops = []
            for temperature in (1.0, 2.0):
                body = self._body(request, SamplingParams(1, temperature), self._loaded[request.policy][-1].number)
                try:
                    answer = server.post("/v1/completions", body | {"logprobs": 5})
                except ServerDown:
                    break
                try:
                    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
                    tops.append(sorted(map(float, top.values()), reverse=True)[:5])
                except NONSENSE as error:
                    text = server.masked(str(answer))[:200]
                    raise EngineError(f"The vLLM server at {server.url} gives no log-probs, but: {text}") from error
            if len(tops) == 2 and np.ptp(tops[0]) > 1e-3 and np.allclose(tops[0], tops[1], atol=1e-6):
                raise ConfigError(
                    f"The vLLM server at {server.url} gives log-probs at temperature 1 whatever the temperature is:"
                    " what would be scored is not what is sampled. Start it with --logprobs-mode processed_logprobs,"
                    " or train at temperature 1."
                )
        self._probed = True
