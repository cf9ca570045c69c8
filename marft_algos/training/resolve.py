"""Resolves a run's settings for its team: who plays which policy, on which model, by which engine.

Settings are strings and tables; this is the one place that reads them. Everybody else is handed the :class:`RunSpec`.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.algorithms import base as algorithms
from marft_algos.algorithms import needs
from marft_algos.algorithms.base import Algorithm, Need
from marft_algos.algorithms.needs import RunFacts
from marft_algos.algorithms.settings import UpdateConfig
from marft_algos.config import presets
from marft_algos.config.endpoints import Endpoint, tinker
from marft_algos.config.settings import TrainConfig
from marft_algos.models.assignment import assign, base_specs, check_known, played, templates_by_model
from marft_algos.models.loading import locate
from marft_algos.models.saved import LoraSettings, check_adapter
from marft_algos.rollout import selfplay
from marft_algos.runs import start
from marft_algos.types import SamplingParams
from marft_envs import AgentSpec, FlexEnv
from marft_envs.errors import ConfigError, MarftError

NATIVE = Endpoint("native")
"""Where replies come from that no setting sends elsewhere: our own decode loop in this process."""
RISE = 6
"""Iterations over which the rate rises where weights were trained before. Of 12 toys that demonstrations had solved, 2
were undone at the full rate, for good, and none with a rise of 8 (docs/training.md); 6 is SmolLM2's, of whose three
runs one learnt half as much without."""


def settled(config: TrainConfig) -> TrainConfig:
    """Settles what follows from a run's start.

    The checkpoint is named by its absolute path, as its run may go on meanwhile. A rate that nobody has set rises where
    weights were trained before.
    """
    changes: dict[str, Any] = {"start": str(start.locate(config.start).weights)} if config.start else {}
    algorithm = config.algorithm
    if isinstance(algorithm, UpdateConfig) and algorithm.lr_warmup is None:
        trained = bool(config.start or config.adapters or config.warm_start) and not algorithm.offline
        changes["algorithm"] = dataclasses.replace(algorithm, lr_warmup=RISE if trained else 0)
    return config.changed(**changes)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Holds a run's settings, resolved for its team."""

    config: TrainConfig
    agents: Mapping[str, str]
    """Agent -> policy."""
    endpoints: Mapping[str, Endpoint]
    """Policy -> where its replies come from."""
    models: Mapping[str, str]
    """Policy with weights here, past states among them -> name of its base model."""
    past: Mapping[str, str]
    """Past state of a pool -> the policy that it is a state of."""
    facts: RunFacts
    """What the run offers to an algorithm."""

    @property
    def local(self) -> list[str]:
        """Returns the policies with weights here that agents play, in the order the agents name them."""
        return [policy for policy in self.endpoints if not self.endpoints[policy].hosted]

    @property
    def hosted(self) -> dict[str, str]:
        """Returns agent -> policy that a model elsewhere plays."""
        return {agent: policy for agent, policy in self.agents.items() if self.endpoints[policy].hosted}

    @property
    def remote(self) -> list[str]:
        """Returns the policies whose weights a Tinker server has and trains."""
        return [policy for policy in self.endpoints if self.endpoints[policy].kind == "tinker"]

    @property
    def trained(self) -> list[str]:
        """Returns the policies that are updated."""
        return [policy for policy in self.local if policy not in self.config.frozen]

    def here(self) -> RunSpec:
        """Returns the run without the policies whose weights are on a Tinker server: what takes memory here."""
        if not self.remote:
            return self
        endpoints = {policy: endpoint for policy, endpoint in self.endpoints.items() if policy not in self.remote}
        models = {policy: model for policy, model in self.models.items() if policy not in self.remote}
        agents = {agent: policy for agent, policy in self.agents.items() if policy in endpoints}
        return dataclasses.replace(self, endpoints=endpoints, models=models, agents=agents)

    @property
    def kept(self) -> list[str]:
        """Returns the trained policies that are compared with a start that is not their base model."""
        if not self.config.algorithm.needs_reference:
            return []
        loaded = [*start.loaded(self.config, self.local), *self.config.adapters]
        return [policy for policy in self.trained if policy in loaded]


def resolve(config: TrainConfig, env: FlexEnv, held_out: FlexEnv | None = None) -> RunSpec:
    """Reads the settings against the team of an environment.

    Args:
        config: The settings.
        env: An environment of the run, reset.
        held_out: One of its held-out problems. Further agents of its team play with policies of the run.

    Raises:
        ConfigError: An unknown policy or model is named, a hosted policy is given weights, or nobody is left to play
            here.
    """
    team = played(env)
    agents = assign(team, config.policies)
    config = _with_frozen(config, team, agents)
    named: dict[str, Endpoint] = config.engines
    known = list(dict.fromkeys(agents.values()))
    check_known(named, known, "engines")
    server, still = tinker(config.tinker) or NATIVE, config.frozen
    endpoints = {policy: named.get(policy, NATIVE if policy in still else server) for policy in known}
    check_known(config.frozen, known, "frozen")
    check_known(config.adapters, known, "adapters")
    _check_hosted(config, endpoints)
    local = [policy for policy in known if not endpoints[policy].hosted]
    past = selfplay.past(sorted(p for p in local if p not in config.frozen), config.pool)
    models = base_specs(config.models, local) if local else {}
    templates_by_model(config.chat_template, models)
    for policy, folder in config.adapters.items() if not config.full_finetune else ():
        base = models[policy]
        check_adapter(Path(folder), LoraSettings(config.lora_r, config.lora_alpha), base, locate(base))
    start.check(config, models, agents)
    models |= {name: models[policy] for name, policy in past.items()}
    facts = _facts(config, env, agents, endpoints)
    if held_out is not None and not past:
        others = [agent for agent in played(held_out) if agent.name not in agents]
        both = assign([*team, *others], config.policies)
        agents |= {name: policy for name, policy in both.items() if policy in known}
    return RunSpec(config, agents, endpoints, models, past, facts)


