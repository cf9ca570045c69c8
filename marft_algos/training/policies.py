"""Policies of a run from its settings: models, adapters and weights to begin with, how they are spoken to and play."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import RolloutEngine
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.evaluation.play import Player
from marft_algos.lazy import extra
from marft_algos.models.assignment import templates_by_model
from marft_algos.models.chat import Chat, Renderer
from marft_algos.models.critic import Critics
from marft_algos.models.loading import BaseModel, ModelSettings, load_chat
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_algos.ranks.group import RankGroup
from marft_algos.runs import checkpoint, start
from marft_algos.training.resolve import RunSpec
from marft_algos.types import SamplingParams
from marft_envs.errors import ConfigError


def model_settings(config: TrainConfig, models: Mapping[str, str]) -> ModelSettings:
    """Returns how base models, which are given by policy, are stored, run and prompted."""
    names = ("quantize", "gradient_checkpointing", "thinking", "template_tools", "date", "head_dtype")
    templates = templates_by_model(config.chat_template, models)
    return ModelSettings(chat_template=templates, **{name: getattr(config, name) for name in names})


def make_policies(spec: RunSpec, loaded: BaseModel | None = None, shards: RankGroup | None = None) -> PolicySet:
    """Loads the models and puts the adapters on.

    Args:
        spec: The run's settings, resolved.
        loaded: A base model that is loaded already, instead of those that the settings name.
        shards: Ranks of which each holds a share of the base models.

    Raises:
        ConfigError: A model, policy or adapter that cannot work.
    """
    config = spec.config
    here = {policy: model for policy, model in spec.models.items() if policy not in spec.remote}
    elsewhere = {agent: policy for agent, policy in spec.agents.items() if policy in spec.remote}
    policies = PolicySet.build(
        here,
        {agent: policy for agent, policy in spec.agents.items() if policy in here},
        lora=LoraSettings(config.lora_r, config.lora_alpha, config.lora_targets),
        dtype=config.dtype,
        device=config.device,
        full_finetune=config.full_finetune,
        settings=model_settings(config, spec.models),
        frozen=[*(p for p in config.frozen if p not in spec.endpoints or not spec.endpoints[p].hosted), *spec.past],
        spare=list(spec.past),
        starts=spec.kept,
        hosted={**spec.hosted, **elsewhere},
        seed=config.seed,
        loaded=loaded,
        shards=shards,
    )
    if elsewhere:
        policies = extra("tinker").team(spec, policies, make_renderer(spec))
    if begun := start.loaded(config, spec.local):
        checkpoint.load_policies(start.locate(config.start).weights, policies, begun)
    for policy, folder in config.adapters.items():
        policies.load_adapter(policy, folder)
    for past, policy in spec.past.items():
        if policy in (*begun, *config.adapters):
            policies.weights(past).copy_from(policies.weights(policy).tensors, f"policy '{policy}'")
    policies.keep_starts()
    for policy in policies.policies:
        _limit(policies.renderer.chat(policy), config)
    return policies


def make_renderer(spec: RunSpec, loaded: BaseModel | None = None) -> Renderer:
    """Loads how the policies are spoken to, and no weights.

    Args:
        spec: The run's settings, resolved.
        loaded: A base model that is loaded already, instead of those that the settings name.

    Raises:
        ConfigError: A model that is not there, or cannot be spoken to.
    """
    settings, chats = model_settings(spec.config, spec.models), dict[str, Chat]()
    for model in (spec.models[policy] for policy in spec.local):
        if model not in chats:
            chats[model] = load_chat(model, settings) if loaded is None else loaded.chat
            _limit(chats[model], spec.config)
    return Renderer({policy: chats[spec.models[policy]] for policy in spec.local}, spec.agents, spec.trained)


def _limit(chat: Chat, config: TrainConfig) -> None:
    """Makes a context no longer than the settings say."""
    chat.context = min(chat.context, config.context or chat.context)


def take_values(spec: RunSpec, critics: Critics | None) -> None:
    """Lets a new run's value heads begin as those of its start, if that is wanted.

    Raises:
        ConfigError: There are none that fit.
    """
    config = spec.config
    if not config.start_values:
        return
    begun, heads, norms = start.loaded(config, spec.local), dict[str, Any](), [config.algorithm.value_norm]
    if begun:
        origin = start.locate(config.start)
        norms.append(origin.config.algorithm.value_norm)
        if (origin.weights / "state.pt").is_file():
            heads = checkpoint.load_values(origin.weights)
    heads = {name: tensor for name, tensor in heads.items() if name.split("/")[0] in begun}
    if critics is None or {name.split("/")[0] for name in heads} != set(begun) or not begun:
        raise ConfigError(
            f"There are no value heads to begin with: expected two algorithms with a critic, a run's checkpoint as the"
            f" start; this is {config.algo}, and start = '{config.start}'. Leave out --start-values."
        )
    if norms != [None, None]:
        raise ConfigError("Normalised value heads do not fit another run. Leave out --start-values, or --value-norm.")
    critics.load_state_dict(critics.state_dict() | heads)


def saved_policies(config: TrainConfig, policies: PolicySet) -> list[str]:
    """Returns the policies whose weights a checkpoint holds: all but those that are a bare base model."""
    return [p for p in policies.policies if policies.trainable(p) or not config.full_finetune]


def sampling(config: TrainConfig, *, evaluation: bool = False) -> SamplingParams:
    """Returns the parameters of sampling while training, or at evaluation."""
    return SamplingParams(config.max_new_tokens, config.temperature, greedy=evaluation and config.eval_greedy)


def slots(config: TrainConfig) -> int:
    """Returns how many episodes are in flight at most at an evaluation."""
    return config.num_envs or max(config.episodes_per_iteration, config.engine_batch)


def player(config: TrainConfig, make_env: EnvFactory, renderer: Renderer, engine: RolloutEngine) -> Player:
    """Makes what plays as a run's settings say for evaluations: greedily, unless they say otherwise."""
    return Player(make_env, renderer, engine, sampling(config, evaluation=True), config.seed, slots(config), config)
