"""``marft versus``: what is refused before anything is trained, what its grids hold, and the way from runs to a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft_algos.cli.app import main
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.grid import Grid
from marft_algos.extras.bench.grid_runs import GridRun, expand
from marft_algos.extras.bench.versus import grids, report, run
from marft_algos.extras.bench.versus.grids import Choice
from marft_algos.extras.bench.versus.run import Cost
from marft_algos.extras.bench.versus.trial import Trial
from marft_envs.errors import ConfigError

TOY: Mapping[str, Any] = {"preset": "toy", "eval_episodes": 8}


def relay(**changes: Any) -> Trial:
    """The toy, with one of its two agents as the rival."""
    given = {"single_team": ("solver_0",), "algorithms": ("marft", "rft"), "lr": (1e-3, 2e-3), "seeds": (0, 1, 2)}
    return Trial("relay-v0", 1000, **{**given, "settings": dict(TOY), **changes})


# Refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "message"), [
    ({"single_team": ()}, "Nobody has said who the single agent of 'relay-v0' is.*--single ENV.*--single-team AGENT"),
    ({"single_team": ("nobody_0",)}, "names nobody_0; the team is planner_0, solver_0"),
    ({"single": "math-solo-v0"}, "give one of them"), ({"single_team": (), "single": "relayy-v0"}, "relayy-v0"),
    ({"algorithms": ("marft", "nonsense")}, "nonsense"),
    ({"sweep_seeds": (1, 7)}, r"Seeds \[1\] are in sweep_seeds and seeds"), ({"lr": ()}, "expected at least one"),
    ({"margin": 1.5}, "margin is 1.5"),
    ({"settings": {"iterations": 3}}, "settings has iterations, which the trial itself decides"),
])  # fmt: skip
def test_a_trial_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        relay(**changes)


def test_sides_that_are_scored_on_other_problems_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"not scored on the same problems.*'relay/.*'xor/.*--single ENV"):
        run.check(relay(single_team=(), single="xor-v0"))


def test_an_algorithm_that_cannot_train_a_side_is_refused() -> None:
    with pytest.raises(ConfigError, match="team: mat cannot train it"):
        run.check(relay(team_algorithms=("mat",)))


def test_a_budget_below_one_iteration_is_refused_and_a_coarse_one_is_told() -> None:
    team = Cost({"sampled": 400, "processed": 4000, "latency": 200}, 1.0, 0.1)
    with pytest.raises(
        ConfigError, match=r"One iteration of the single takes 600 tokens \(latency\).*500.*--token-budget"
    ):
        run.fits(relay(), {"team": team, "single": Cost({"sampled": 600, "processed": 900, "latency": 600}, 1.0, 0.1)})
    notes = run.fits(
        relay(), {"team": team, "single": Cost({"sampled": 90, "processed": 900, "latency": 90}, 1.0, 0.1)}
    )
    assert len(notes) == 1 and "18% of its budget (latency)" in notes[0]


def test_the_plan_counts_runs_and_tokens() -> None:
    cost = Cost({"sampled": 100, "processed": 1000, "latency": 100}, 2.0, 0.5)
    lines = run.plan(relay(), {"team": cost, "single": cost})
    assert lines[1].startswith("team: 4 runs of the sweep, 3 that count, about 22 s and 10 iterations each")
    assert "at most 27 runs, 27 000 sampled tokens" in lines[-1]  # 2 sides of 4 + 3, one of 4 + 9, of 1,000 tokens each
    assert not any("warm start" in line for line in lines)
    warm = run.plan(relay(settings={"preset": "toy", "warm_start": 3}), {"team": cost, "single": cost})
    assert any("a warm start of 3 iterations" in line for line in warm)


# Grids ----------------------------------------------------------------------------------------------


def test_each_side_is_what_it_is_called() -> None:
    budgets = {"sampled": 900, "processed": 9000, "latency": 500}
    trial = relay(env_kwargs={"history": "own"})
    by_side = {side: expand(grids.sweep(trial, side, budgets), "sweep") for side in run.sides(trial)}
    assert [len(grid_runs) for grid_runs in by_side.values()] == [4, 4, 4]  # two algorithms, two rates, one seed
    kwargs = {side: grid_runs[0].config["env_kwargs"] for side, grid_runs in by_side.items()}
    assert kwargs["team"] == {"history": "own"}
    assert kwargs["no-communication"] == {"history": "own", "dependency": "independent"}
    assert kwargs["single"] == {"history": "own", "dependency": [["solver_0"]]}
    alone = by_side["single"][0].config
    assert [alone[f"{name}_budget"] for name in ("token", "processed", "latency")] == [900, 9000, 500]


def test_no_side_may_answer_later_than_the_trial_allows() -> None:
    trial = relay(answer_latency=9)
    assert [config.env_kwargs["max_path"] for config in run.check(trial).values()] == [9, 9, 9]
    assert any("9 tokens" in note for note in report._notes(trial)) and "max_path" not in relay().env_kwargs
    named = Trial("docs-tree-v0", 1000, single="docs-memory-v0", single_kwargs={"window": 0}, answer_latency=80)
    assert named.rival()[1] == {"window": 0, "max_path": 80}


def test_a_team_that_counts_is_also_played_with_its_messages_exchanged_and_its_d_cut() -> None:
    grid_runs = expand(grids.main(relay(), "team", {"sampled": 900}, [Choice("rft", 2e-3)]), "main")
    trained = [c for c in grid_runs if c.kind == "train"]
    assert len(trained) == 3 and all(c.config["algorithm"]["lr"] == 2e-3 and c.config["algo"] == "rft" for c in trained)
    after = {c.env: c for c in grid_runs if c.kind == "ablation"}
    assert list(after) == ["shuffled messages of planner_0", "D cut"]
    assert after["shuffled messages of planner_0"].swap == "planner_0"
    assert after["D cut"].config["env_kwargs"]["dependency"] == "independent" and not after["D cut"].swap
    assert len({c.key for c in grid_runs}) == len(grid_runs)


def test_a_team_without_d_has_no_ablation_of_its_communication() -> None:
    assert run.sides(relay(env_kwargs={"dependency": "independent"})) == ["team", "single"]


def test_algorithms_of_one_step_play_less_and_step_as_often() -> None:
    trial = Trial("math-dual-v0", 1000, env_kwargs={"levels": [0]})
    grid_runs = expand(grids.sweep(trial, "single", {"sampled": 1000}), "sweep")
    episodes = {c.algorithm: c.config["episodes_per_iteration"] for c in grid_runs}
    assert episodes == {"marft": 128, "reinforce": 16, "rft": 128, "grpo": 128}
    assert {c.config["env"] for c in grid_runs} == {"math-solo-v0"} and grid_runs[0].config["env_kwargs"] == {
        "levels": [0]
    }
    assert {c.config["eval_kwargs"]["split"] for c in grid_runs} == {
        "train"
    }  # the choice does not see the test problems


def curve(*points: tuple[int, float], learnt: float = 0.5) -> list[dict[str, Any]]:
    return [
        {
            "iteration": i,
            "tokens": t,
            "processed": 10 * t,
            "latency": t,
            "train_score": learnt,
            "score": s,
            "outcomes": [],
        }
        for i, (t, s) in enumerate(points)
    ]


def test_a_choice_is_made_by_the_scores_at_its_budget() -> None:
    quick, slow = curve((0, 0.1), (100, 0.6), (300, 0.6)), curve((0, 0.1), (100, 0.3), (300, 0.9))
    rows = [
        {"algorithm": name, "lr": 1e-3, "status": "done", "curve": points}
        for name, points in (("quick", quick), ("slow", slow))
    ]
    assert grids.choose(rows, "sampled", 90) == Choice("quick", 1e-3)
    assert grids.choose(rows, "processed", 1100) == grids.choose(rows) == Choice("slow", 1e-3)
    failed = {"algorithm": "slow", "lr": 1e-3, "status": "failed", "error": "out of memory"}
    assert grids.choose([*rows, failed]) == Choice("quick", 1e-3), "a rate of which a run failed does not stand"
    with pytest.raises(ConfigError, match=r"No run of the sweep ended well.*out of memory"):
        grids.choose([failed])
    with pytest.raises(ConfigError, match="nothing can be chosen"):
        grids.choose(rows, "sampled", 301)


# From runs to a verdict -----------------------------------------------------------------------------

Score = Callable[[GridRun, int], float]
"""Chance of success of a cell after so many sampled tokens."""


def pretended(score: Score) -> Any:
    """Returns a stand-in for ``Grid.run`` that writes results instead of training; single agents read half as much."""

    def run_grid(self: Grid, folder: Path, *, jobs: int, stage: str, report: Any) -> BenchFolder:
        bench = BenchFolder(Path(folder))
        bench.prepare(self.table())
        grid_runs = expand(self, stage)  # type: ignore[arg-type]
        bench.write_stage(stage, [grid_run.row() for grid_run in grid_runs])
        for grid_run in grid_runs:
            reads = 5 if grid_run.env == "single" else 10
            wanted = [grid_run.config[f"{name}_budget"] or 0 for name in ("token", "processed", "latency")]
            ends = sorted({wanted[0], -(-wanted[1] // reads), wanted[2]} - {0})
            points = []
            for tokens in [0, *ends]:
                coins = np.random.default_rng(grid_run.seed).random(
                    100
                )  # the same for all: equal chances, equal outcomes
                outcomes = (coins < score(grid_run, tokens)).astype(float).tolist()
                spent = {"tokens": tokens, "processed": tokens * reads, "latency": tokens}
                points.append({**spent, "score": float(np.mean(outcomes)), "outcomes": outcomes, "train_score": 0.0})
            last = points[-1]
            shared = {"problems": [f"p/{i}" for i in range(100)], "curve": points, "peak_memory": 0, "seconds": 1.0}
            cost = {"eval_tokens": 400, "eval_processed": 4000, "critical_path": 4.0, "infrastructure_errors": 0}
            bench.write_result(grid_run.key, {**last, **shared, **cost})
        return bench

    return run_grid


def judged(monkeypatch: pytest.MonkeyPatch, root: Path, score: Score, **changes: Any) -> report.Findings:
    monkeypatch.setattr(Grid, "run", pretended(score))
    trial = relay(**changes)
    run.run(trial, root, say=lambda line: None)
    return report.write(trial, root, "marft versus …")


def test_a_team_ahead_of_every_budget_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = judged(monkeypatch, tmp_path / "t", lambda grid_run, tokens: 0.9 if grid_run.env == "team" else 0.4)
    assert (found.team_needed, found.dependency) == ("team needed", "D matters")
    assert found.after["D cut"].word == "ahead" and found.after["shuffled messages of planner_0"].word == "ahead"
    written = json.loads((tmp_path / "t/verdict.json").read_text())
    assert written["team_needed"] == "team needed" and written["failed"] == []
    page = (tmp_path / "t/report.md").read_text()
    assert "team needed; D matters" in page and "1.00 of the team's" in page and "marft bench report" in page
    assert "latency in training (critical path)" in page and "is not equalised" in page
    assert "<table>" in (tmp_path / "t/report.html").read_text()


def test_a_single_agent_that_needs_more_tokens_and_reads_less_makes_the_team_too_dear(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading half as much, it has sampled twice as much at equal processed tokens; only there has it learnt."""

    def score(grid_run: GridRun, tokens: int) -> float:
        return (0.9 if tokens > 1500 else 0.3) if grid_run.env == "single" else 0.9

    found = judged(monkeypatch, tmp_path / "t", score)
    assert {unit: c.word for unit, c in found.comparisons.items()} == {
        "sampled": "ahead",
        "processed": "level",
        "latency": "ahead",
    }
    assert (found.team_needed, found.dependency) == ("too costly", "D does not matter")
    assert "not at equal processed tokens" in found.sentence


