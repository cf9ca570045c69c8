"""The map's tables: which point of a curve a budget is, and differences paired by seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import map as maps
from marft_envs.errors import ConfigError

BUDGETS = {"h4": 800}


def run(algorithm: str, seed: int, curve: Sequence[tuple[int, list[float]]], env: str = "h4") -> dict[str, Any]:
    points = [{"tokens": tokens, "outcomes": outcomes} for tokens, outcomes in curve]
    row = {"status": "done", "hidden": False, "env": env, "algorithm": algorithm, "seed": seed, "curve": points}
    return row | {"problems": list("abcdefghij"[: len(curve[-1][1])]), "outcomes": curve[-1][1]}


def rising(*solved: int) -> list[tuple[int, list[float]]]:
    """Evaluations of ten episodes at 0, 100, 200, 400 and 800 tokens, of which so many were solved."""
    return [(t, [1.0] * n + [0.0] * (10 - n)) for t, n in zip((0, 100, 200, 400, 800), solved, strict=True)]


def test_a_budget_is_the_last_evaluation_that_it_pays_for() -> None:
    runs = [run("marft", 0, [(0, [0.0, 0.0]), (90, [1.0, 0.0]), (110, [1.0, 1.0]), (810, [0.0, 1.0])])]
    read = {budget: maps.at(budget, runs, 800).tolist() for budget in maps.BUDGETS}
    assert read == {1: [[1.0, 0.0]], 2: [[1.0, 1.0]], 4: [[1.0, 1.0]], 8: [[0.0, 1.0]]}


def test_scores_have_the_start_and_each_budget() -> None:
    runs = [run("rft", seed, rising(1, 2, 3, 4, 5)) for seed in range(2)]
    (line,) = maps.scores(maps.finished([*runs, run("untrained", 0, rising(0, 0, 0, 0, 0))]), BUDGETS)
    assert line == ["h4", "rft", "0.100", "0.200", "0.300", "0.400", "0.500", "2"]


def test_three_seeds_have_intervals() -> None:
    runs = [run("rft", seed, rising(1, 2, 3, 4, 5)) for seed in range(3)]
    (line,) = maps.scores(maps.finished(runs), BUDGETS)
    assert line[3].startswith("0.200 [0.") and line[-1] == "3"


def test_differences_are_of_the_same_seeds_and_episodes() -> None:
    rivals = [run("rft", seed, rising(0, 1, 1, 1, 1)) for seed in (0, 2)]
    ours = [run("marft", seed, rising(0, 1, 2, 3, 4)) for seed in (0, 1, 2)]
    (line,) = maps.crossings(maps.finished([*rivals, *ours]), BUDGETS, "rft")
    assert line == ["h4", "marft less rft", "+0.0", "+10.0", "+20.0", "+30.0"]


def test_differences_of_three_seeds_have_intervals_in_points() -> None:
    runs = [run(name, s, rising(0, 0, 0, 0, n + (s == 2))) for name, n in (("rft", 1), ("marft", 4)) for s in range(3)]
    (line,) = maps.crossings(maps.finished(runs), BUDGETS, "rft")
    mean, low, high = re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", line[-1]).groups()  # type: ignore[union-attr]
    assert mean == "+30.0" and -100 <= float(low) < 30 < float(high) <= 100


def test_a_team_is_compared_with_the_single_agent_of_its_share() -> None:
    runs = [run("marft", s, rising(0, 1, 1, 1, n), env) for env, n in (("team-25", 5), ("own-25", 2)) for s in range(2)]
    cells = maps.finished([*runs, run("marft", 0, rising(0, 0, 0, 0, 0), "team-0")])
    (line,) = maps.teams(cells, dict.fromkeys(cells, 800))
    assert line == ["team-25", "marft, less own-25", "+0.0", "+0.0", "+0.0", "+30.0"]
    with pytest.raises(ConfigError, match="expected some"):
        maps.teams({"h4": {}}, BUDGETS)


def test_a_rival_without_others_is_no_empty_table() -> None:
    runs = [run("marft", 0, rising(0, 1, 1, 1, 1))]
    with pytest.raises(ConfigError, match=r"another algorithm than 'marft'.*--team"):
        maps.crossings(maps.finished(runs), BUDGETS, "marft")


def test_no_share_of_solved_episodes_ends_below_0() -> None:
    failed = [run("grpo", seed, rising(0, 0, 0, 0, 0)) for seed in range(3)]
    assert maps.said(maps.at(8, failed, 800)).startswith("0.000 [0.000, ")


def test_an_episode_that_an_outage_took_counts_for_no_seed() -> None:
    lost: Any = [(0, [1.0] * 4), (100, [1.0, None, 0.0, 0.0])]
    whole = [(0, [1.0] * 4), (100, [1.0, 1.0, 1.0, 0.0])]
    runs = [run("rft", 0, lost), run("rft", 1, whole), run("marft", 0, whole), run("marft", 1, whole)]
    cells = maps.finished(runs)
    assert maps.said(maps.at(8, cells["h4"]["rft"], 800)) == "0.500"  # three of six that both know
    (line,) = maps.crossings(cells, BUDGETS, "rft")
    assert line[-1] == "+16.7"


def test_the_figure_has_a_panel_for_each_environment(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    cells = maps.finished([run("rft", 0, rising(1, 2, 3, 4, 5), env) for env in ("h1", "h4", "h8")])
    maps.draw(cells, dict.fromkeys(cells, 800), tmp_path / "deep" / "map.svg", 2)
    text = (tmp_path / "deep" / "map.svg").read_text(encoding="utf-8")
    assert text.count('id="axes_') == 3
