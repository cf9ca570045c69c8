"""Evaluates a team of hosted and local models, without a run: who plays, on which problems, into which folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from marft_algos.config.evaluation import EvalConfig
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.ledger import Ledger
from marft_algos.evaluation import resumable
from marft_algos.evaluation.environments import check_prompts, env_factory, eval_panel, held_out_kwargs, started
from marft_algos.evaluation.play import Player
from marft_algos.evaluation.players import Players
from marft_algos.evaluation.resumable import ResumableEvaluation
from marft_algos.models.chat import Renderer
from marft_algos.rollout.panel import Panel
from marft_algos.runs import disk
from marft_algos.types import SamplingParams, Trajectory
from marft_envs import FlexEnv
from marft_envs.core.types import optional
from marft_envs.problems.rows import digest


def run(
    config: EvalConfig,
    command: str,
    opened: Callable[[ResumableEvaluation], None],
    on_progress: Callable[[int, int, int], None],
) -> tuple[ResumableEvaluation, list[Trajectory], Mapping[str, Any]]:
    """Plays a team, or what is left to play; returns the evaluation, its episodes and its results.

    Args:
        config: Of the evaluation; its folder, ``out``, is named.
        command: Stands in the folder's lock while it is played.
        opened: Called with the evaluation when its folder is open.
        on_progress: See ``resumable.play``.

    Raises:
        ConfigError: Settings that cannot work; nothing has been written.
        OutageError, TaskError: See ``resumable.play``.
    """
    players, make_env = seated(config)
    with closing(started(config.env, make_env)) as env:
        problems, team, data = _problems(config, env), env.unwrapped.team, digest(env.unwrapped.task)
        policies = players.load(config)
        names = {agent: agent for agent in (*players.models, *players.hosted)}
        renderer = Renderer({}, names) if policies is None else policies.renderer
        check_prompts(env, renderer, problems, players.max_new_tokens)
    evaluation = ResumableEvaluation(config, players, problems, Path(config.out), team, data)
    evaluation.open()
    opened(evaluation)
    sampling = SamplingParams(players.max_new_tokens, config.temperature or 1.0, greedy=config.greedy)
    with disk.held(evaluation.root, command), closing(Ledger(evaluation.replies_file)) as ledger:
        with closing(players.engine(config, policies, ledger)) as engine:
            player = Player(make_env, renderer, engine, sampling, config.seed, config.jobs, config)
            played = resumable.play(evaluation, player, on_progress)
        return evaluation, played, resumable.results(evaluation, played, ledger)


def seated(config: EvalConfig) -> tuple[Players, Callable[[], FlexEnv]]:
    """Returns who plays the agents of an evaluation's environment, and what makes this environment for them.

    Raises:
        ConfigError: See ``Players.of``.
    """
    kwargs = held_out_kwargs(config.env, {}, config.env_kwargs)  # a split that is asked for counts
    with closing(started(config.env, env_factory(config.env, kwargs))) as env:
        players = Players.of(config, env)
    reply_tokens = players.max_new_tokens if players.spoken["tell_budget"] else None
    return players, env_factory(config.env, kwargs, reply_tokens)


def _problems(config: EvalConfig, env: FlexEnv) -> Panel:
    """Returns the problems: ids where the task lists some, else draws that are the same every time."""
    episodes, listing = config.episodes or TrainConfig.eval_episodes, optional(env.unwrapped.task, "eval_panel")
    ids = None if listing is None else listing(episodes)
    return eval_panel(episodes if ids is None else len(ids), ids)
