"""``marft distill``: a team's successful episodes as one agent's."""

from __future__ import annotations

from pathlib import Path

import pytest

import marft_envs
from marft_algos.cli import main
from marft_algos.extras.distill import into_single
from marft_envs import ConfigError
from marft_envs.records import experts, trajectory


def team(id: str, n: int = 4, **kwargs: object) -> list[marft_envs.Episode]:
    env = marft_envs.make(id, **kwargs)
    return [experts.play(env, seed) for seed in range(n)]


def test_what_a_team_says_is_one_reply() -> None:
    env = marft_envs.make("math-solo-v0", levels=[0])
    for episode in team("math-dual-v0", levels=[0]):
        single = into_single(episode, env)
        assert single.success and single.task_id == episode.task_id
        assert [turn.text for turn in single.turns] == ["\n".join(turn.text for turn in episode.turns)]
        assert trajectory.replay(single).success


def test_a_team_with_tools_becomes_one_who_calls_them() -> None:
    env = marft_envs.make("tools-solo-v0", levels=[0, 1])
    for episode in team("tools-dual-v0", levels=[0, 1]):
        single = into_single(episode, env)
        assert single.success and single.metrics["calls"] == episode.metrics["calls"]
        planner, executor = episode.turns[:2]
        assert single.turns[0].text == f"{planner.text}\n{executor.text}"


@pytest.mark.parametrize("id", ["math-solo-v0", "tools-solo-v0"])
def test_one_agent_stays_what_it_is(id: str) -> None:
    for episode in team(id, 3, levels=[0]):
        single = into_single(episode, marft_envs.make(id, levels=[0]))
        assert [(turn.text, turn.result) for turn in single.turns] == [(t.text, t.result) for t in episode.turns]


def test_words_that_one_agent_cannot_say_are_left_out() -> None:
    episode = experts.play(marft_envs.make("math-dual-v0", levels=[0]))
    with pytest.raises(ConfigError, match="has 2 agents"):
        into_single(episode, marft_envs.make("math-dual-v0", levels=[0]))


def test_the_command_writes_what_sft_learns_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "team.jsonl"
    trajectory.write(file, team("math-dual-v0", 6, levels=[0]))
    argv = ["distill", str(file), "--into", "math-solo-v0", "--env-kwargs", "levels=[0]"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "6 of them fit into one agent (100%)" in said and f"--demonstrations {tmp_path / 'single.jsonl'}" in said
    assert len(list(trajectory.read(tmp_path / "single.jsonl"))) == 6
    assert main(argv) == 1 and "is there already" in capsys.readouterr().err
    assert main([*argv[:2], "--into", "tools-solo-v0", "--out", str(tmp_path / "x")]) == 1
    assert "problem not there" in capsys.readouterr().out
    assert main(["distill", str(tmp_path / "no"), "--into", "math-solo-v0"]) == 1
    assert "There are no demonstrations at" in capsys.readouterr().err
