"""``marft eval --engines``: any team of hosted and local models, without a run."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft_algos.config import endpoints
from marft_algos.config.arguments import typed
from marft_algos.config.endpoints import Endpoint
from marft_algos.evaluation.options import ENGINES_ONLY, EvalArguments
from marft_algos.lazy import require_training
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.terminal import say
from marft_envs.core.types import AgentSpec
from marft_envs.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from marft_algos.config.settings import TrainConfig
    from marft_algos.evaluation.resumable import ResumableEvaluation
    from marft_envs import FlexEnv

_TAKEN = (*ENGINES_ONLY, "engines", "episodes", "env", "env_kwargs", "data", "models", "sampled", "out", "device")
_OF_RUN = (
    *("lora_r", "lora_alpha", "lora_targets", "dtype", "quantize", "head_dtype"),
    *("thinking", "template_tools", "date", "tell_budget", "max_new_tokens"),
)
"""Settings of a run that its policies reply under."""
_SAID = 10
"""Times that progress is said."""


def run(options: EvalArguments, argv: list[str]) -> int:
    """Plays the team, or what is left to play, and says what it reached and cost."""
    _check(options)
    require_training()
    import torch

    from marft_algos.engines.ledger import Ledger
    from marft_algos.evaluation import resumable
    from marft_algos.models.chat import Renderer
    from marft_algos.runs import disk
    from marft_algos.training import hosting, setup
    from marft_algos.training.resolve import resolve
    from marft_algos.training.session import too_long
    from marft_envs.problems.rows import digest

    config, env = settings(options)
    torch.set_num_threads(config.threads)
    spec = resolve(config, env, training=False)
    folder = Path(
        options.out or f"evals/{config.env.replace('/', '-').replace(':', '-')}-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    make_env = setup.env_factory(config, setup.eval_kwargs(config))
    problems = _problems(config, held_out := setup.started(config.env, make_env))
    known = env.unwrapped.team, digest(held_out.unwrapped.task)
    evaluation = resumable.ResumableEvaluation(config, problems, options.samples, folder, *known)
    hosting.reach(spec)
    policies = setup.make_policies(spec) if spec.models else None
    renderer = Renderer({}, spec.agents) if policies is None else policies.renderer
    setup.check_prompts(config, env, renderer, problems)
    evaluation.open()
    command = typed("eval", *argv, *([] if options.out else ["--out", folder]))
    _announce(evaluation)
    with disk.held(folder, command), closing(Ledger(evaluation.replies_file)) as ledger:
        engine = hosting.make_engine(spec, policies, local=True, ledger=ledger)
        try:
            with closing(engine):
                played = resumable.play(evaluation, make_env, renderer, engine, _Progress())
        except KeyboardInterrupt:
            say(f"stopped; what has ended is kept. Go on: {command}")
            return 130
        if words := too_long(played, set()):
            say(words, error=True)
        _say(evaluation, resumable.results(evaluation, played, ledger))
    return 0


def _check(options: EvalArguments) -> None:
    """Refuses options that say something about a run."""
    if odd := sorted(options.given() - set(_TAKEN)):
        named = "a run" if "run" in odd else f"--{odd[0]}"
        raise ConfigError(
            f"--engines plays a team without a run, and {named} belongs to one. Leave out one of the two; merged"
            " weights of an export are played by the name of their folder."
        )
    if not options.env:
        raise ConfigError("Which environment? marft eval --env ID --engines …. All of them: marft envs")
    if options.out.endswith(".jsonl"):
        raise ConfigError(f"--out {options.out}: with --engines it names a folder. Type: --out evals/NAME")


def settings(options: EvalArguments) -> tuple[TrainConfig, FlexEnv]:
    """Returns the evaluation's settings, and an environment that has been started."""
    from marft_algos.config import settings as configs
    from marft_algos.models.assignment import assign, played
    from marft_algos.training import setup

    kwargs = {"data": options.data} if options.data else {}
    kwargs |= {key: inner for key, inner in options.env_kwargs.items() if inner is not None}
    split = {"split": kwargs["split"]} if "split" in kwargs else {}  # demonstrations are made of training problems
    table: dict[str, Any] = {"env": options.env, "env_kwargs": kwargs, "eval_kwargs": split, "seed": options.seed}
    table |= {"iterations": 0, "num_envs": options.jobs, "engine_batch": max(options.jobs, 1)}
    named = {"device": options.device, "eval_episodes": options.episodes, "max_new_tokens": options.max_new_tokens}
    table |= {key: value for key, value in named.items() if value}
    sampled = options.sampled or options.samples > 1 or options.temperature is not None
    table |= {"eval_greedy": not sampled, "temperature": options.temperature or 1.0}
    config = configs.build(table)
    env = setup.make_env(config, setup.eval_kwargs(config))
    team = played(env)
    names = list(dict.fromkeys(assign(team, config.policies).values()))
    who, trained = _trained(_given(options, names), team)
    remote, models = _who(options, who, names)
    if options.max_new_tokens:
        trained.pop("max_new_tokens", None)
    return dataclasses.replace(config, engines=remote, models=models, **trained), env


