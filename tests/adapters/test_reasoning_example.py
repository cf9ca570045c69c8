"""The comparison of ``examples/reasoning`` on a tiny model: its demonstrations, TRL's trainer and the table."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from marft_envs.records import trajectory

pytest.importorskip("reasoning_gym", reason="pip install -e '.[reasoning-gym]'")
pytest.importorskip("trl", reason="pip install -e '.[trl]'")

FEW = {"preset": "quickstart", "max_new_tokens": 24, "eval_every": 0, "eval_episodes": 2, "models": "embedded"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "reasoning"))
    return importlib.import_module("run")


def test_demonstrations_are_right_for_the_environment_and_for_the_packages_scorer(run: Any) -> None:
    tasks = importlib.import_module("tasks")
    for task in tasks.TASKS:
        for team in (False, True):
            env, episodes, replies = tasks.environment(task, team=team), [], iter(tasks.rows(task, 8, team=team))
            for number in range(tasks.FIRST, tasks.FIRST + 8):
                env.reset(options={"task_id": str(number)})
                while not env.done:
                    env.step(next(replies)["action"])
                episodes.append(trajectory.to_dict(env.episode))
            assert all(score == 1 and success for score, success in tasks.scores(episodes)), task
            env.close()


def test_every_row_is_trained_and_scored(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.WARM.update(iterations=1, episodes_per_iteration=16)
    for who in run.WHO:
        run.job(tmp_path, "chain_sum", who, 0, 6000, 4, FEW)
    run.table(tmp_path)
    assert [line.split("|")[2].strip() for line in capsys.readouterr().out.splitlines() if "`chain" in line] == [
        *run.WHO
    ]
