"""Short runs for tests: a random model of a few thousand parameters on a task that pays it now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import marft_envs
from marft_algos.config import settings as config
from marft_algos.config.settings import TrainConfig
from marft_algos.rollout.collector import Collector
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.loggers import Display
from marft_algos.training.parts import Parts, build
from marft_algos.training.policies import sampling
from marft_algos.training.trainer import Trainer
from marft_envs.core.vector import VectorEnv

QUICK = [
    "--iterations", "2", "--episodes-per-iteration", "6", "--eval-episodes", "12", "--max-new-tokens", "4",
    "--lora-r", "2",
]  # fmt: skip
"""What makes `marft train` short."""


class Letters:
    """Pays the share of small letters in what the last agent says: a random model earns something, and can learn."""

    task_id, slow = "", False

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        self.task_id = f"letters/{rng.integers(10)}"

    def observe(self, agent: str) -> str:
        return self.task_id

    def on_layer(self, turns: Sequence[marft_envs.TurnRecord]) -> marft_envs.Outcome:
        return marft_envs.Outcome()

    def on_round(self, turns: Sequence[marft_envs.TurnRecord]) -> marft_envs.Outcome:
        share = sum("a" <= c <= "z" for c in turns[-1].text) / max(len(turns[-1].text), 1)
        return marft_envs.Outcome(team_reward=share, success=share > 0.5, terminated=True)

    def answer_key(self, text: str) -> str:
        return text

    def sample_actions(self, agent: str) -> Sequence[str]:
        return ("a", "A")

    def validate(self) -> None:
        """Nothing to prove."""


def make_letters() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec("planner_0", "planner", "Plan."), marft_envs.AgentSpec("solver_0", "solver", "Solve.")]
    return marft_envs.FlexEnv(team, Letters(), marft_envs.Chain())


marft_envs.register("test/letters-v0", make_letters)


def settings(model: Path, runs_dir: Path, **changes: Any) -> TrainConfig:
    """A run of four iterations; keys of the algorithm go into ``algorithm={…}``."""
    table: dict[str, Any] = {
        "env": "test/letters-v0", "models": str(model), "max_new_tokens": 3, "iterations": 4,
        "episodes_per_iteration": 12, "eval_every": 2, "eval_episodes": 10, "save_every": 2, "record_every": 2,
        "record_episodes": 3, "lora_r": 2, "device": "cpu", "runs_dir": str(runs_dir),
        "algorithm": {"lr": 1e-2, "epochs": 2, "minibatches": 2},
    }  # fmt: skip
    table["algorithm"] = {**table["algorithm"], **changes.pop("algorithm", {})}
    return config.build({**table, **changes})


def quiet_display(total: int = 1) -> Display:
    return Display(total, 0, "test", Console(quiet=True))


def collector(parts: Parts, vec: VectorEnv) -> Collector:
    """What a run plays episodes to learn from with."""
    config = parts.config
    return Collector(vec, parts.policies.renderer, parts.engine, sampling(config), seed=config.seed)


def train(made: TrainConfig) -> tuple[Trainer, RunFolder]:
    """Runs a configuration to its end."""
    trainer = Trainer(build(made))
    run = trainer.start()
    with quiet_display(made.iterations) as display:
        trainer.train(run, display)
    return trainer, run


def timeless(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics without what the clock says, and how many ranks there were."""
    return [{k: v for k, v in line.items() if not k.startswith(("time_", "engine/ranks"))} for line in run.metrics()]