def _given(options: EvalArguments, names: list[str]) -> dict[str, Any]:
    """Returns what was typed of who plays each policy.

    Raises:
        ConfigError: It names a policy that there is not, or cannot be read.
    """
    given = options.engines
    _check_written(given)
    who = dict(given) if isinstance(given, Mapping) and not {"kind", "model", "url"} & given.keys() else {}
    if unknown := [policy for policy in who if policy not in names]:
        raise ConfigError(f"--engines names an unknown agent '{unknown[0]}'. {did_you_mean(unknown[0], names)}")
    return who or dict.fromkeys(names, given)


def _trained(who: Mapping[str, Any], team: Sequence[AgentSpec]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Puts in the place of runs and exports here what plays a policy there: its endpoint, or model and adapter.

    Returns:
        Who plays each policy, and settings: the adapters, and how their runs' policies reply.

    Raises:
        ConfigError: A run holds no adapter of a policy, or two runs' policies reply differently.
    """
    from marft_algos.models.assignment import assign
    from marft_algos.runs import checkpoint

    played, adapters, replies = dict(who), dict[str, str](), dict[str, Any]()
    for policy, name in who.items():
        places = () if not isinstance(name, str) else (Path(name), Path("runs", name), Path(name, "team"))
        if not any((place / "config.toml").is_file() for place in places):
            continue
        run = RunFolder.team(name)
        config = paths.of_run(run)
        own = assign(team, config.policies)[policy]
        if own in config.engines and config.engines[own].hosted:
            played[policy] = config.engines[own].table()
            continue
        if config.full_finetune or run.profiles_file.is_file():
            what = "weights are whole models" if config.full_finetune else "best profiles are no weights"
            raise ConfigError(f"The {what} in '{name}', and --engines takes adapters. Type: marft eval {name}")
        step = checkpoint.pick(run.checkpoints)
        checkpoint.check_policies(step, [own])
        adapters[policy] = str(step / "policies" / own)
        played[policy] = config.models if isinstance(config.models, str) else config.models[own]
        shape = {key: getattr(config, key) for key in _OF_RUN}
        if odd := [key for key, value in shape.items() if replies.get(key, value) != value]:
            raise ConfigError(
                f"The runs of --engines differ in '{odd[0]}', and a team has one of it. Merge: marft export"
            )
        replies |= shape
    return played, {"adapters": adapters, **replies}


def _who(
    options: EvalArguments, who: Mapping[str, Any], names: list[str]
) -> tuple[dict[str, Endpoint], dict[str, str]]:
    """Reads who plays each policy: where its replies come from, and its model if it has weights here.

    Raises:
        ConfigError: Somebody is played by nobody, or a setting cannot be read.
    """
    local = {p: str(engine) for p, engine in who.items() if isinstance(engine, str) and engine != "native"}
    named = options.models if isinstance(options.models, Mapping) else dict.fromkeys(names, options.models)
    remote = endpoints.parse_all({policy: engine for policy, engine in who.items() if policy not in local})
    hosted = {policy for policy, endpoint in remote.items() if endpoint.hosted}
    models = {p: model for p, model in {**named, **local}.items() if model and p not in hosted}
    for policy in names:
        if policy not in models and policy in remote and remote[policy].kind == "vllm":
            raise ConfigError(
                f"The server that plays {policy} gets weights from here. Name its model, too: --models {policy}=MODEL;"
                ' or play what the server has: kind = "openai", with model and url.'
            )
        if policy not in models and policy not in hosted:
            raise ConfigError(
                f"Nobody plays {policy}. Expected --engines {policy}=MODEL (embedded, smollm2-135m, a folder, an id),"
                f' or --engines \'{policy}={{kind="openai", model="…", url="…"}}\'.'
            )
    price = endpoints.prices(options.price)
    for policy, endpoint in remote.items():
        own = (endpoint.price_in, endpoint.price_out)
        price_in, price_out = own if price is None or any(own) else price
        remote[policy] = dataclasses.replace(endpoint, concurrency=options.jobs, price_in=price_in, price_out=price_out)
    return remote, models


def _check_written(given: Mapping[str, Any] | str) -> None:
    """Refuses a table that a shell took apart, or that is no table: it would be taken for the name of a model."""
    for text in (*given, *given.values()) if isinstance(given, Mapping) else (given,):
        if isinstance(text, str) and text.startswith("{"):
            raise ConfigError(
                f"--engines {text} … cannot be read as a table. Expected one in TOML or JSON, in quotes that keep the"
                """ shell from it: --engines '{kind = "openai", model = "…", url = "…"}'"""
            )


def _problems(config: TrainConfig, env: FlexEnv) -> Any:
    """Returns the problems: ids where the task lists some, else draws that are the same every time."""
    from marft_algos.training import setup
    from marft_envs.core.types import optional

    listing = optional(env.unwrapped.task, "eval_panel")
    ids = None if listing is None else listing(config.eval_episodes)
    return setup.eval_panel(config.eval_episodes if ids is None else len(ids), ids)


def _announce(evaluation: ResumableEvaluation) -> None:
    config, done = evaluation.config, len(evaluation.finished())
    way = "greedy" if config.eval_greedy else f"sampled at temperature {config.temperature:g}"
    say(f"{config.env}, {len(evaluation.problems)} problems, {evaluation.samples} samples each, {way}")
    say(f"folder:  {evaluation.root}" + (f" ({done} episodes have ended before)" if done else ""))


class _Progress:
    """Says how far it is, a few times."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, ended: int, total: int, lost: int) -> None:
        if ended * _SAID // total > self._said:
            self._said = ended * _SAID // total
            say(f"  {ended}/{total} episodes, infra {lost}", error=True)


def _say(evaluation: ResumableEvaluation, content: Mapping[str, Any]) -> None:
    average = Interval(**content["average"] | {"infra": content["infra"]})
    say(f"{f'avg@{evaluation.samples}':<10} {average}")
    for k, interval in content["pass"].items():
        say(f"{f'pass@{k}':<10} {Interval(**interval)}")
    for k, interval in list(content["pass_hat"].items())[1:]:  # the first is pass@1
        say(f"{f'pass^{k}':<10} {Interval(**interval)}")
    for policy, used in content["usage"].items():
        tokens = f"{used['tokens_in']:,} + {used['tokens_out']:,} tokens"
        odd = f"{used['failed']} failed, {used['empty']} without text"
        odd += f" of which {used['refused']} refused" if used["refused"] else ""
        said = f"{used['requests']} requests ({odd}), {tokens}"
        said += "".join(f", {seconds:.2f} s ({p})" for p, seconds in used["seconds"].items())
        say(f"{policy:<10} {said}" + (f", cost {used['cost']:.4f}" if used["cost"] else ""))
    if content["cost"]:
        say(f"{'cost':<10} {content['cost']:.4f}")
    say(f"results:   {shlex.quote(str(evaluation.results_file))}")
