"""A run from parts: what a notebook hands in, what each name costs to import, and what data may hold."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import marft_algos
import marft_envs
from helpers.marks import rest_in_ci
from marft_algos.config import presets
from marft_algos.config import settings as config
from marft_algos.engines.native import NativeEngine
from marft_algos.models import embedded_path
from marft_algos.models.loading import load_tokenizer
from marft_algos.runs.loggers import Display
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def settings(tmp_path: Path, **changes: Any) -> config.TrainConfig:
    small = {"iterations": 1, "episodes_per_iteration": 8, "eval_episodes": 4, "record_episodes": 0}
    return config.build(presets.get("quickstart") | small | {"runs_dir": str(tmp_path)} | changes)


def train(parts: marft_algos.Parts) -> list[dict[str, Any]]:
    trainer = Trainer(parts)
    run = trainer.start()
    with Display(1, 0, "parts") as display:
        trainer.train(run, display)
    return run.metrics()


class Tail:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self.closed = False

    def log(self, metrics: Any) -> None:
        self.lines.append(dict(metrics))

    def close(self) -> None:
        self.closed = True


def sampled(lines: list[dict[str, Any]]) -> list[Any]:
    return [(line.get("return"), line.get("tokens"), line.get("eval/success")) for line in lines]


def test_an_environment_object_a_model_an_engine_and_a_logger_give_the_same_run(tmp_path: Path) -> None:
    folder = embedded_path("embedded")
    named = train(build(settings(tmp_path / "named", env_kwargs={"levels": [0]})))
    tail, asked = Tail(), []

    def engine(policies: Any) -> Any:
        class Counting(NativeEngine):
            def generate(self, requests: Any, params: Any) -> Any:
                asked.append(len(requests))
                return super().generate(requests, params)

        return Counting(policies)

    given = train(
        build(
            settings(tmp_path / "given"),
            env=marft_envs.make("math-dual-v0", levels=[0]),
            eval_env=lambda: marft_envs.make("math-dual-v0", levels=[0], split="test"),
            model=(AutoModelForCausalLM.from_pretrained(folder), load_tokenizer(str(folder))),
            engine=engine,
            loggers=[tail],
        )
    )
    assert sampled(named) == sampled(given)
    assert sum(asked) > 0 and tail.closed
    assert [line["iteration"] for line in tail.lines] == [line["iteration"] for line in given]


def test_what_is_no_environment_is_told() -> None:
    with pytest.raises(ConfigError, match="env is of type int"):
        build(config.build(presets.get("quickstart")), env=3)  # type: ignore[arg-type]


def loaded(code: str) -> set[str]:
    heavy = ("torch", "transformers", "peft")
    told = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*(m for m in {heavy!r} if m in sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(told.stdout.split())


@pytest.mark.parametrize("code", rest_in_ci([
    "import marft_algos.algorithms.grpo", "import marft_algos.algorithms.marft", "import marft_algos.credit.replayed",
    "from marft_algos import Algorithm, register, UpdateConfig, RolloutEngine, TrainConfig",
    "from marft_algos import Collector, Renderer",
], 2))  # fmt: skip
def test_credit_and_collecting_load_no_model_library(code: str) -> None:
    assert loaded(code) == set()


def test_every_public_name_is_there() -> None:
    for name in marft_algos.__all__:
        assert getattr(marft_algos, name).__doc__, name
    assert {"train", "Trainer", "build", "Collector", "Learner", "Renderer", "check_engine"} <= set(marft_algos.__all__)


def test_a_public_name_is_no_module_of_that_name() -> None:
    """Importing a module makes it an attribute of its package, in the place of what the package promised."""
    for name in marft_algos.__all__:
        getattr(marft_algos, name)  # imports what it is defined in
    assert not [n for n in marft_algos.__all__ if isinstance(getattr(marft_algos, n), types.ModuleType)]
