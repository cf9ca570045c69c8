"""Rewards are ordered under every team: gold, a part of it, silence, and farmers who work without getting anywhere.

A sample of the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.marks import rest_in_ci
from marft_envs.families.tools import TEAMS, ToolCall, ToolProblem
from marft_envs.families.tools.bfcl import BfclDomain, grading
from marft_envs.families.tools.depot import Depot
from marft_envs.families.tools.tau import TauDomain
from tests.helpers import bfcl_upstream as upstream
from tests.helpers.tools_ordering import Shape

LEVELS = range(6)


def expect_ordered(shape: Shape, problems: Sequence[ToolProblem], most_parts: int = 3) -> int:
    """Returns how many parts of golds were compared."""
    compared = 0
    for problem in problems:
        parts, wrong = shape.judged(problem, most_parts)
        assert not wrong, (problem.id, wrong)
        compared += max(parts, 0)
    return compared


def depot(team: str) -> Shape:
    return Shape(team, Depot(dual=team == "dual_control"), "test", levels=LEVELS)


def of_level(shape: Shape, level: int, count: int) -> list[ToolProblem]:
    found = [problem for problem in shape.task.problems if problem.level == level]
    return found[:: len(found) // count][:count]


@pytest.mark.parametrize("team", rest_in_ci(TEAMS, 3))
def test_depot_gold_part_silence_farmers_at_every_level(team: str) -> None:
    shape = depot(team)
    for level in LEVELS:
        compared = expect_ordered(shape, of_level(shape, level, 4))
        assert compared >= 4 or level in (0, 1, 3), "levels 2, 4 and 5 take two writes or more"


@pytest.mark.parametrize("team", rest_in_ci(TEAMS, 3))
def test_tau_gold_part_silence_farmers(team: str, shared_data: Path) -> None:
    folder = shared_data / "tools" / "tau"
    if not folder.is_dir():
        pytest.skip(f"no retail files at {folder.name}/ in the data folder")
    compared = 0
    for split, step in (("train", 33), ("dev", 5)):
        shape = Shape(team, TauDomain(folder), split)
        compared += expect_ordered(shape, list(shape.task.problems)[::step])
    assert compared > 3


@pytest.mark.skipif(not upstream.place()[0], reason=upstream.ABSENT)
@pytest.mark.parametrize("team", [team for team in TEAMS if team != "dual_control"])  # its user would have no tools
def test_bfcl_gold_part_silence_farmers(team: str) -> None:
    shape = Shape(team, BfclDomain(package=upstream.place()[1]), "all", (grading._copied, grading._same))
    assert expect_ordered(shape, list(shape.task.problems)[::53]) > 10


def test_the_comparison_sees_a_farmer_with_a_reward_and_a_part_without() -> None:
    """What the tests above would say if idle calls had a reward, or work in part had none."""
    shape = depot("solo")
    problem = of_level(shape, 5, 1)[0]
    assert shape.judged(problem)[0] == 5 and shape.farmers(problem).keys() == {"reads", "duplicates", "handovers"}
    shape.plays(problem, [shape._harmless(problem)])
    assert sum(shape.task.tally.calls.values()) >= 8 and not shape.task.tally.changed, (
        "a farmer must have something to do"
    )
    paid = shape.plays
    shape.plays = lambda p, turns: paid(p, turns) + (turns != shape.gold(p)) * 0.5  # type: ignore[method-assign]
    assert [line.split()[0] for line in shape.judged(problem)[1]] == ["reads", "duplicates"]
    shape.plays = lambda p, turns: paid(p, turns) if turns == shape.gold(p) else 0.0  # type: ignore[method-assign]
    assert len(shape.judged(problem)[1]) == 5


def test_a_part_is_gold_up_to_a_write_that_is_not_the_last() -> None:
    shape = depot("router")
    problem = of_level(shape, 2, 1)[0]
    [calls] = shape.gold(problem)
    [(first, _), (last, _)] = shape.writes(problem)
    assert not shape.domain.tools[calls[first - 1].name].read_only and last == len(calls)
    shape.plays(problem, [calls[:first]])
    made = [entry.result.call for entry in shape.task.live.log]
    assert made == [*calls[:first], ToolCall("finish", {})]
    assert 0 < shape.env.episode.metrics["progress"] < 1
