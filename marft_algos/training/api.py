"""Trains from Python in one call: the command line's ``marft train`` for notebooks and scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marft_algos.config import presets, values
from marft_algos.config import settings as configs
from marft_algos.config.settings import TrainConfig
from marft_algos.evaluation import environments
from marft_algos.evaluation.environments import EnvFactory
from marft_algos.runs import start
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.loggers import of_callback
from marft_algos.training.environments import env_factory, eval_kwargs
from marft_algos.training.trainer import opened, train_and_report
from marft_algos.training.warm import warmed
from marft_envs import FlexEnv, from_rows
from marft_envs.errors import ConfigError

Reward = Callable[..., Any]


def train(
    preset: str = "",
    *,
    config: Path | str = "",
    trusted: bool = False,
    env: str | FlexEnv | EnvFactory = "",
    reward: Reward | None = None,
    callbacks: Sequence[Any] = (),
    **settings: Any,
) -> RunFolder:
    """Trains a team and returns the folder of the run: metrics, episodes, checkpoints, report.

    Examples:
        >>> run = marft_algos.train("quickstart", iterations=20, level="action", callbacks=[print])
        >>> run.metrics()[-1]["eval/success"]

    Args:
        preset: Where settings that are not named come from; see ``marft_algos.config.presets``. Empty: ``default``,
            or with the setting ``start`` that run's.
        config: A TOML file with settings over those of the preset, such as a run's ``config.toml``.
        trusted: Let that file name what executes or sends; see ``marft_algos.config.trust``.
        env: The environment: an id; what ``marft_envs.make`` returned (the run then notes its id and arguments); any
            other environment, or a function that makes one (no file can name it: the run calls it ``custom``).
        reward: A function that rewards the team instead of the environment's task: of an
            :class:`marft_envs.Episode`, where ``env`` is an id; without ``env``, of an answer and the row of ``data``
            that it is for (:func:`marft_envs.from_rows`, which has teams, too).
        callbacks: Functions of an iteration's metrics; objects with ``on_iteration(metrics)``; or loggers
            (``marft_algos.runs.loggers.Logger``). They stand beside those of the setting ``loggers``.
        **settings: Fields of :class:`marft_algos.TrainConfig`, and the algorithm's own (``lr=1e-4``), which may stand
            in the dictionary ``algorithm``, too. ``data``: rows for the environment, a list of dictionaries, a
            ``Dataset`` or a frame, or a name or path.

    Raises:
        ConfigError: A setting that cannot work, before any folder is made.
        InfrastructureError: Too many episodes were lost to infrastructure errors; the state was saved, as below.
        TrustError: The file has settings that execute or send, and ``trusted`` is false.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the state was saved, and ``marft train --resume`` goes on.
    """
    if reward is not None and not env and "data" in settings:
        env, reward = from_rows(settings.pop("data"), reward), None
    if reward is not None and not (env and isinstance(env, str) and callable(reward)):
        raise ConfigError(
            "reward= is a function of an episode where env= is an id, or of (answer, row) where data= has rows. An"
            " environment takes its own: marft_envs.make(ID, reward=FUNCTION), or from_rows(ROWS, reward=FUNCTION)."
        )
    named, parts = _described(env)
    settings = named | settings
    said = start.named_in(config) | {key: str(value) for key, value in settings.items() if key == "start" and value}
    base = start.defaults(said.get("start", ""), preset or said.get("preset", ""), settings.get("env", ""))
    if config:
        base = configs.load(config, base, trusted=trusted)
    made = configs.build(settings, base)
    if reward is not None:
        made, parts = _rewarded(made, reward)
    with opened(warmed(made, **parts), loggers=[of_callback(c) for c in callbacks], **parts) as (trainer, run):
        train_and_report(trainer, run)
    return run


def _described(env: str | FlexEnv | EnvFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the settings that name an environment, and what ``build`` is given where none can."""
    if isinstance(env, str):
        return ({"env": env} if env else {}), {}
    id, kwargs = environments.named(env)
    try:
        values.dumps(kwargs)
        if not id.startswith(environments.UNNAMED):
            return {"env": id, "env_kwargs": kwargs}, {}
    except ConfigError:
        pass  # an argument that no file can hold
    return {"env": presets.CUSTOM, "env_kwargs": {}}, {"env": env}


def _rewarded(config: TrainConfig, reward: Reward) -> tuple[TrainConfig, dict[str, Any]]:
    """Returns settings whose environment a function rewards, which no file can name, and what ``build`` is given."""
    both = {"env": config.env_kwargs, "eval_env": eval_kwargs(config)}
    parts = {name: env_factory(config, {**kwargs, "reward": reward}) for name, kwargs in both.items()}
    return config.changed(env=presets.CUSTOM, env_kwargs={}, eval_kwargs={}), parts
