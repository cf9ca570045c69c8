"""Chooses the engine that plays each policy, and checks that its servers can be reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from marft_algos.config import endpoints, keys
from marft_algos.config.endpoints import Endpoint
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import EngineError, Publisher, RolloutEngine
from marft_algos.engines.http import EngineServer
from marft_algos.engines.mixed import MixedEngine
from marft_algos.engines.native import NativeEngine
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.lazy import extra
from marft_algos.models.policy import PolicySet
from marft_algos.ranks.group import Alone, RankGroup
from marft_algos.training.resolve import NATIVE, RunSpec
from marft_algos.types import GenerationRequest, SamplingParams
from marft_envs.errors import ConfigError, check_known


def asker(proposer: Any) -> Callable[[str, int], str] | None:
    """Returns what asks a hosted model that plays nobody; None where it is none.

    Raises:
        ConfigError: Its table cannot work.
    """
    if not isinstance(proposer, Mapping):
        return None
    engine = OpenAIEngine(endpoints.parse(proposer))

    def ask(text: str, tokens: int) -> str:
        request = GenerationRequest("proposer", [], 0, messages=[{"role": "user", "content": text}])
        (reply,) = engine.generate([request], SamplingParams(max_new_tokens=tokens))
        if reply.error:
            raise EngineError(f"The proposer has not answered: {reply.error}")
        return reply.text

    return ask


def reach(spec: RunSpec) -> None:
    """Checks that keys and servers are there, and that the servers give what training needs.

    Raises:
        ConfigError: A server or key that is not there, an endpoint without log-probs for a policy that is trained.
    """
    for policy, endpoint in spec.endpoints.items():
        if spec.config.rollouts != "here" and not endpoint.hosted and endpoint.kind != "native":
            raise ConfigError(
                f"Ray's workers cannot share the server that plays {policy}. Give each worker a server of its own"
                " (--worker-vllm FOLDER, without --engines), or let ranks share it: --rollouts here, with --nproc N"
            )
        if endpoint.kind == "vllm":
            _check_vllm(spec.config, policy, endpoint)
        elif endpoint.kind == "openai":
            _check_openai(spec.config, policy, endpoint)


def served(spec: RunSpec, servers: Mapping[str, Any]) -> RunSpec:
    """Returns the settings of a team that vLLM servers play, which has weights here.

    Args:
        spec: The run's settings, resolved.
        servers: Table of the servers of all policies with weights here, or policy -> table.

    Raises:
        ConfigError: It names another policy, or servers that cannot be used.
    """
    local = [policy for policy, endpoint in spec.endpoints.items() if not endpoint.hosted and endpoint.kind != "tinker"]
    tables = dict.fromkeys(local, servers) if "kind" in servers else servers
    check_known(tables, local, "--engines names an unknown policy '{}'.")
    named = endpoints.parse_all(tables)
    for policy, endpoint in named.items():
        _check_vllm(spec.config, policy, endpoint)
    here = dict.fromkeys(local, NATIVE)  # wherever they were played in training
    return replace(spec, endpoints={**spec.endpoints, **here, **named})


def make_engine(
    spec: RunSpec, policies: PolicySet, *, local: bool = False, group: RankGroup | None = None
) -> RolloutEngine:
    """Builds the engine of a team; policies with equal settings share one.

    Args:
        spec: The run's settings, resolved.
        policies: Those with weights here.
        local: Play policies that have weights here in this process, wherever they are played in training.
        group: The ranks that train together, and share servers.
    """
    native = NativeEngine(
        policies, spec.config.engine_batch, decode_graph=spec.config.decode_graph, cache_gb=spec.config.cache_gb
    )
    groups: dict[Endpoint, list[str]] = {}
    for policy, endpoint in spec.endpoints.items():
        if endpoint.kind == "tinker" or (endpoint.kind != "native" and (endpoint.hosted or not local)):
            groups.setdefault(endpoint, []).append(policy)
    if not groups:
        return native
    engines: dict[str, RolloutEngine] = dict.fromkeys(policies.here, native)
    for endpoint, names in groups.items():
        engines |= dict.fromkeys(names, _remote(endpoint, names, policies, group or Alone()))
    return MixedEngine(engines)


def publisher(config: TrainConfig, engine: RolloutEngine, policies: PolicySet) -> Publisher:
    """Returns what hands the policies' weights to the engine."""
    return Publisher(engine, policies, config.adapter_dir or None)


def _remote(endpoint: Endpoint, names: list[str], policies: PolicySet, group: RankGroup) -> RolloutEngine:
    if endpoint.kind == "tinker":
        return extra("tinker").TinkerEngine(policies, endpoint.price_in, endpoint.price_out)
    if endpoint.kind == "openai":
        return OpenAIEngine(endpoint, policies.renderer if endpoint.train else None)
    make = partial(extra("vllm of ranks").RanksVLLMEngine, group) if group.size > 1 else extra("vllm").VLLMEngine
    return make(
        policies,
        endpoint.urls,
        names,
        timeout=endpoint.timeout,
        retries=endpoint.retries,
        concurrency=endpoint.concurrency,
        sleeps=endpoint.sleep,
        restart_timeout=endpoint.restart_timeout,
        weights_tolerance=endpoint.weights_tolerance or None,
        key=endpoint.key() if endpoint.key_env else None,
    )


def _check_vllm(config: TrainConfig, policy: str, endpoint: Endpoint) -> None:
    if config.full_finetune:
        raise ConfigError(f"Policy '{policy}' cannot be played by vLLM with full_finetune: servers swap adapters only.")
    key = endpoint.key() if endpoint.key_env else None
    seconds = min(endpoint.timeout, 30.0)
    servers = [EngineServer(url, seconds, key or partial(keys.of_server, url)) for url in endpoint.urls]
    for server in extra("vllm").Restarts(servers, endpoint.restart_timeout).present():
        extra("vllm").describe(server)


def _check_openai(config: TrainConfig, policy: str, endpoint: Endpoint) -> None:
    engine = OpenAIEngine(endpoint)
    try:
        if not endpoint.train:
            return
        settings: Any = config.algorithm
        if policy not in config.frozen and getattr(settings, "old_logprobs", "learner") != "learner":
            raise ConfigError(
                f"Policy '{policy}' is trained on replies of another server's weights, whose log-probs are not the"
                " learner's. Type: --old-logprobs learner (and a ratio_tolerance that the difference stays below)."
            )
        engine.probe(config.temperature)
    finally:
        engine.close()