def test_the_best_of_several_single_agents_is_the_rival(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One algorithm fails, the other does as well as the team: the verdict is on the one that the sweep has chosen."""

    def score(grid_run: GridRun, tokens: int) -> float:
        return 0.1 if grid_run.env == "single" and "marft" in grid_run.algorithm else 0.8

    found = judged(monkeypatch, tmp_path / "t", score)
    assert found.team_needed == "no team needed"
    assert all(row[2].startswith("rft at") for row in found.sheets["At equal cost"][1:])


def test_budgets_that_were_not_equal_leave_the_verdict_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Grid, "run", pretended(lambda grid_run, tokens: 0.9 if grid_run.env == "team" else 0.4))
    trial, root = relay(tolerance=0.1), tmp_path / "t"
    run.run(trial, root, say=lambda line: None)
    for file in (root / "single-runs/results").glob("*.json"):
        result = json.loads(file.read_text())
        for point in result["curve"][1:]:
            point["processed"] = int(point["processed"] * 1.3)
        file.write_text(json.dumps(result))
    found = report.write(trial, root, "marft versus …")
    assert found.team_needed == "no significant difference" and found.comparisons["processed"].word == "open"
    assert "more tokens, or fewer episodes an iteration" in found.comparisons["processed"].why


def test_a_folder_goes_on_with_its_own_trial_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judged(monkeypatch, tmp_path / "t", lambda grid_run, tokens: 0.5)
    with pytest.raises(ConfigError, match=r"is another trial: margin was 0\.05.*--out DIR"):
        run.run(relay(margin=0.2), tmp_path / "t", say=lambda line: None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(ConfigError, match="not empty and no trial"):
        run.run(relay(), tmp_path / "other", say=lambda line: None)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["versus", "--help"])
    shown = capsys.readouterr().out
    assert "marft versus math-dual-v0" in shown and "--single-team" in shown and "too costly" in shown
