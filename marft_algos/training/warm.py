"""Starts a team from its task's own expert before it is trained by reinforcement: the setting ``warm_start``."""

from __future__ import annotations

import dataclasses
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from marft_algos.algorithms import base as algorithms
from marft_algos.config.arguments import typed
from marft_algos.config.settings import TrainConfig
from marft_algos.ranks.group import Alone, RankGroup, lead
from marft_algos.runs import paths, start
from marft_algos.runs.folder import RunFolder
from marft_algos.terminal import say
from marft_algos.training.environments import make_env
from marft_algos.training.policies import sampling
from marft_algos.training.resolve import make_algorithm, resolve
from marft_algos.training.trainer import Trainer, opened, train_and_report
from marft_envs.errors import ConfigError

_OFF = (
    *("warm_start", "warm_episodes", "pool", "token_budget", "processed_budget", "latency_budget"),
    *("permute_rewards", "curriculum", "credit_diagnostics"),
)
"""Settings that a warm start has as by default: off."""


def warmed(
    config: TrainConfig, command: str = "", group: RankGroup | None = None, name: str = "", **parts: Any
) -> TrainConfig:
    """Trains the warm start that the settings ask for, a run of its own, and returns settings that begin with it.

    It is there already if a run of that name was interrupted: then it is finished, or taken as it is.

    Args:
        config: Of the run that is to begin.
        command: What was typed, as the folder records it.
        group: The ranks that train together.
        name: Of the warm start's run; empty: that of the run itself, with ``-warm``.
        **parts: What ``build`` takes instead of what the settings say.

    Raises:
        ConfigError: The task has no expert, or a setting cannot work.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; what the warm start has learnt was saved.
    """
    group = group or Alone()
    if not config.warm_start or config.start or algorithms.get(config.algo).imitates:
        return config
    _check_later(config)
    settings = supervised(config)
    settings = dataclasses.replace(settings, name=name or settings.name)
    root = Path(config.runs_dir) / settings.name
    there = lead(group, lambda: bool(settings.name) and (root / "config.toml").is_file())
    if there:
        _check_same(RunFolder.open(root), settings)
    with opened(settings, RunFolder.open(root) if there else None, command, group, **parts) as (trainer, run):
        if not trainer.progress.done(settings):
            _train(trainer, run)
    return dataclasses.replace(config, start=os.path.abspath(run.root), warm_start=0)


def supervised(config: TrainConfig) -> TrainConfig:
    """Returns the settings of a run's warm start: its team and task, the defaults of ``sft``."""
    learns = algorithms.get("sft").Config(micro_tokens=config.algorithm.micro_tokens)
    off = {name: getattr(TrainConfig, name) for name in _OFF}
    when: dict[str, Any] = {"iterations": config.warm_start, "save_every": config.warm_start, "eval_every": 0}
    when["episodes_per_iteration"] = config.demonstrated
    name = f"{config.name}-warm" if config.name else ""
    return dataclasses.replace(config, algo="sft", algorithm=learns, name=name, **off, **when)


def _check_later(config: TrainConfig) -> None:
    """Checks what would stop the run itself once its warm start is trained."""
    if config.name:
        RunFolder.check_free(config.runs_dir, config.name)
    with closing(make_env(config, config.env_kwargs)) as env:
        make_algorithm(resolve(config, env), sampling(config))


def _check_same(run: RunFolder, settings: TrainConfig) -> None:
    """Checks that a run is the warm start that is wanted, and no other that has its name."""
    before, now = paths.of_run(run), paths.absolute(settings)
    for key in ("algo", *start.TEAM):
        there, here = getattr(before, key), getattr(now, key)
        if there != here:
            raise ConfigError(
                f"The warm start would be the run '{run.root}', which is there and has another '{key}' ({there!r};"
                f" wanted {here!r}). Choose another --name, or begin with it as it is: --start {run.root}"
            )


def _train(trainer: Trainer, run: RunFolder) -> None:
    say(f"warm start: {run.root}")
    try:
        train_and_report(trainer, run, "warm start")
    except KeyboardInterrupt:
        say(f"stopped in the warm start; go on with it: {typed('train', '--resume', run.root)}")
        say(f"and then: {typed('train', '--start', run.root)}, with the other options")
        raise
