"""Builds a run's environment, its problems and its policies from its settings."""

from __future__ import annotations

import json
import shlex
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import marft_envs
from marft_algos import seeds
from marft_algos.algorithms import base as algorithms
from marft_algos.config.presets import accepts
from marft_algos.config.settings import TrainConfig
from marft_algos.lazy import extra
from marft_algos.models.chat import Chat, Renderer
from marft_algos.models.critic import Critics
from marft_algos.models.loading import BaseModel, ModelSettings, load_chat
from marft_algos.models.policy import LoraSettings, PolicySet
from marft_algos.ranks.group import RankGroup
from marft_algos.rollout.curriculum import Curriculum
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.panel import OutageError, Panel, ProblemSplit, TaskError
from marft_algos.rollout.preferences import Preferences
from marft_algos.runs import checkpoint, start
from marft_algos.training.resolve import RunSpec
from marft_algos.types import SamplingParams
from marft_envs import FlexEnv
from marft_envs.core.faults import outage
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError, MarftError, WorkerError

EnvFactory = Callable[[], FlexEnv]
PROMPTS_CHECKED = 64
STARTS_CHECKED = 4
"""The same where a program starts for each of them."""
HELD_OUT_SHARE = 4
"""At most one in so many problems is held out of a data set that is used for both training and evaluation."""


def env_factory(config: TrainConfig, kwargs: Mapping[str, Any]) -> EnvFactory:
    """Makes the run's environments, with these arguments."""
    told = {"reply_tokens": config.max_new_tokens} if config.tell_budget else {}
    return partial(marft_envs.make, config.env, **(told | dict(kwargs)))


def make_env(config: TrainConfig, kwargs: Mapping[str, Any]) -> FlexEnv:
    """Builds one environment of the run and starts an episode; see ``started``."""
    return started(config.env, env_factory(config, kwargs))


def started(env_id: str, make: EnvFactory) -> FlexEnv:
    """Builds one environment and starts an episode, so that a bad team, D or data set shows itself.

    Args:
        env_id: For messages.
        make: Makes it.

    Raises:
        OutageError: What the environment needs cannot be had.
        TaskError: Its code raised, and nobody had said anything yet.
    """
    with _starting(env_id):
        env = make()
        env.reset(seed=0)
    return env


@contextmanager
def _starting(env_id: str) -> Iterator[None]:
    """Wraps the start of episodes, where no text of an agent can be to blame for an error."""
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
            raise OutageError(
                f"No episode of '{env_id}' can be started: {what}. Once all that it needs is there (a server, a "
                f"sandbox), try it alone: {shlex.join(['marft', 'play', env_id, '--random'])}"
            ) from error
        raise TaskError(
            f"The code of '{env_id}' raised before anybody had said anything: {what}. Expected an episode to start. "
            f"Mend it, and try it alone: {shlex.join(['marft', 'check', env_id])}"
        ) from error


def eval_kwargs(config: TrainConfig) -> dict[str, Any]:
    """Returns the environment's arguments at evaluation: the test split if there is one, then ``eval_kwargs``."""
    kwargs = dict(config.env_kwargs)
    if accepts(config.env, "split"):
        kwargs["split"] = "test"
    return kwargs | config.eval_kwargs


