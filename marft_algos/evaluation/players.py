"""Who plays in an evaluation: hosted models, models here, and adapters of runs, each for an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.config import endpoints
from marft_algos.config.evaluation import EvalConfig
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import RolloutEngine
from marft_algos.engines.ledger import Ledger, LedgerEngine, TimedEngine
from marft_algos.engines.mixed import MixedEngine
from marft_algos.engines.openai import OpenAIEngine
from marft_algos.evaluation import environments
from marft_algos.lazy import require_training
from marft_algos.models.assignment import assign, played, templates_by_model
from marft_algos.runs.folder import RunFolder
from marft_algos.types import GenerationRequest
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError, check_known

if TYPE_CHECKING:
    from marft_algos.models.policy import PolicySet

_WEIGHTS = ("lora_r", "lora_alpha", "lora_targets", "dtype")
_MODEL = ("quantize", "head_dtype", "thinking", "template_tools", "date")
SPOKEN = (*_WEIGHTS, *_MODEL, "show_budget", "max_new_tokens")
"""Settings of a run that its policies reply under."""


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays each agent of a team."""

    hosted: Mapping[str, endpoints.Endpoint]
    """Agent -> the endpoint that plays it."""
    models: Mapping[str, str]
    """Agent -> the model here that plays it."""
    adapters: Mapping[str, str]
    """Agent with a model here -> folder of the adapter on it."""
    spoken: Mapping[str, Any]
    """How models here are kept, run and spoken to: settings of a run, by name."""
    functions: Mapping[str, Callable[[Sequence[Mapping[str, str]]], str]] = field(default_factory=dict)
    """Agent -> the function from chat messages to a reply that plays it."""

    @classmethod
    def of(cls, config: EvalConfig, env: FlexEnv) -> Players:
        """Reads who plays each agent of an environment.

        Raises:
            ConfigError: Somebody is played by nobody, or a setting cannot be read.
        """
        names = [agent.name for agent in played(env)]
        who, adapters, spoken = _trained(_given(config.engines, names), env)
        given = {name: getattr(config, name) for name in ("max_new_tokens", "chat_template")}
        spoken |= {name: value for name, value in given.items() if value}
        functions = {agent: who.pop(agent) for agent in names if callable(who.get(agent))}
        return cls(*_read(config, who, [name for name in names if name not in functions]), adapters, spoken, functions)

    @property
    def max_new_tokens(self) -> int:
        """Returns the longest reply."""
        return int(self.spoken["max_new_tokens"])

    def table(self) -> dict[str, Any]:
        """Returns them as plain values."""
        engines = {agent: endpoint.table() for agent, endpoint in self.hosted.items()}
        engines |= {agent: {"function": environments.function_id(f)} for agent, f in self.functions.items()}
        return {"engines": engines, "models": dict(self.models), "adapters": dict(self.adapters), **self.spoken}

    def load(self, config: EvalConfig) -> PolicySet | None:
        """Checks that every endpoint has its key, and loads the models that play here; None: there are none.

        Raises:
            ConfigError: A key, model or adapter that is not there, or cannot work.
            MissingExtraError: A package for one of them is not installed.
        """
        for endpoint in dict.fromkeys(self.hosted.values()):
            OpenAIEngine(endpoint).close()
        if not self.models:
            return None
        require_training()
        import torch

        from marft_algos.models.loading import ModelSettings
        from marft_algos.models.policy import LoraSettings, PolicySet

        torch.set_num_threads(TrainConfig.threads)
        templates = templates_by_model(self.spoken["chat_template"], self.models)
        policies = PolicySet.build(
            self.models,
            {agent: agent for agent in self.models},
            lora=LoraSettings(*(self.spoken[name] for name in _WEIGHTS[:3])),
            dtype=self.spoken["dtype"],
            device=config.device or "auto",
            settings=ModelSettings(chat_template=templates, **{name: self.spoken[name] for name in _MODEL}),
            hosted={agent: agent for agent in (*self.hosted, *self.functions)},
            seed=config.seed,
        )
        for agent, folder in self.adapters.items():
            policies.load_adapter(agent, folder)
        return policies

    def engine(self, config: EvalConfig, policies: PolicySet | None, ledger: Ledger) -> RolloutEngine:
        """Makes what writes their replies; agents with equal endpoints share one.

        Args:
            config: Of the evaluation.
            policies: What ``load`` has returned.
            ledger: Keeps the replies of hosted models, and answers what was asked before.
        """
        engines: dict[str, RolloutEngine] = {}
        if policies is not None:
            from marft_algos.engines.native import NativeEngine

            native = TimedEngine(NativeEngine(policies, config.jobs))
            if not self.hosted and not self.functions:
                return native
            engines |= dict.fromkeys(self.models, native)
        if self.functions:
            from marft_algos.engines.scripted import ScriptedEngine

            engines |= {a: TimedEngine(ScriptedEngine({"*": _script(f)})) for a, f in self.functions.items()}
        made = {each: LedgerEngine(OpenAIEngine(each), each, ledger) for each in dict.fromkeys(self.hosted.values())}
        return MixedEngine(engines | {agent: made[endpoint] for agent, endpoint in self.hosted.items()})


