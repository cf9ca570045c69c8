"""Trains from Python in one call: the command line's ``marft train`` for notebooks and scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marft_algos.config import settings as configs
from marft_algos.runs import start
from marft_algos.runs.folder import RunFolder
from marft_algos.training.trainer import opened, train_and_report
from marft_algos.training.warm import warmed


def train(preset: str = "", *, config: Path | str = "", trusted: bool = False, **settings: Any) -> RunFolder:
    """Trains a team and returns the folder of the run: metrics, episodes, checkpoints, report.

    Examples:
        >>> run = marft_algos.train("quickstart", iterations=20, algorithm={"level": "action"})
        >>> run.metrics()[-1]["eval/success"]

    Args:
        preset: Where settings that are not named come from; see ``marft_algos.config.presets``. Empty: ``default``,
            or with the setting ``start`` that run's.
        config: A TOML file with settings over those of the preset, such as a run's ``config.toml``.
        trusted: Let that file name what executes or sends; see ``marft_algos.config.trust``.
        **settings: Fields of :class:`marft_algos.TrainConfig`; the algorithm's own in the dictionary ``algorithm``.

    Raises:
        ConfigError: A setting that cannot work, before any folder is made.
        OutageError: Too many episodes were lost to outages; the state was saved, as below.
        TrustError: The file has settings that execute or send, and ``trusted`` is false.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the state was saved, and ``marft train --resume`` goes on.
    """
    origin = str(settings.get("start") or (start.named_in(config) if config else ""))
    base = start.defaults(origin, preset, settings.get("env", ""))
    if config:
        base = configs.load(config, base, trusted=trusted)
    with opened(warmed(configs.build(settings, base))) as (trainer, run):
        train_and_report(trainer, run)
    return run