def _with_frozen(config: TrainConfig, team: Sequence[AgentSpec], agents: Mapping[str, str]) -> TrainConfig:
    """Returns the settings with the policies frozen of those who are never trained: judges, simulated users.

    Raises:
        ConfigError: One of them shares its policy with an agent that is trained.
    """
    still = {agents[agent.name] for agent in team if not agent.trained} - set(config.frozen)
    for agent in team:
        if agent.trained and agents[agent.name] in still:
            raise ConfigError(
                f"The policy '{agents[agent.name]}' is {agent.name}'s and that of an agent that is never trained. Give"
                f" the two different policies in --policies, or freeze it: --frozen {agents[agent.name]}"
            )
    return config.changed(frozen=(*config.frozen, *sorted(still))) if still else config


def _check_hosted(config: TrainConfig, endpoints: Mapping[str, Endpoint]) -> None:
    remote = {policy for policy, endpoint in endpoints.items() if endpoint.hosted}
    if remote >= set(endpoints) and algorithms.get(config.algo).trains:
        raise ConfigError("Every policy is hosted, so nothing is left to train. Take one out of 'engines'.")
    for setting in ("models", "adapters"):
        named = getattr(config, setting)
        for policy in remote & set(named if isinstance(named, Mapping) else ()):
            raise ConfigError(f"Policy '{policy}' is hosted and has no weights here. Take it out of '{setting}'.")


def _facts(config: TrainConfig, env: FlexEnv, agents: Mapping[str, str], endpoints: Mapping[str, Endpoint]) -> RunFacts:
    offers: set[Need] = {"groups", "critic", "team_state"}
    if not config.permute_rewards and _forks(env):  # branches would tell what the permutation hides
        offers.add("branches")
    if all(endpoint.kind == "native" or endpoint.hosted for endpoint in endpoints.values()):
        offers.add("start")
    if len(endpoints) == len(agents):
        offers |= {"unshared", "blocks"}
    offers.add("shared" if len(endpoints) == 1 else "blocks")
    team, several = env.unwrapped.team, env.unwrapped.repeats
    return RunFacts(frozenset(offers), config.episodes_per_iteration, team, config.staleness, several)


def _forks(env: FlexEnv) -> bool:
    """Returns whether the environment, with an episode running, can be copied."""
    try:
        env.fork()
    except (MarftError, TypeError, copy.Error):
        return False
    return True


def make_algorithm(spec: RunSpec, sampling: SamplingParams) -> Algorithm:
    """Makes the run's algorithm, once it is certain that it trains somebody of this team; no model is needed to tell.

    Raises:
        ConfigError: It cannot, or nobody would be trained.
    """
    algorithm = fitting_algorithm(spec, sampling)
    check_training(spec)
    return algorithm


def fitting_algorithm(spec: RunSpec, sampling: SamplingParams) -> Algorithm:
    """Makes the run's algorithm, once it is certain that the run offers what it needs, for every trained agent.

    Raises:
        ConfigError: Something is missing.
    """
    algorithm = algorithms.get(spec.config.algo)(spec.config.algorithm, sampling=sampling)
    needs.check(algorithm, spec.facts)
    return algorithm


def check_training(spec: RunSpec) -> None:
    """Refuses a run whose iterations would train nobody; without iterations it is an evaluation, and fine.

    Raises:
        ConfigError: Every policy is frozen or hosted, or has a learning rate of 0.
    """
    config, names = spec.config, sorted(spec.endpoints)
    if config.iterations == 0 or not algorithms.get(config.algo).trains:
        return
    lr = getattr(config.algorithm, "lr", 1.0)
    if isinstance(lr, Mapping):
        check_known(lr, names, "lr")
    still = {p for p in names if (lr.get(p, 1.0) if isinstance(lr, Mapping) else lr) == 0.0}
    if not set(spec.trained) - still:
        why = "frozen or hosted, or has lr = 0" if spec.trained else "frozen or hosted"
        raise ConfigError(
            f"Every policy ({', '.join(names)}) is {why}, so nothing would be trained. Leave one out of frozen and "
            "engines and give it a rate above 0, or only score the team: --iterations 0"
        )
    warmup = getattr(config.algorithm, "value_warmup", 0)
    if warmup >= config.iterations:
        warnings.warn(
            f"value_warmup is {warmup} and iterations {config.iterations}: only value heads are trained, no policy.",
            stacklevel=2,
        )
    algorithm = config.algorithm
    learns = isinstance(algorithm, UpdateConfig) and not algorithm.offline
    if learns and config.dtype == "bf16" and algorithm.old_logprobs == "sampler":
        warnings.warn(
            "dtype is bf16 and old_logprobs 'sampler': sampler and learner round differently, and a run stops at its "
            f"first update if they differ by more than ratio_tolerance = {algorithm.ratio_tolerance}. Type: "
            f"{presets.BF16_OPTIONS} (presets for bf16 have them, such as smollm2-bf16).",
            stacklevel=2,
        )