def _script(function: Callable[[Sequence[Mapping[str, str]]], str]) -> Callable[[GenerationRequest], str]:
    def said(request: GenerationRequest) -> str:
        if not isinstance(text := function(request.messages), str):
            raise TypeError(f"the function that plays {request.agent} returned {text!r}, and text is expected")
        return text

    return said


def _given(given: Mapping[str, Any] | str, names: list[str]) -> dict[str, Any]:
    """Returns what was typed of who plays each agent.

    Raises:
        ConfigError: It names an agent that there is not, or cannot be read.
    """
    for text in (*given, *given.values()) if isinstance(given, Mapping) else (given,):
        if isinstance(text, str) and text.startswith("{"):  # a table that a shell took apart, or that is none
            raise ConfigError(
                f"--engines {text} … cannot be read as a table. Expected one in TOML or JSON, in quotes that keep the"
                """ shell from it: --engines '{kind = "openai", model = "…", url = "…"}'"""
            )
    who = dict(given) if isinstance(given, Mapping) and not {"kind", "model", "url"} & given.keys() else {}
    check_known(who, names, "--engines names an unknown agent '{}'.")
    return who or dict.fromkeys(names, given)


def _trained(who: Mapping[str, Any], env: FlexEnv) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Puts in the place of runs and exports here what plays an agent there: its endpoint, or model and adapter.

    Returns:
        Who plays each agent, the adapters, and how their runs' policies reply.

    Raises:
        ConfigError: A run holds no adapter of a policy, or two runs' policies reply differently.
    """
    replaced, adapters, spoken = dict(who), dict[str, str](), dict[str, Any]()
    templates: dict[str, str] = {}
    for agent, name in who.items():
        places = () if not isinstance(name, str) else (Path(name), Path("runs", name), Path(name, "team"))
        if not any((place / "config.toml").is_file() for place in places):
            continue
        from marft_algos.runs import paths

        run = RunFolder.find(name)
        config = paths.of_run(run)
        own = assign(played(env), config.policies)[agent]
        if own in config.engines and config.engines[own].hosted:
            replaced[agent] = config.engines[own].table()
            continue
        if config.full_finetune or run.profiles_file.is_file():
            what = "weights are whole models" if config.full_finetune else "best profiles are no weights"
            raise ConfigError(f"The {what} in '{name}', and --engines takes adapters. Type: marft eval {name}")
        require_training()
        from marft_algos.runs import checkpoint

        step = checkpoint.pick(run.checkpoints)
        checkpoint.check_policies(step, [own])
        adapters[agent] = str(step / "policies" / own)
        replaced[agent] = config.models if isinstance(config.models, str) else config.models[own]
        given = config.chat_template
        if template := given if isinstance(given, str) else given.get(own):
            templates[agent] = template
        now = {key: getattr(config, key) for key in SPOKEN}
        if odd := [key for key, value in now.items() if spoken.get(key, value) != value]:
            raise ConfigError(
                f"The runs of --engines differ in '{odd[0]}', and a team has one of it. Merge: marft export"
            )
        spoken |= now
    spoken = spoken or {key: getattr(TrainConfig, key) for key in SPOKEN}
    return replaced, adapters, spoken | {"chat_template": templates or ""}


def _read(
    config: EvalConfig, who: Mapping[str, Any], names: list[str]
) -> tuple[dict[str, endpoints.Endpoint], dict[str, str]]:
    """Reads the endpoints, and the models that play here.

    Raises:
        ConfigError: Somebody is played by nobody, or a setting cannot be read.
    """
    local = {agent: str(engine) for agent, engine in who.items() if isinstance(engine, str) and engine != "native"}
    named = config.models if isinstance(config.models, Mapping) else dict.fromkeys(names, config.models)
    check_known(named, names, "There is no agent '{}' to play a model.")
    remote = endpoints.parse_all({agent: engine for agent, engine in who.items() if agent not in local})
    hosted = {agent: endpoint for agent, endpoint in remote.items() if endpoint.hosted}
    models = {agent: model for agent, model in {**named, **local}.items() if model and agent not in hosted}
    for agent in names:
        if agent in remote and agent not in hosted and remote[agent].kind != "native":
            raise ConfigError(
                f"The server that plays {agent} gets weights from a training, and this is none. Play what the server"
                f' has: kind = "openai", with model and url; or play the model here: --engines {agent}=MODEL'
            )
        if agent not in models and agent not in hosted:
            raise ConfigError(
                f"Nobody plays {agent}. Expected --engines {agent}=MODEL (embedded, smollm2-135m, a folder, an id),"
                f' or --engines \'{agent}={{kind="openai", model="…", url="…"}}\'.'
            )
    price = endpoints.token_prices(config.price)
    for agent, endpoint in hosted.items():
        own = (endpoint.price_in, endpoint.price_out)
        price_in, price_out = own if price is None or any(own) else price
        hosted[agent] = replace(endpoint, concurrency=config.jobs, price_in=price_in, price_out=price_out)
    return hosted, models
