"""Runs in each other's seats: cells are what that mixture is paid, and sums over them are as defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import marft_envs
from helpers.runs import Letters, settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval
from marft_algos.training import compare as cross
from marft_algos.training.compare import compare
from marft_envs.errors import ConfigError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Of one policy an agent, and of one for both."""
    model = save_tiny(tmp_path_factory.mktemp("model"), hidden=16, layers=1)
    changes = {"iterations": 1, "eval_episodes": 24, "lora_r": 2}
    folder = tmp_path_factory.mktemp("runs")
    return [
        train(settings(model, folder, seed=s, name=f"run{s}", policies=shared, **changes))[1]
        for s, shared in ((0, "own"), (1, "own"), (2, "shared"))
    ]


def test_cells_are_what_the_mixture_is_paid(runs: list[RunFolder]) -> None:
    a, b, _ = runs
    found = cross.cross([a, b], ["solver"])
    known = {change.name: change for change in compare(a, b)}
    assert found.seats == ["solver_0"] and found.n == 24
    for cell, when in ((0, "before"), (1, "after")):
        own = [getattr(known[f"agent/{agent}/reward"].paired, when) for agent in ("planner_0", "solver_0")]
        team = getattr(known["return"].paired, when) - sum(own)
        assert found.rows[cell][cell].mean == pytest.approx(team + own[1])
        assert found.columns[cell][cell].mean == pytest.approx(team + own[0])
    again = cross.cross([b, a], ["planner"])
    assert [[cell.mean for cell in line] for line in again.rows] == [
        [found.columns[1][1].mean, found.columns[0][1].mean],
        [found.columns[1][0].mean, found.columns[0][0].mean],
    ], "whoever is called the row, a mixture is paid the same"


def test_a_run_of_one_policy_plays_either_side(runs: list[RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "--cross", *(str(run.root) for run in runs), "--episodes", "5"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "rows play planner_0, columns the others" in out and "n = 5" in out
    assert out.count("exploited") == 3 and all(run.root.name in out for run in runs)
    assert main([*words, "--sampled"]) == 1 and "--cross takes runs" in capsys.readouterr().err
    assert main([*words, "--seats", "nobody"]) == 1 and "called 'nobody'" in capsys.readouterr().err
    assert main([*words, "--seats", "planner", "solver"]) == 1 and "would play all" in capsys.readouterr().err
    assert main(["eval", "--cross", str(runs[0].root)]) == 1 and "got one run" in capsys.readouterr().err
    assert main(["eval", str(runs[0].root), "--seats", "solver"]) == 1 and "--cross RUN RUN" in capsys.readouterr().err


def planner(messages: Sequence[Mapping[str, str]]) -> str:
    """A partner that nobody trains."""
    return "plan"


def make_three() -> marft_envs.FlexEnv:
    team = [marft_envs.AgentSpec(f"{role}_0", role, f"Be the {role}.") for role in ("planner", "solver", "judge")]
    return marft_envs.FlexEnv(team, Letters(), marft_envs.Chain())


def test_partners_play_in_every_cell_and_have_no_weights(model: Path, tmp_path: Path) -> None:
    marft_envs.register("test/three-letters-v0", make_three)
    changes = {"iterations": 1, "eval_episodes": 4, "lora_r": 2, "env": "test/three-letters-v0"}
    changes |= {"env_kwargs": {"partners": {"planner_0": f"{__name__}:planner"}}}
    changes |= {"policies": {"solver": "one", "judge": "other"}}
    runs = [train(settings(model, tmp_path, seed=s, name=f"with{s}", **changes))[1] for s in (0, 1)]
    found = cross.cross(runs)
    assert found.seats == ["solver_0"] and found.n == 4


def test_runs_whose_weights_do_not_fit_are_refused(runs: list[RunFolder], tmp_path: Path) -> None:
    text = runs[1].config_file.read_text()
    (tmp_path / "config.toml").write_text(text.replace("lora_r = 2", "lora_r = 4"))
    with pytest.raises(ConfigError, match="differ in 'lora_r'"):
        cross.cross([runs[0], RunFolder.open(tmp_path)])


def test_in_rock_paper_scissors_nobody_is_safe_and_who_mixes_is() -> None:
    """NashConv against brute force: of a pure strategy 2, one side's best answer wins each time; of the mixture 0."""
    beats = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
    game = np.zeros((4, 4))
    game[:3, :3] = beats  # the fourth plays each as often

    def cells(of: np.ndarray) -> list[list[Interval]]:
        return [[Interval(float(x), float(x), float(x), 9) for x in line] for line in of]

    found = cross.Matrix(["rock", "paper", "scissors", "mixed"], ["left"], cells(game), cells(-game))
    assert [found.nash_conv(i) for i in range(4)] == [2.0, 2.0, 2.0, 0.0]
    assert found.cross_play == (0.0, 0.0)


def test_cross_play_leaves_the_diagonal_out() -> None:
    same = [[Interval(x, x, x, 4) for x in line] for line in ((1.0, 0.25), (0.5, 0.8))]
    found = cross.Matrix(["a", "b"], ["left"], same, same)
    assert found.cross_play == pytest.approx((0.9, 0.375))
