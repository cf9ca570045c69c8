"""A boss whose words spawn workers: the roster, D as executed, bad words, replay, fork, many episodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import marft_envs
from helpers.flex import PlainTask, order, play
from marft_envs import (
    AgentSpec,
    ConfigError,
    DependencyError,
    FlexEnv,
    Outcome,
    Spawn,
    TurnRecord,
    as_dependency,
    check_env,
)
from marft_envs.core.routing import parse_assignments
from marft_envs.records.trajectory import from_dict, replay, to_dict

TEAM = [AgentSpec("boss_0", "boss", with_answer=True), *(AgentSpec(f"worker_{i}", "worker") for i in range(3))]


def spawning(words: str, dependency: Any = None, team: list[AgentSpec] = TEAM, **flex: Any) -> FlexEnv:
    """An episode in which the boss says these words first; everybody else says who it is."""
    task = PlainTask(round=lambda turns: Outcome(team_reward=1.0, terminated=True))
    env = FlexEnv(team, task, dependency or Spawn("boss_0"), **flex)

    def say(env: FlexEnv, agent: str) -> str:
        return words if not env.view.history else f"{agent} is done"

    return play(env, say=say)


@pytest.mark.parametrize(("words", "spawned"), [("a", 1), ("Let us share it.\nleft; right", 2), ("a; b ;c;", 3)])
def test_as_many_workers_act_as_the_words_have_assignments(words: str, spawned: int) -> None:
    env = spawning(words)
    assert order(env) == ["b", "w" * spawned, "b"] and env.episode.invalid == 0
    assert env.possible_agents == [agent.name for agent in TEAM], "the most there can be"
    turns = env.episode.turns
    assert [turn.agent for turn in turns[1:-1]] == [f"worker_{i}" for i in range(spawned)]
    assert all(turn.sees == (0,) for turn in turns[1:-1]) and turns[-1].sees == tuple(range(spawned + 1))
    executed = [[0] * 4 for _ in range(4)]
    for i in range(1, spawned + 1):
        executed[0][i] = executed[i][0] = 1
    assert executed == env.episode.rounds[0].D, "who was not spawned is in no edge"


def test_words_that_spawn_nobody_or_too_many_are_data() -> None:
    silent = spawning(" \n")
    assert order(silent) == ["b", "w", "b"] and silent.episode.invalid == 1
    assert silent.episode.invalid_routes == [{"round": 0, "turn": 0, "named": [], "reason": "no assignment"}]
    greedy = spawning("a;b;c;d")
    assert order(greedy) == ["b", "www", "b"] and greedy.episode.invalid_routes[0]["reason"].startswith(
        "boss_0 spawns 4"
    )
    assert order(spawning("", on_invalid="end_round")) == ["b"]
    fined = spawning("", Spawn("boss_0", default=2), on_invalid=0.25)
    assert order(fined) == ["b", "ww", "b"] and fined.episode.team_return == pytest.approx(1.0 - 0.25)


def test_another_joiner_and_dead_workers() -> None:
    team = [*TEAM, AgentSpec("editor_0", "editor")]
    env = spawning("a;b", Spawn("boss_0", joiner="editor_0"), team)
    assert order(env) == ["b", "ww", "e"] and env.episode.turns[-1].sees == (0, 1, 2)
    deadly = PlainTask(
        lambda turns: Outcome(dead=frozenset({"worker_0"}) if turns[0].agent == "boss_0" else frozenset())
    )
    env = play(FlexEnv(TEAM, deadly, Spawn("boss_0")), say=lambda env, agent: "a; b")
    assert [turn.agent for turn in env.episode.turns] == ["boss_0", "worker_1", "worker_2", "boss_0"]


def test_its_edges_are_known_beforehand() -> None:
    env = FlexEnv(TEAM, PlainTask(), Spawn("boss_0", workers=["worker_0", "worker_2"]))
    edges = {("boss_0", "worker_0"), ("boss_0", "worker_2"), ("worker_0", "boss_0"), ("worker_2", "boss_0")}
    assert env.dependency.possible_edges == edges and not env.dependency.is_static
    assert as_dependency(env.dependency) is env.dependency


@pytest.mark.parametrize(("bad", "error", "message"), [
    (lambda: Spawn("boss_0", default=0), ConfigError, "at least 1"),
    (lambda: FlexEnv(TEAM, PlainTask(), Spawn("bos_0")), DependencyError, "Did you mean 'boss_0'"),
    (lambda: FlexEnv(TEAM[:1], PlainTask(), Spawn("boss_0")), DependencyError, "needs workers"),
    (lambda: FlexEnv(TEAM, PlainTask(), Spawn("boss_0", workers=["boss_0"])), DependencyError, "needs workers"),
])  # fmt: skip
def test_teams_that_cannot_work_are_refused(bad: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bad()


def test_assignments_are_the_parts_of_the_last_line() -> None:
    assert parse_assignments("I think.\n\none; two \n") == ["one", "two"]
    assert parse_assignments("\n \n") is None and parse_assignments(" ; ") is None


def test_records_replay_and_forks_spawn_others() -> None:
    env = spawning("a; b")
    again = from_dict(to_dict(env.episode))
    assert replay(again, FlexEnv(TEAM, env.task, Spawn("boss_0"))).rounds == env.episode.rounds
    half = FlexEnv(TEAM, PlainTask(round=lambda turns: Outcome(terminated=True)), Spawn("boss_0"))
    half.reset(seed=0)
    for copy, words in zip(half.fork(2), ("a", "a; b; c"), strict=True):
        copy.step(words)
        assert len(copy.ready_agents) == words.count(";") + 1
    assert half.ready_agents == ["boss_0"], "copies do not touch the original"


def test_episodes_of_different_rosters_run_side_by_side() -> None:
    vec = marft_envs.make_vec("docs-boss-v0", num_envs=3, level=0)
    vec.reset(seeds=range(6))
    done = []
    while not vec.done:
        requests = vec.poll()
        plans = [rf"\boxed{{{'; '.join('12'[: 1 + r.episode % 2])}}}" for r in requests]
        done += vec.push(requests, plans)
    vec.close()
    spawned = {e.index: sum(t.role == "mapper" for t in e.turns) for e in done}
    assert spawned == {i: 1 + i % 2 for i in range(6)}


def _paid(turns: Sequence[TurnRecord]) -> Outcome:
    return Outcome(team_reward=1.0, terminated=True)


def test_it_keeps_the_rules() -> None:
    check_env(lambda: FlexEnv(TEAM, PlainTask(round=_paid), Spawn("boss_0")))
