"""Training from Python in one call; the command line's ``marft train`` for notebooks and scripts."""

from __future__ import annotations

from typing import Any

from marft_algos import config as configs
from marft_algos import presets, report
from marft_algos.loggers import Display
from marft_algos.runs import RunFolder
from marft_algos.trainer import Trainer


def train(preset: str = "default", **settings: Any) -> RunFolder:
    """Trains a team and returns the folder of the run: metrics, episodes, checkpoints, report.

    >>> run = marft_algos.train("quickstart", iterations=20, algorithm={"level": "action"})
    >>> run.metrics()[-1]["eval/success"]

    Args:
        preset: Where settings that are not named come from; see ``marft_algos.presets``.
        **settings: Fields of :class:`marft_algos.TrainConfig`; the algorithm's own in the dictionary ``algorithm``.

    Raises:
        ConfigError: A setting that cannot work, before any folder is made.
        Interrupted: Ctrl-C or SIGTERM; the state was saved, and ``marft train --resume`` goes on.
    """
    base = configs.build(presets.get(preset))
    config = configs.build(settings, base)
    trainer = Trainer(config)
    run = trainer.start()
    with Display(config.iterations, 0, f"{config.env} · {config.algo}") as display:
        trainer.train(run, display)
    report.finish(run)
    return run
