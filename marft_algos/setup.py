"""From settings to the things of a run: the environment, the problems of each phase, the policies."""

from __future__ import annotations

import copy
import shlex
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import marft_envs
from marft_algos import algorithm as algorithms
from marft_algos import faults, hosting, seeds, selfplay
from marft_algos.algorithm import Algorithm, Facts, Need
from marft_algos.config import TrainConfig
from marft_algos.endpoints import parse_all
from marft_algos.modeling import ModelSettings
from marft_algos.policy import LoraSettings, PolicySet, assign
from marft_algos.presets import accepts
from marft_algos.types import SamplingParams
from marft_envs import FlexEnv
from marft_envs.errors import ConfigError, MarftError, WorkerError
from marft_envs.faults import outage

PROMPTS_CHECKED = 64
HELD_OUT_SHARE = 4
"""At most one in so many problems is held out of a data set that is used for both training and evaluation."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Episodes to play: one seed each, and the options of ``reset``."""

    seeds: list[int]
    options: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.seeds)

    def repeated(self, times: int) -> Panel:
        """Each episode so many times in a row: the groups of one start."""
        each = [i for i in range(len(self)) for _ in range(times)]
        return Panel([self.seeds[i] for i in each], [self.options[i] for i in each])


@dataclass(frozen=True, slots=True)
class Problems:
    """Where a run's problems come from: a held-out panel, and what is left to train on."""

    held_out: Panel
    remaining: tuple[str, ...] | None
    """Task ids to train on when training and evaluation share one data set; None: the environment draws."""
    apart: bool = False
    """Whether nothing in the panel is trained on; without a split, or lists of ids to tell, an environment is evaluated
    on draws of what it trains on."""

    def train(self, seed: int, iteration: int, n: int, refill: int = 0) -> Panel:
        """The panel of one training iteration; ``refill``: a further one, of fresh starts."""
        rng = seeds.generator(seeds.training_problems(seed, iteration, refill))
        drawn = [int(s) for s in rng.integers(2**31, size=n)]
        if self.remaining is None:
            return Panel(drawn, [{} for _ in drawn])
        return Panel(drawn, [{"task_id": self.remaining[i]} for i in rng.integers(len(self.remaining), size=n)])


def make_env(config: TrainConfig, kwargs: Mapping[str, Any]) -> FlexEnv:
    """Builds one environment of the run and starts an episode, so that a bad team, D or data set shows itself.

    Raises:
        OutageError: What the environment needs cannot be had.
        TaskError: Its code raised, and nobody had said anything yet.
    """
    with _starting(config.env):
        env = marft_envs.make(config.env, **kwargs)
        env.reset(seed=0)
    return env