def problems(config: TrainConfig, env: FlexEnv, eval_env: FlexEnv) -> ProblemSplit:
    """Decides the held-out panel.

    A finite task with splits gives ids without replacement; if they are also training problems (one file for both),
    a part is held out and training draws from the rest. Other tasks are evaluated on seeds of their own.

    Raises:
        ConfigError: Nothing would be left to train on.
    """
    listing = optional(eval_env.unwrapped.task, "eval_panel")
    if listing is None:
        return ProblemSplit(eval_panel(config.eval_episodes, None), None)
    ids = listing(config.eval_episodes)
    training = env.unwrapped.task.eval_panel(None)
    if set(training).isdisjoint(ids):
        imitates = algorithms.get(config.algo).imitates  # nobody else reads it, and long lists take a moment
        reserved = frozenset(listing(None)) - set(training) if imitates else frozenset()
        return ProblemSplit(eval_panel(len(ids), ids), None, apart=True, reserved=reserved)
    if not accepts(config.env, "split"):
        return ProblemSplit(eval_panel(len(ids), ids), None)
    ids = listing(min(config.eval_episodes, max(len(training) // HELD_OUT_SHARE, 1)))
    remaining = tuple(sorted(set(training) - set(ids)))
    if not remaining:
        raise ConfigError(
            f"All {len(set(training))} training problems are in the evaluation's panel: nothing is left to train on. "
            "Name other problems for evaluation: --eval-kwargs data=PATH"
        )
    return ProblemSplit(eval_panel(len(ids), ids), remaining, apart=True, reserved=frozenset(ids))


def curriculum(config: TrainConfig, make_env: EnvFactory, env: FlexEnv, problems: ProblemSplit) -> Curriculum | None:
    """Returns what draws training starts by how learnable they are, if the settings say so.

    Raises:
        ConfigError: Nobody plays them, or the task does not say which starts are alike.
    """
    if config.curriculum == "uniform":
        return None
    if algorithms.get(config.algo).imitates:
        raise ConfigError(
            f"{config.algo} learns from demonstrations, of which none fails. Leave out --curriculum learnability."
        )
    kind_of = optional(env.unwrapped.task, "kind_of")
    if kind_of is None:
        raise ConfigError(
            f"The task of {config.env} does not say which of its starts are alike, so none has a success rate. Leave "
            "out --curriculum learnability, or give the task a method kind_of(task_id), see docs/custom-tasks.md."
        )
    return Curriculum(problems, make_env, kind_of)


def eval_panel(n: int, ids: Sequence[str] | None) -> Panel:
    """Returns the same n episodes for every run: task ids where there are some, fixed seeds in any case."""
    drawn = [int(s) for s in seeds.generator(seeds.held_out()).integers(2**31, size=n)]
    return Panel(drawn, [{} for _ in drawn] if ids is None else [{"task_id": i} for i in ids])


def model_settings(config: TrainConfig) -> ModelSettings:
    """Returns how base models are stored, run and prompted."""
    names = ("quantize", "gradient_checkpointing", "thinking", "template_tools", "date", "head_dtype")
    return ModelSettings(**{name: getattr(config, name) for name in names})


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
        settings=model_settings(config),
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
    settings, chats = model_settings(spec.config), dict[str, Chat]()
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


def demonstrations(
    config: TrainConfig, make_env: EnvFactory, renderer: Renderer, problems: ProblemSplit
) -> Demonstrations | None:
    """Opens the demonstrations that an algorithm imitates, if it imitates any.

    Raises:
        ConfigError: There are none.
    """
    if not algorithms.get(config.algo).imitates:
        return None
    kind = Preferences if algorithms.get(config.algo).prefers else Demonstrations
    source = config.algorithm.demonstrations
    return kind(source, make_env, renderer, config.max_new_tokens, config.seed, problems.reserved)


def check_spoken(
    config: TrainConfig, env: FlexEnv, eval_env: FlexEnv, renderer: Renderer, problems: ProblemSplit
) -> None:
    """Checks how the policies are spoken to, before their weights are loaded: room for prompts, and form of calls.

    Raises:
        ConfigError: As ``check_prompts`` and ``check_dialects``, or held-out problems have agents that nobody plays.
    """
    if unknown := [agent for agent in eval_env.possible_agents if not renderer.plays(agent)]:
        raise ConfigError(
            f"Held-out problems have agents that no policy of the run plays: {', '.join(unknown)}. Expected a policy"
            " that agents of training share: --policies shared, or ROLE=POLICY; or change --eval-kwargs."
        )
    check_prompts(config, env, renderer, problems.train(config.seed, 0, PROMPTS_CHECKED))
    check_dialects(env, renderer)
    check_dialects(eval_env, renderer, "--eval-kwargs")


def sampling(config: TrainConfig, *, evaluation: bool = False) -> SamplingParams:
    """Returns the parameters of sampling while training, or at evaluation."""
    return SamplingParams(config.max_new_tokens, config.temperature, greedy=evaluation and config.eval_greedy)


def check_prompts(config: TrainConfig, env: FlexEnv, renderer: Renderer, panel: Panel) -> None:
    """Checks that agents' views of these problems fit their models' contexts, replies of others not counted.

    Wherever a long problem stands, its text is cut when it is played (``Collector``), and it is named then.

    Raises:
        ConfigError: Most of the first problems do not fit, so the context is too short for the task.
        OutageError: As ``started``.
        TaskError: As ``started``.
    """
    long: dict[int, tuple[str, str, int]] = {}
    most = STARTS_CHECKED if optional(env.unwrapped.task, "starts_slowly") else PROMPTS_CHECKED
    checked = list(zip(panel.seeds[:most], panel.options, strict=False))
    for number, (seed, options) in enumerate(checked, 1):
        with _starting(config.env):
            env.reset(seed=seed, options=options)
            views = {agent: env.unwrapped.messages(agent) for agent in renderer.agents if agent in env.possible_agents}
        for agent, messages in views.items():
            policy, tools = renderer.policy_of(agent), env.unwrapped.tools.get(agent, ())
            length = len(renderer.render(policy, messages, tools))
            if length + config.max_new_tokens > renderer.chat(policy).context:
                long[number] = env.unwrapped.task.task_id or f"number {number}", policy, length
    if 2 * len(long) > len(checked):
        problem, policy, length = next(iter(long.values()))
        chat = renderer.chat(policy)
        raise ConfigError(
            f"The prompts of {len(long)} of the first {len(checked)} problems do not fit: that of {problem} for policy"
            f" '{policy}' has {length} tokens and its reply may have {config.max_new_tokens}, but '{chat.spec}' has a"
            f" context of {chat.context}. Lower --max-new-tokens, shorten the profiles (or show fewer examples in"
            " them), cut long inputs with the environment's max_chars, or choose a model with a longer context."
        )


def check_dialects(env: FlexEnv, renderer: Renderer, option: str = "--env-kwargs") -> None:
    """Checks that calls are read in the form in which each agent's chat template writes them, where it shows tools.

    Args:
        env: What is played.
        renderer: Who plays which policy.
        option: What sets this environment's arguments.

    Raises:
        ConfigError: They are not: the agent's calls would be malformed.
    """
    speech = getattr(env.unwrapped.task, "speech", None)
    if speech is None:
        return
    agents = [agent for agent in renderer.agents if agent in env.possible_agents]
    chats = {agent: renderer.chat(renderer.policy_of(agent)) for agent in agents}
    written = {agent: chat.dialect.name for agent, chat in chats.items() if chat.dialect is not None}
    for agent, name in written.items():
        if speech.dialects[agent] not in (name, "any"):
            wanted = {each: written.get(each, read) for each, read in speech.dialects.items()}
            alike = len(set(wanted.values())) == 1
            typed = shlex.join([option, f"dialect={name if alike else json.dumps(wanted)}"])
            raise ConfigError(
                f"The chat template of '{agent}' writes calls as '{name}', and the environment reads"
                f" '{speech.dialects[agent]}'. Add {typed} (or dialect=any)."
            )


def saved_policies(config: TrainConfig, policies: PolicySet) -> list[str]:
    """Returns the policies whose weights a checkpoint holds: all but those that are a bare base model."""
    return [p for p in policies.policies if policies.trainable(p) or not config.full_finetune]
