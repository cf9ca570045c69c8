"""What an iteration's episodes have to show: visits to starts, distinct transcripts of a group."""

from __future__ import annotations

import warnings

import pytest

from helpers import teams
from marft_algos.training.session import Variety
from marft_algos.types import Trajectory


def groups(*of: list[Trajectory]) -> list[Trajectory]:
    for i, group in enumerate(of):
        for t in group:
            teams.put(t, group=i)
    return [t for group in of for t in group]


def episode(*texts: str) -> Trajectory:
    d = teams.episode([[f"a_{i}"] for i in range(len(texts))], tokens=[len(text) for text in texts])
    for t, text in zip(d.transitions, texts, strict=True):
        teams.say(t, text=text)
    return d


def test_groups_are_one_start_and_their_transcripts_are_compared_whole() -> None:
    group = [episode("4", "so 4"), episode("4", "so 5"), episode("4", "so 4"), episode("3", "so 4")]
    other = [episode("1", "1"), episode("2", "2"), episode("3", "3"), episode("4", "4")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Variety(4).measure(groups(group, other))
    assert found == {"prompts": 2, "distinct": 3.5}


def test_without_groups_every_episode_is_a_start() -> None:
    found = Variety(1).measure(groups([episode("4")], [episode("4")]))
    assert found["prompts"] == 2 and "distinct" not in found


def test_groups_that_repeat_themselves_are_told_once() -> None:
    counted = Variety(4)
    with pytest.warns(UserWarning, match=r"group of 4 episodes holds 1\.0 different transcripts.*--temperature"):
        counted.measure([episode("4")] * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counted.measure([episode("4")] * 4)