@contextmanager
def _starting(env_id: str) -> Iterator[None]:
    """While inside, episodes start, and no text of an agent can be to blame for what goes wrong."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MarftError) and not isinstance(error, WorkerError):
            raise
        what = str(error).rstrip(".")
        if not isinstance(error, MarftError):
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {what} ({frame.filename}, line {frame.lineno})"
        if outage(error):
            raise faults.OutageError(
                f"No episode of '{env_id}' can be started: {what}. Once all that it needs is there (a server, a "
                f"sandbox), try it alone: {shlex.join(['marft', 'play', env_id, '--random'])}"
            ) from error
        raise faults.TaskError(
            f"The code of '{env_id}' raised before anybody had said anything: {what}. Expected an episode to start. "
            f"Mend it, and try it alone: {shlex.join(['marft', 'check', env_id])}"
        ) from error


def eval_kwargs(config: TrainConfig) -> dict[str, Any]:
    """Environment arguments at evaluation: the test split where there is one, then ``eval_kwargs``."""
    kwargs = dict(config.env_kwargs)
    if accepts(config.env, "split"):
        kwargs["split"] = "test"
    return kwargs | config.eval_kwargs


def problems(config: TrainConfig, env: FlexEnv, eval_env: FlexEnv) -> Problems:
    """Decides the held-out panel.

    A finite task with splits gives ids without replacement; if they are also training problems (one file for both),
    a part is held out and training draws from the rest. Other tasks are evaluated on seeds of their own.

    Raises:
        ConfigError: Nothing would be left to train on.
    """
    listing = getattr(eval_env.unwrapped.task, "eval_panel", None)
    if listing is None:
        return Problems(eval_panel(config.eval_episodes, None), None)
    ids = listing(config.eval_episodes)
    training = env.unwrapped.task.eval_panel(None)
    if set(training).isdisjoint(ids):
        return Problems(eval_panel(len(ids), ids), None, apart=True)
    if not accepts(config.env, "split"):
        return Problems(eval_panel(len(ids), ids), None)
    ids = listing(min(config.eval_episodes, max(len(training) // HELD_OUT_SHARE, 1)))
    remaining = tuple(sorted(set(training) - set(ids)))
    if not remaining:
        raise ConfigError(
            f"All {len(set(training))} training problems are in the evaluation's panel: nothing is left to train on. "
            "Name other problems for evaluation: --eval-kwargs data=PATH"
        )
    return Problems(eval_panel(len(ids), ids), remaining, apart=True)


def eval_panel(n: int, ids: Sequence[str] | None) -> Panel:
    """The same n episodes for every run: task ids where there are some, fixed seeds in any case."""
    drawn = [int(s) for s in seeds.generator(seeds.held_out()).integers(2**31, size=n)]
    return Panel(drawn, [{} for _ in drawn] if ids is None else [{"task_id": i} for i in ids])


def make_policies(config: TrainConfig, env: FlexEnv) -> PolicySet:
    """Loads the models and puts the adapters on.

    Raises:
        ConfigError: A model, policy or adapter that cannot work.
    """
    agents = assign(env.unwrapped.team, config.policies)
    hosting.check(config, agents)
    away = hosting.hosted(config)
    trained = sorted({p for p in agents.values() if p not in away and p not in config.frozen})
    past = selfplay.past(trained, config.pool)
    models = config.models
    if past and not isinstance(models, str):
        models = models | {copy: models[policy] for copy, policy in past.items() if policy in models}
    policies = hosting.Team.build(
        models,
        {agent: policy for agent, policy in agents.items() if policy not in away},
        lora=LoraSettings(config.lora_r, config.lora_alpha, config.lora_targets),
        dtype=config.dtype,
        device=config.device,
        full_finetune=config.full_finetune,
        settings=ModelSettings(config.quantize, config.gradient_checkpointing, config.thinking, config.template_tools),
        frozen=[*(policy for policy in config.frozen if policy not in away), *past],
        spare=list(past),
        seed=config.seed,
    )
    assert isinstance(policies, hosting.Team)
    policies.host({agent: policy for agent, policy in agents.items() if policy in away})
    for policy, folder in config.adapters.items():
        policies.load_adapter(policy, folder)
    if config.context is not None:
        for policy in policies.policies:
            base = policies.base(policy)
            base.context = min(base.context, config.context)
    return policies


def facts(config: TrainConfig, env: FlexEnv) -> Facts:
    """What a run with these settings offers to an algorithm, told without a model."""
    policies = assign(env.unwrapped.team, config.policies)
    offers: set[Need] = {"groups", "critic", "team_state"}
    if not config.permute_rewards and _forks(env):  # branches would tell what the permutation hides
        offers.add("branches")
    if not any(endpoint.kind != "native" and not endpoint.hosted for endpoint in parse_all(config.engines).values()):
        offers.add("start")
    distinct = len(set(policies.values()))
    if distinct == len(policies):
        offers |= {"unshared", "blocks"}
    offers.add("shared" if distinct == 1 else "blocks")
    if env.unwrapped.dependency.is_static:
        offers.add("static")
    return Facts(frozenset(offers), config.episodes_per_iteration, env.unwrapped.team)


def sampling(config: TrainConfig, *, evaluation: bool = False) -> SamplingParams:
    """How replies are drawn while training, or at evaluation."""
    return SamplingParams(config.max_new_tokens, config.temperature, greedy=evaluation and config.eval_greedy)


def make_algorithm(config: TrainConfig, env: FlexEnv) -> Algorithm:
    """The run's algorithm, once it is certain that it can train this team; no model is needed to tell.

    Raises:
        ConfigError: It cannot, or nobody would be trained.
    """
    algorithm = algorithms.get(config.algo)(config.algorithm, sampling=sampling(config))
    algorithms.check(algorithm, facts(config, env))
    check_training(config, env)
    return algorithm


def check_training(config: TrainConfig, env: FlexEnv) -> None:
    """Refuses a run whose iterations would train nobody; without iterations it is an evaluation, and fine.

    Raises:
        ConfigError: Every policy is frozen or hosted, or has a learning rate of 0.
    """
    if config.iterations == 0:
        return
    names = sorted(set(assign(env.unwrapped.team, config.policies).values()))
    lr = getattr(config.algorithm, "lr", 1.0)
    still = {p for p in names if (lr.get(p, 1.0) if isinstance(lr, Mapping) else lr) == 0.0}
    away = hosting.hosted(config) | set(config.frozen)
    if away | still >= set(names):
        why = "frozen or hosted" if away >= set(names) else "frozen or hosted, or has lr = 0"
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


def _forks(env: FlexEnv) -> bool:
    """Whether the environment, with an episode running, can be copied."""
    try:
        env.fork()
    except (MarftError, TypeError, copy.Error):
        return False
    return True


def check_prompts(config: TrainConfig, env: FlexEnv, policies: PolicySet, panel: Panel) -> None:
    """Checks that every agent's view of these problems fits its model's context, replies of others not counted.

    Raises:
        ConfigError: One does not. (What still turns out too long later ends its episode with an error.)
        OutageError: As ``make_env``.
        TaskError: As ``make_env``.
    """
    for seed, options in zip(panel.seeds[:PROMPTS_CHECKED], panel.options, strict=False):
        with _starting(config.env):
            env.reset(seed=seed, options=options)
            told = {agent: env.unwrapped.messages(agent) for agent in policies.agents}
        for agent, messages in told.items():
            policy, tools = policies.policy_of(agent), env.unwrapped.tools.get(agent, ())
            policies.check_context(policy, messages, config.max_new_tokens, tools)


def saved_policies(config: TrainConfig, policies: PolicySet) -> list[str]:
    """Policies whose weights a checkpoint holds: all but those that are a bare base model."""
    return [p for p in policies.policies if policies.trainable(p) or not config.full_finetune]
