"""Short runs for tests: a random model of a few thousand parameters on a toy, seconds each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from marft_algos import config
from marft_algos.config import TrainConfig
from marft_algos.loggers import Display
from marft_algos.runs import RunFolder
from marft_algos.trainer import Trainer


def settings(model: Path, runs_dir: Path, **changes: Any) -> TrainConfig:
    """A run of four iterations; keys of the algorithm go into ``algorithm={…}``."""
    table: dict[str, Any] = {
        "env": "relay-v0",
        "models": str(model),
        "max_new_tokens": 3,
        "iterations": 4,
        "episodes_per_iteration": 12,
        "eval_every": 2,
        "eval_episodes": 10,
        "save_every": 1,
        "record_every": 2,
        "record_episodes": 3,
        "lora_r": 2,
        "device": "cpu",
        "runs_dir": str(runs_dir),
        # A random model hardly ever says a digit: what moves its weights is the entropy.
        "algorithm": {"lr": 1e-2, "entropy_coef": 0.05, "epochs": 2, "minibatches": 2},
    }
    table["algorithm"] = {**table["algorithm"], **changes.pop("algorithm", {})}
    return config.build({**table, **changes})


def quiet_display(total: int = 1) -> Display:
    return Display(total, 0, "test", Console(quiet=True))


def train(made: TrainConfig) -> tuple[Trainer, RunFolder]:
    """Runs a configuration to its end."""
    trainer = Trainer(made)
    run = trainer.start()
    with quiet_display(made.iterations) as display:
        trainer.train(run, display)
    return trainer, run


def timeless(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics without what the clock says."""
    return [{k: v for k, v in line.items() if not k.startswith("time_")} for line in run.metrics()]
