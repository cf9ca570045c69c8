"""What a task may have beside the members that it must have, and what holds without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import marft_envs
from helpers.flex import PlainTask, flex, play, team
from marft_envs import Chain, Outcome, TurnRecord, check_env
from marft_envs.core.schedule import Rules, Schedule
from marft_envs.core.types import Episode, TaskDefaults, optional
from marft_envs.core.vector import VectorEnv
from marft_envs.testing.played import play as sampled_play

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class Full(PlainTask):
    """Has tools, shows words of two syllables as their first, and counts what was said when it is asked."""

    closed = False

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any]) -> None:
        super().reset(rng, options)
        self.said = 0

    def on_layer(self, turns: Sequence[TurnRecord]) -> Outcome:
        self.said += len(turns)
        return Outcome(results={turn.index: f"seen {turn.text}" for turn in turns}, metrics={"layers": 1.0})

    def tools(self, agent: str) -> list[dict[str, Any]]:
        return [LOOK] if agent == "a_0" else []

    def show(self, turn: TurnRecord, reader: str, sees: Sequence[int]) -> tuple[str, str] | None:
        if turn.text == "secret":
            return "", ""
        return None if turn.text == "plain" else (f"<|im_start|>{turn.text[:3]}", "")

    def final_metrics(self) -> Mapping[str, float]:
        return {"said": float(self.said), "layers": -1.0}

    def close(self) -> None:
        self.closed = True


def read(env: marft_envs.FlexEnv, agent: str) -> str:
    return "".join(message["content"] for message in env.messages(agent)[1:])


def test_tools_reach_the_driver_of_the_environment() -> None:
    env = flex(2, task=Full())
    env.reset(seed=0)
    assert env.tools == {"a_0": [LOOK], "b_0": []}
    vec = VectorEnv([lambda: flex(2, task=Full())])
    vec.reset([0])
    (request,) = vec.poll()
    assert request.tools == [LOOK]
    env.truncate("limit")
    assert env.episode.planned[0].tools == [LOOK]


def test_a_task_says_how_a_turn_stands_before_others_and_not_before_its_author() -> None:
    env = flex(2, Chain(), Full(), max_rounds=2, history="public")
    env.reset(seed=0)
    env.step("hello world")
    assert "[a]\n< |im_start|>hel" in read(env, "b_0") and "hello" not in read(env, "b_0")
    env.step("plain")
    assert "hello world" in read(env, "a_0") and "[b]\nplain" in read(env, "a_0")
    assert "seen plain" in read(env, "a_0"), "None is: as it was said, with what came of it"


def test_a_turn_that_is_left_out_is_no_edge_of_the_round() -> None:
    shown, hidden = (play(flex(2, task=Full()), say=lambda env, agent, w=word: w) for word in ("plain", "secret"))
    assert shown.episode.rounds[0].edges == [(0, 1)] and shown.episode.rounds[0].D == [[0, 1], [0, 0]]
    assert hidden.episode.rounds[0].edges == [] and hidden.episode.rounds[0].D == [[0, 0], [0, 0]]
    assert hidden.episode.turns[1].sees == (0,)


def test_final_metrics_go_behind_those_of_outcomes() -> None:
    env = play(flex(2, task=Full()))
    assert env.episode.metrics == {"said": 2.0, "layers": 1.0}
    assert list(env.episode.metrics) == ["said", "layers"]


def test_closing_an_environment_closes_its_task() -> None:
    env = flex(2, task=Full())
    env.close()
    assert env.task.closed  # type: ignore[attr-defined]
    flex(2).close()


def test_the_conformance_suite_holds_with_all_of_them() -> None:
    check_env(lambda: flex(2, Chain(), Full()))


def test_without_them_the_defaults_hold() -> None:
    plain = PlainTask()
    assert [optional(plain, name) for name in ("turn_limit", "worst_return", "show", "answer_key", "gold")] == [
        None
    ] * 5
    assert optional(plain, "copyable") is True and optional(plain, "tools")("a_0") == []
    assert play(flex(2)).episode.metrics == {} and flex(2).tools == {"a_0": [], "b_0": []}


def test_a_member_that_no_task_may_have_is_an_error() -> None:
    with pytest.raises(AttributeError, match="answer_keys"):
        optional(PlainTask(), "answer_keys")


def test_the_page_on_tasks_names_every_member(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs/custom-tasks.md").read_text(encoding="utf-8")
    for name in vars(TaskDefaults):
        assert name.startswith("_") or f"`{name}" in page, f"docs/custom-tasks.md does not name {name}"


def test_a_schedule_plays_without_pettingzoo() -> None:
    env = flex(3, task=PlainTask(round=lambda turns: Outcome(team_reward=1.0)), max_rounds=2)
    wanted = sampled_play(env, 3)
    dependency = Chain()
    dependency.bind(env.possible_agents)
    schedule = Schedule(Episode("custom", 3, "", tuple(team(3)), [], [], []), env.task, dependency, Rules(max_rounds=2))
    schedule.begin(np.random.default_rng(3), {})
    while not schedule.done:
        (agent,) = schedule.ready
        schedule.act(agent, wanted.turns[len(schedule.view.history)].text)
    record = schedule.record
    assert (record.turns, record.layers, record.rounds) == (wanted.turns, wanted.layers, wanted.rounds)
    assert (record.stop_reason, record.terminated) == ("max_rounds", True)
    assert [rewards[0] for rewards in schedule.rewards] == [1.0, 1.0]


@pytest.mark.parametrize("family", ["math", "code", "tools"])
def test_the_teams_of_all_families_are_teams(family: str) -> None:
    env = marft_envs.make(f"{family}-solo-v0")
    assert isinstance(env.task, marft_envs.ToolTask) == (family == "tools")
    teams: dict[str, marft_envs.Team | Callable[..., Any]] = __import__(
        f"marft_envs.families.{family}", fromlist=["TEAMS"]
    ).TEAMS
    solo = env.task.team if family == "tools" else teams["solo"]  # type: ignore[attr-defined]
    assert isinstance(solo, marft_envs.Team) and solo.agents == env.team


def test_names_that_are_not_there_are_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ToolEnv'"):
        marft_envs.ToolEnv  # noqa: B018
