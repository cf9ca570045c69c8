"""Teams whose weights a Tinker server has: what it cannot do is refused before anything is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from marft_algos.algorithms.base import Algorithm
from marft_algos.config.settings import TrainConfig
from marft_algos.extras.tinker.client import TinkerServer
from marft_algos.extras.tinker.dialect import Dialect, probe
from marft_algos.extras.tinker.engine import TinkerEngine as TinkerEngine
from marft_algos.extras.tinker.policies import RemotePolicy, RemoteTeam
from marft_algos.models.chat import Renderer
from marft_algos.models.policy import PolicySet
from marft_algos.terminal import say
from marft_algos.training.resolve import RunSpec
from marft_envs.errors import ConfigError

ALPHA = 32
"""Scale of the adapters of every server that speaks the protocol: it has no field for another."""
EVERYTHING = 1 << 30
"""Tokens of a piece where no pass runs here: a minibatch's requests are in flight together."""


def settled(spec: RunSpec, algorithm: Algorithm, ranks: int) -> RunSpec:
    """Returns the run with what follows from its weights being elsewhere.

    Args:
        spec: Its settings, resolved.
        algorithm: What trains it.
        ranks: Processes that train.

    Raises:
        ConfigError: The protocol has no place for a setting; the message says what to change.
    """
    config = spec.config
    if hint := next((hint for hint, wrong in _beyond(spec, algorithm, ranks).items() if wrong), ""):
        raise ConfigError(f"With --tinker, the weights are on a server. {hint}")
    if config.lora_alpha != ALPHA:
        say(f"note: adapters on the server count {ALPHA} / rank times: lora_alpha is {ALPHA}", error=True)
    if set(spec.remote) >= set(spec.trained):
        algorithm_settings = dataclasses.replace(config.algorithm, micro_tokens=EVERYTHING)
        config = config.changed(algorithm=algorithm_settings)
    return dataclasses.replace(spec, config=config.changed(lora_alpha=ALPHA))


def team(spec: RunSpec, here: PolicySet, renderer: Renderer) -> RemoteTeam:
    """Opens a session on the server, asks for its dialect, and joins what is there with what is here.

    Args:
        spec: The run's settings, resolved.
        here: The policies with weights here.
        renderer: How all of them are spoken to.

    Raises:
        ConfigError: The server does not have the base, or its dialect cannot do what the run needs.
        TinkerError: It does not answer.
    """
    config, endpoint = spec.config, spec.endpoints[spec.remote[0]]
    server, found, remote = TinkerServer(endpoint), dict[str, Dialect](), dict[str, RemotePolicy]()
    try:
        for policy in spec.remote:
            chat, base = renderer.chat(policy), endpoint.model or spec.models[policy]
            if base not in found:
                (prompt,) = chat.render([[{"role": "user", "content": "Say something."}]])
                found[base] = probe(server, base, chat.vocabulary, config.lora_r, prompt)
                _check(found[base], config, server.url)
            seed = config.seed + len(remote)
            remote[policy] = RemotePolicy(server, chat, base, found[base], config.lora_r, seed)
    except BaseException:
        server.close()
        raise
    return RemoteTeam(here, remote, spec.agents, spec.trained)


def trunk(spec: RunSpec, renderer: Renderer) -> PolicySet:
    """Loads the model whose hidden states the value heads read, frozen, for every policy.

    Raises:
        ConfigError: Its tokenizer is another one.
    """
    critic = spec.endpoints[spec.remote[0]].critic
    agents = {agent: policy for agent, policy in spec.agents.items() if policy in spec.models}
    names = list(dict.fromkeys(agents.values()))
    read = PolicySet.build(critic, agents, frozen=names, full_finetune=True, device=spec.config.device)
    for policy in names:
        theirs, ours = renderer.tokenizer(policy).get_vocab(), read.renderer.tokenizer(policy).get_vocab()
        if odd := next((token for token, i in theirs.items() if ours.get(token) != i), None):
            raise ConfigError(
                f"The critic '{critic}' has another tokenizer than '{spec.models[policy]}' (the token {odd!r}), so it"
                " cannot read its replies. Choose a small model of the same family as critic: smollm2-135m for SmolLM2,"
                " Qwen/Qwen3-0.6B for Qwen3"
            )
    return read


def _beyond(spec: RunSpec, algorithm: Algorithm, ranks: int) -> Mapping[str, object]:
    """Returns what is said of settings that the protocol has no place for -> whether they are set."""
    config, settings = spec.config, spec.config.algorithm
    critic = spec.endpoints[spec.remote[0]].critic
    return {
        "It trains LoRA adapters only. Leave out --full-finetune": config.full_finetune,
        "How it keeps its base is its own matter. Type: --quantize none": config.quantize != "none",
        "There is no base here to be sharded. Type: --shard auto": config.shard == "base",
        "One process speaks to it. Type: --nproc 1 --reduction-slots 1": ranks > 1 or config.reduction_slots > 1,
        "One process plays. Type: --rollouts here": config.rollouts != "here",
        "Turns of older weights cannot be checked: those are not here. Type: --staleness 0": config.staleness,
        "Past states of a pool cannot be copied here. Type: --pool 0": config.pool,
        "It scores at temperature 1 only. Type: --temperature 1": config.temperature != 1.0,
        "It adapts all linear layers or none. Type: --lora-targets all-linear": config.lora_targets != "all-linear",
        "It gives log-probs of given tokens, and no entropy to raise. Type: --entropy-coef 0": settings.entropy_coef,
        "The critic reads a model here. Type: --critic-features base": settings.critic_features != "base",
        "It compares with the base model alone, not with where a run began. Type: --kl-coef 0 --kl-reward-coef 0, or"
        " leave out --start and --adapters": set(spec.kept) & set(spec.remote),
        f"It gives no hidden states, which the critic of {config.algo} reads. Name a small model of the same tokenizer"
        " that runs here: --tinker url=URL critic=smollm2-135m; or train without a critic: --algo grpo, or, with marft,"
        " --critic none": algorithm.view != "none" and not critic,
    }


def _check(dialect: Dialect, config: TrainConfig, url: str) -> None:
    """Refuses what this server's dialect cannot do.

    Raises:
        ConfigError: It is wanted.
    """
    if not dialect.end_token:
        raise ConfigError(
            f"The server at {url} leaves the token that ends a reply out of it: when to stop could not be learnt."
            " Choose another server."
        )
    most = getattr(config.algorithm, "max_grad_norm", None)
    if most is not None and not dialect.clips and config.iterations:
        raise ConfigError(
            f"The server at {url} drops grad_clip_norm without a word, and max_grad_norm is {most:g}. Adam's step does"
            " not grow with the gradient. Type: --max-grad-norm none"
        )
