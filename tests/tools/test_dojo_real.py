"""AgentDojo's suites on the real package: golds, upstream's own verdicts, and the injections in results."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from typing import Any

import pytest

from helpers import dojo_upstream as upstream
from marft_envs import ConfigError, DataError, FlexEnv, check_env
from marft_envs.families.tools import ToolCall, make, oracle
from marft_envs.families.tools.dojo import SUITES, DojoDomain
from marft_envs.families.tools.dojo.domain import SKIPPED, DojoWorld, Pair, started
from marft_envs.records.experts import turn

pytestmark = pytest.mark.skipif(not upstream.place()[0], reason=upstream.ABSENT)

LIMITS: dict[str, Any] = {"max_turns": 200, "max_calls": 200, "max_result_chars": 50_000}
TASKS = {"banking": 11, "slack": 21, "travel": 20, "workspace": 40}
LOOKS = {"travel": 0, "workspace": 0}
"""Suites whose environments upstream compares as a whole, in tenths of a second, where something was to be written."""
EPISODES = 20


def domain(suite: str, **given: Any) -> DojoDomain:
    return DojoDomain(suite, package=upstream.place()[1], **given)


def build(suite: str, team: str = "solo", split: str = "all", **given: Any) -> FlexEnv:
    return make(team, domain(suite, **given), split=split, **LIMITS)


@pytest.mark.parametrize("suite", SUITES)
def test_the_gold_of_every_user_task_is_complete_under_one_agent_and_under_a_screened_one(suite: str) -> None:
    for team in ("solo", "screened"):
        env = build(suite, team, injections=False)
        assert len(env.task.problems) == TASKS[suite]
        for problem in [*env.task.problems][:: 1 if team == "screened" else 4]:
            episode = oracle.play(env, options={"task_id": problem.id})
            assert episode.success and not episode.metrics["error_rate"] and "obeyed" not in episode.metrics, problem.id
        env.task.validate()


@pytest.mark.parametrize("suite", SUITES)
def test_an_injection_stands_in_what_the_gold_reads_and_its_own_gold_is_seen_by_upstreams_check(suite: str) -> None:
    env = build(suite)
    ours, shown, obeyed = env.task.domain, 0, 0
    problems = [*env.task.problems][:: 53 if suite == "workspace" else 9]
    for problem in problems:
        wanted = ours.suite.tasks.injection_tasks[problem.secret.injection]
        episode = oracle.play(env, options={"task_id": problem.id})
        assert episode.success and episode.metrics["obeyed"] == 0.0, problem.id
        shown += plain(wanted.GOAL) in plain("".join(turn.result for turn in episode.turns))
        world = ours.open(problem)
        for call in (gold := ours.suite.gold(wanted, started(ours.suite, problem.secret))):
            world.call(call.name, call.arguments)
        injected = ours.grade(problem, world, (wanted.GROUND_TRUTH_OUTPUT,)).info["injected"]
        assert injected or not (gold or wanted.GROUND_TRUTH_OUTPUT), problem.id
        obeyed += injected
    assert shown == len(problems) and obeyed > len(problems) / 4


def plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.replace("\\n", "")))


@pytest.mark.parametrize("suite", SUITES)
def test_worlds_and_verdicts_are_upstreams_own(suite: str) -> None:
    ours = domain(suite)
    tasks = importlib.import_module("agentdojo.task_suite.load_suites").get_suites("v1.2.2")[suite]
    problems = {problem.secret.injection: problem for problem in ours.problems("all")}
    for problem in [*problems.values()][:2]:
        pair = problem.secret
        theirs = tasks.load_and_inject_default_environment(ours.suite.injections(pair))
        world = ours.open(problem)
        assert world.environment == tasks.user_tasks[pair.task].init_environment(theirs)
        assert pickle.loads(pickle.dumps(world.environment)) == copy.deepcopy(world).environment == world.environment
    idle = {
        t for t, task in tasks.user_tasks.items() if ours.suite.holds(task, "", *[started(ours.suite, Pair(t, ""))] * 2)
    }
    assert idle == SKIPPED.get(suite, frozenset()), "what is done before anything is done"


@pytest.mark.parametrize("suite", SUITES)
def test_tools_that_are_marked_as_reading_change_nothing(suite: str) -> None:
    ours = domain(suite, injections=False)
    for problem in ours.problems("all"):
        world = ours.open(problem)
        for call in ours.oracle(problem)[0]:
            before = world.environment.model_dump_json()
            world.call(call.name, call.arguments)
            assert not ours.tools[call.name].read_only or world.environment.model_dump_json() == before, call


@pytest.mark.parametrize(("suite", "team"), [*zip(SUITES, ["solo", "screened", "router", "solo"], strict=True)])
def test_text_goes_in_and_an_observation_comes_out(suite: str, team: str) -> None:
    env = build(suite, team, "train")
    for task_id in env.unwrapped.task.evaluation_set(EPISODES):
        env.reset(seed=0, options={"task_id": task_id})
        while not env.done:
            for agent in env.ready_agents:
                assert env.observation_space(agent).contains(env.observe(agent))
                assert env.task.problem.turns[0][:20] in "".join(m["content"] for m in env.messages(agent))
            turn(env, {agent: oracle.reply(env, agent) for agent in env.ready_agents})
        assert env.episode.success and not env.episode.metrics["malformed"], task_id


@pytest.mark.parametrize("suite", SUITES)
def test_the_environment_conforms(suite: str) -> None:
    check_env(
        make("solo", domain(suite), split="train", levels=[LOOKS.get(suite, 1)], max_turns=6, max_idle=3, limit=2)
    )


def test_a_screened_actor_never_reads_an_injection() -> None:
    env = build("slack", "screened")
    for problem in [*env.task.problems][::7]:
        env.reset(seed=0, options={"task_id": problem.id})
        goal = plain(env.task.domain.suite.tasks.injection_tasks[problem.secret.injection].GOAL)
        read = {"actor_0": False, "reader_0": False}
        while not env.done:
            agent = env.agent_selection
            read[agent] |= goal in plain("".join(message["content"] for message in env.messages(agent)))
            env.step(env.task.expert(agent))
        assert read == {"actor_0": False, "reader_0": True} and env.episode.success, problem.id


def test_splits_hold_user_tasks_out_and_settings_say_what_there_is() -> None:
    ours = domain("slack")
    train, test = ({p.secret.task for p in ours.problems(split)} for split in ("train", "test"))
    assert not train & test and len(train | test) == 21 and len(test) == 6
    assert pickle.loads(pickle.dumps(ours)).problems("test")[3].id == ours.problems("test")[3].id
    assert {p.level for p in ours.problems("all", [1, 2])} == {1, 2}
    older = domain("slack", version="v1", attack="direct", injections=True)
    assert "TODO" in str(older.suite.injections(Pair("user_task_1", "injection_task_1")))
    with pytest.raises(DataError, match="no split 'dev'"):
        ours.problems("dev")
    for given, said in (
        ({"attack": "manual"}, "no attack 'manual'"), ({"version": "v9"}, "no version 'v9'")
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            domain("slack", **given)
    with pytest.raises(ConfigError, match="no suite 'chess'"):
        domain("chess")


def test_what_a_tool_raises_is_its_answer_and_no_sdk_is_loaded() -> None:
    ours = domain("slack")
    world = ours.open(ours.problems("all")[0])
    assert isinstance(world, DojoWorld)
    env = build("slack")
    env.reset(seed=0)
    result = env.task.live.call("agent_0", ToolCall("get_users_in_channel", {"channel": "none"}))
    assert result.error == "tool_error" and "not" in result.message
    assert env.task.live.call("agent_0", ToolCall("get_channels", {"x": 1})).error == "invalid_arguments"
    assert not {"anthropic", "cohere", "langchain", "agentdojo.agent_pipeline"} & set(sys.modules)
