"""Training from Python: objects as environments, rows as data, flat settings, callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import marft_algos
import marft_envs
from marft_algos.config.presets import CUSTOM
from marft_algos.config.settings import TrainConfig, build
from marft_algos.extras.bench import grid_runs
from marft_algos.extras.bench.grid import Grid
from marft_algos.runs.loggers import of_callback
from marft_envs import ConfigError, DataError
from marft_envs.problems import rows

ROWS = [{"problem": f"What is {i}+1?", "answer": str(i + 1)} for i in range(8)]
SMALL: dict[str, Any] = {
    "iterations": 1, "episodes_per_iteration": 4, "eval_episodes": 2, "max_new_tokens": 4, "lora_r": 2,
}  # fmt: skip


def train(folder: Path, **settings: Any) -> Any:
    return marft_algos.train("quickstart", runs_dir=folder, name="r", **(SMALL | settings))


def config(run: Any) -> TrainConfig:
    return marft_algos.config.settings.load(run.config_file)


class Watcher:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_iteration(self, metrics: Any) -> None:
        self.seen.append(metrics["iteration"])


def test_a_made_environment_is_noted_by_id_and_arguments_and_callbacks_hear_every_iteration(tmp_path: Path) -> None:
    watcher, lines = Watcher(), []
    env = marft_envs.make("math-solo-v0", levels=[0])
    run = train(tmp_path, env=env, algo="grpo", group_size=2, lr=1e-3, callbacks=[watcher, lines.append])
    noted = config(run)
    assert (noted.env, noted.env_kwargs) == ("math-solo-v0", {"levels": [0]})
    assert (noted.algorithm.lr, noted.algorithm.group_size) == (1e-3, 2)
    assert (
        watcher.seen == [line["iteration"] for line in run.metrics()] == [line["iteration"] for line in lines] == [0, 1]
    )


def test_a_function_of_ones_own_makes_the_environment(tmp_path: Path) -> None:
    run = train(tmp_path, env=lambda: marft_envs.make("math-solo-v0", data=ROWS, filter=lambda p: p.answer != "1"))
    assert config(run).env == CUSTOM and run.metrics()[-1]["iteration"] == 1


def test_rows_are_data(tmp_path: Path) -> None:
    run = train(tmp_path, env="math-solo-v0", data=pd.DataFrame(ROWS))
    assert "/1" in run.episodes("eval", 1)[0].task_id
    assert Path(config(run).env_kwargs["data"]).read_text().count("\n") == len(ROWS)


def test_rows_of_every_kind_are_one_file_and_what_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    files = {rows.stored(kind) for kind in (ROWS, pd.DataFrame(ROWS), datasets.Dataset.from_list(ROWS))}
    assert len(files) == 1
    both = rows.stored({"train": ROWS[:6], "test": ROWS[6:]})
    assert both.endswith("-{split}.jsonl") and len(Path(both.replace("{split}", "test")).read_text().splitlines()) == 2
    assert rows.stored("gsm8k") == "gsm8k" and rows.stored(Path("a.jsonl")) == "a.jsonl"
    lists = [{"problem": "1+1", "tests": ["a", "b"]}, {"problem": "1+2", "tests": []}]
    assert rows.stored(datasets.Dataset.from_list(lists).to_pandas()) == rows.stored(lists)
    gaps = pd.DataFrame([{"problem": "1+1", "answer": 2, "level": 1}, {"problem": "1+2", "answer": 3}])
    env = marft_envs.make("math-solo-v0", data=gaps)
    assert Path(env.env_kwargs["data"]).read_text().splitlines()[1] == '{"problem": "1+2", "answer": 3}'
    for wrong in (3, [1], [{"problem": object()}]):
        with pytest.raises(DataError, match=r"a list of dictionaries, or a Dataset or DataFrame"):
            marft_envs.make("math-solo-v0", data=wrong)
    monkeypatch.setenv("XDG_CACHE_HOME", __file__)
    with pytest.raises(DataError, match="export XDG_CACHE_HOME=FOLDER"):
        rows.stored(ROWS)


def test_a_setting_of_the_algorithm_may_stand_alone_once() -> None:
    assert build({"algo": "grpo", "group_size": 4, "algorithm": {"lr": 1e-3}}) == build(
        {"algo": "grpo", "algorithm": {"group_size": 4, "lr": 1e-3}}
    )
    with pytest.raises(ConfigError, match="'lr' is there twice"):
        build({"lr": 1e-3, "algorithm": {"lr": 1e-3}})
    with pytest.raises(ConfigError, match=r"no setting 'group_size'"):
        build({"algo": "marft", "group_size": 4})


GRID: dict[str, Any] = {"algorithms": ["marft", "grpo"], "envs": ["math-solo-v0"], "token_budget": 1000, "seeds": [1]}


def test_a_grid_takes_the_same_names() -> None:
    flat = Grid(**GRID, controls=(), baseline="marft", settings={"lr": 2e-3, "group_size": 4, "data": "gsm8k"})
    nested = {"algorithm": {"lr": 2e-3, "group_size": 4}, "env_kwargs": {"data": "gsm8k"}}
    deep = Grid(**GRID, controls=(), baseline="marft", settings=nested)
    entry = flat.env_entry("math-solo-v0")
    for label in ("marft", "grpo"):
        one, other = (grid_runs.resolve(grid, label, "math-solo-v0", entry, "", "main", {}) for grid in (flat, deep))
        assert one == other and one.algorithm.lr == 2e-3 and one.env_kwargs["data"] == "gsm8k"
    with pytest.raises(ConfigError, match=r"In Python: lr=…"):
        bad = Grid(**GRID, settings={"learning_rate": 1})
        grid_runs.resolve(bad, "marft", "math-solo-v0", entry, "", "main", {})
    with pytest.raises(ConfigError, match=r"Write it under \[settings\]: lr = …"):
        Grid(**GRID, lr=1e-3)


def test_what_is_no_callback_is_told() -> None:
    for wrong in (3, Watcher):
        with pytest.raises(ConfigError, match=r"Expected a function of an iteration's metrics"):
            of_callback(wrong)
