"""Builds the parts of a run from its settings: environments, algorithm, policies, engine. A notebook may pass its."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, cast

from marft_algos import seeds
from marft_algos.algorithms.base import Algorithm
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import RolloutEngine
from marft_algos.evaluation.environments import EnvFactory, given, started
from marft_algos.lazy import extra, torch
from marft_algos.learner.steps import LocalOptimiser, MakeOptimiser
from marft_algos.models.loading import wrap_base
from marft_algos.models.policy import PolicySet
from marft_algos.ranks.group import Alone, RankGroup
from marft_algos.rollout.curriculum import Curriculum
from marft_algos.rollout.demonstrations import Demonstrations
from marft_algos.rollout.episodes import ProblemSplit
from marft_algos.rollout.selfplay import Pool
from marft_algos.runs import paths
from marft_algos.runs.loggers import Logger
from marft_algos.training import environments, hosting
from marft_algos.training.environments import env_factory
from marft_algos.training.placement import placed
from marft_algos.training.policies import make_policies, make_renderer, model_settings, sampling
from marft_algos.training.resolve import RunSpec, make_algorithm, resolve, settled
from marft_envs import FlexEnv
from marft_envs.core.types import optional
from marft_envs.problems.rows import digest

MakeEngine = Callable[[PolicySet], RolloutEngine]
"""Makes what writes the replies of these policies."""


@dataclass(slots=True)
class Parts:
    """Holds the parts of a run. The trainer wires them, and knows none by name."""

    spec: RunSpec
    """The settings, resolved."""
    make_env: EnvFactory
    """Makes environments to train in."""
    make_eval_env: EnvFactory
    """Makes environments of the held-out evaluation set."""
    problems: ProblemSplit
    """The held-out evaluation set, and what is left to train on."""
    algorithm: Algorithm
    policies: PolicySet
    engine: RolloutEngine
    data: Mapping[str, Mapping[str, Any]]
    """What ``training`` and ``evaluation`` draw from, see :func:`marft_envs.problems.rows.digest`."""
    loggers: Sequence[Logger] = ()
    """Beside those that the settings name; they are handed every line of metrics, and closed at the end."""
    demonstrations: Demonstrations | None = None
    """What an algorithm learns from that does not learn from its own policies."""
    pool: Pool | None = None
    """Past states of the policies that are played against."""
    curriculum: Curriculum | None = None
    """What draws training starts; None: ``problems``, all alike."""
    followed: Sequence[str] = ()
    """Metrics whose progress the task receives."""
    optimiser: MakeOptimiser = LocalOptimiser
    """Makes who takes a policy's steps: where its weights are."""
    trunk: PolicySet | None = None
    """Whose hidden states value heads read; None: the policies'."""

    @property
    def config(self) -> TrainConfig:
        """Returns the settings as they were given."""
        return self.spec.config


def build(
    config: TrainConfig,
    *,
    env: FlexEnv | EnvFactory | None = None,
    eval_env: FlexEnv | EnvFactory | None = None,
    model: tuple[Any, Any] | None = None,
    engine: RolloutEngine | MakeEngine | None = None,
    loggers: Sequence[Logger] = (),
    group: RankGroup | None = None,
) -> Parts:
    """Builds what the settings say; every error in them is raised here, models loaded last.

    Args:
        config: The settings.
        env: An environment that has been made, or a function that makes one; the run's copies come from it, whatever
            ``config.env`` says, which then only names the run.
        eval_env: The same for the held-out evaluation set; by default ``env``.
        model: A causal language model of ``transformers`` and its tokenizer, for all policies, instead of
            ``config.models``. Its memory is not estimated: it is there already.
        engine: Writes the replies, instead of what ``config.engines`` says: an engine, or a function of the policies
            that makes one.
        loggers: Beside ``config.loggers``.
        group: The ranks that train together; every one of them makes the same calls.

    Raises:
        ConfigError: Settings that cannot work.
    """
    torch.set_num_threads(config.threads)
    seeds.start_global(seeds.tasks(config.seed, -1))
    config = settled(paths.absolute(config))
    make_env = given(env) or env_factory(config, config.env_kwargs)
    make_eval_env = given(eval_env) or given(env) or env_factory(config, environments.eval_kwargs(config))
    with (
        closing(started(config.env, make_env)) as first,
        closing(started(config.env, make_eval_env)) as held_out,
        ExitStack() as undo,
    ):
        problems = environments.problems(config, first, held_out)
        data = {name: digest(at.unwrapped.task) for name, at in (("training", first), ("evaluation", held_out))}
        curriculum = environments.curriculum(config, make_env, first, problems)
        followed = tuple(optional(first.unwrapped.task, "followed"))
        spec = resolve(config, first, held_out)
        group = group or Alone()
        algorithm = make_algorithm(spec, sampling(config))
        if spec.remote:
            spec = extra("tinker").settled(spec, algorithm, group.size)
        hosting.reach(spec)
        spec, shard = placed(spec, first, group, loaded=model is not None)
        algorithm = make_algorithm(spec, sampling(config))
        algorithm.ask = hosting.asker(getattr(algorithm.config, "proposer", None))
        base = wrap_base(*model, model_settings(config, spec.models)) if model else None
        renderer = make_renderer(spec, base)
        environments.check_spoken(config, first, held_out, renderer, problems)
        shown = environments.demonstrations(config, make_env, renderer, problems)
        if shown is not None:
            undo.callback(shown.close)
            if config.iterations:
                shown.check(problems.train(config.seed, 0, config.episodes_per_iteration))
        policies = make_policies(spec, base, group if shard == "base" else None)
        pool = Pool(config, policies) if config.pool else None
        trunk = extra("tinker").trunk(spec, policies.renderer) if spec.remote and algorithm.view != "none" else None
        made = _engine(spec, policies, engine, group)
        undo.pop_all()
    steps: MakeOptimiser = getattr(policies, "optimiser", LocalOptimiser)
    drawn = pool, curriculum, followed, steps, trunk
    known = spec, make_env, make_eval_env, problems, algorithm, policies, made, data
    return Parts(*known, tuple(loggers), shown, *drawn)


def _engine(
    spec: RunSpec, policies: PolicySet, engine: RolloutEngine | MakeEngine | None, group: RankGroup
) -> RolloutEngine:
    if engine is None:
        return hosting.make_engine(spec, policies, group=group)
    if isinstance(engine, type) or not hasattr(engine, "generate"):
        return cast(MakeEngine, engine)(policies)
    return cast(RolloutEngine, engine)
