"""Environments of a run, its problems and what is learnt from beside them, from its settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from marft_algos.algorithms import base as algorithms
from marft_algos.config.presets import accepts
from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation import environments
from marft_algos.evaluation.environments import EnvFactory, check_prompts, evaluation_set, started
from marft_algos.models.chat import Renderer
from marft_algos.rollout.curriculum import Curriculum
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.episodes import ProblemSplit
from marft_algos.rollout.preferences import Preferences
from marft_envs import FlexEnv
from marft_envs.core.types import optional
from marft_envs.errors import ConfigError

HELD_OUT_SHARE = 4
"""At most one in so many problems is held out of a data set that is used for both training and evaluation."""


def env_factory(config: TrainConfig, kwargs: Mapping[str, Any]) -> EnvFactory:
    """Makes the run's environments, with these arguments."""
    return environments.env_factory(config.env, kwargs, config.max_new_tokens if config.show_budget else None)


def make_env(config: TrainConfig, kwargs: Mapping[str, Any]) -> FlexEnv:
    """Builds one environment of the run and starts an episode; see ``started``."""
    return started(config.env, env_factory(config, kwargs))


def eval_kwargs(config: TrainConfig) -> dict[str, Any]:
    """Returns the environment's arguments at evaluation: the test split if there is one, then ``eval_kwargs``."""
    return environments.held_out_kwargs(config.env, config.env_kwargs, config.eval_kwargs)


def problems(config: TrainConfig, env: FlexEnv, eval_env: FlexEnv) -> ProblemSplit:
    """Decides the held-out evaluation set.

    A finite task with splits gives ids without replacement; if they are also training problems (one file for both),
    a part is held out and training draws from the rest. Other tasks are evaluated on seeds of their own.

    Raises:
        ConfigError: Nothing would be left to train on.
    """
    if (listing := optional(eval_env.unwrapped.task, "evaluation_set")) is None:
        return ProblemSplit(evaluation_set(config.eval_episodes, None), None)
    ids = listing(config.eval_episodes)
    training = env.unwrapped.task.evaluation_set(None)
    if set(training).isdisjoint(ids):
        imitates = algorithms.get(config.algo).imitates  # nobody else reads it, and long lists take a moment
        reserved = frozenset(listing(None)) - set(training) if imitates else frozenset()
        return ProblemSplit(evaluation_set(len(ids), ids), None, apart=True, reserved=reserved)
    made = eval_env.unwrapped.spec  # it has one where Python passed the environment, too
    if made is None or not accepts(made.id, "split"):
        return ProblemSplit(evaluation_set(len(ids), ids), None)
    ids = listing(min(config.eval_episodes, max(len(training) // HELD_OUT_SHARE, 1)))
    remaining = tuple(sorted(set(training) - set(ids)))
    if not remaining:
        raise ConfigError(
            f"All {len(set(training))} training problems are in the evaluation set: nothing is left to train on. "
            "Name other problems for evaluation: --eval-kwargs data=PATH"
        )
    return ProblemSplit(evaluation_set(len(ids), ids), remaining, apart=True, reserved=frozenset(ids))


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
    if (kind_of := optional(env.unwrapped.task, "kind_of")) is None:
        raise ConfigError(
            f"The task of {config.env} does not say which of its starts are alike, so none has a success rate. Leave "
            "out --curriculum learnability, or give the task a method kind_of(task_id), see docs/custom-tasks.md."
        )
    return Curriculum(problems, make_env, kind_of)


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
        ConfigError: As ``check_prompts`` and ``check_call_formats``, or nobody plays an agent of held-out problems.
    """
    if unknown := [agent for agent in eval_env.possible_agents if not renderer.plays(agent)]:
        raise ConfigError(
            f"Held-out problems have agents that no policy of the run plays: {', '.join(unknown)}. Expected a policy"
            " that agents of training share: --policies shared, or ROLE=POLICY; or change --eval-kwargs."
        )
    first = problems.train(config.seed, 0, environments.PROMPTS_CHECKED)
    check_prompts(env, renderer, first, config.max_new_tokens)
    check_call_formats(env, renderer)
    check_call_formats(eval_env, renderer, "--eval-kwargs")


def check_call_formats(env: FlexEnv, renderer: Renderer, option: str = "--env-kwargs") -> None:
    """Checks that calls are read in the form in which each agent's chat template writes them, where it shows tools.

    Args:
        env: What is played.
        renderer: Who plays which policy.
        option: What sets this environment's arguments.

    Raises:
        ConfigError: They are not: the agent's calls would be malformed.
    """
    if (speech := getattr(env.unwrapped.task, "speech", None)) is None:
        return
    agents = [agent for agent in renderer.agents if agent in env.possible_agents]
    chats = {agent: renderer.chat(renderer.policy_of(agent)) for agent in agents}
    written = {agent: chat.call_format.name for agent, chat in chats.items() if chat.call_format is not None}
    for agent, name in written.items():
        if speech.call_formats[agent] not in (name, "any"):
            wanted = {each: written.get(each, read) for each, read in speech.call_formats.items()}
            alike = len(set(wanted.values())) == 1
            typed = shlex.join([option, f"call_format={name if alike else json.dumps(wanted)}"])
            raise ConfigError(
                f"The chat template of '{agent}' writes calls as '{name}', and the environment reads"
                f" '{speech.call_formats[agent]}'. Add {typed} (or call_format=any)."
            )
