"""The depot under every team: the oracle scores 1, and nothing that achieves less scores more."""

from __future__ import annotations

import pytest

import marft_envs
from helpers.tools_tiny import tiny
from marft_envs.call_formats import written
from marft_envs.call_formats.call import ToolCall
from marft_envs.errors import ConfigError
from marft_envs.families.tools.oracle import play

TEAMS = ("solo", "dual", "trio", "router", "supervisor", "debate", "dual_control", "desks")


@pytest.mark.parametrize("team", TEAMS)
def test_the_oracle_of_every_team_scores_1_at_every_level(team):
    for level in range(6):
        env = marft_envs.make(f"tools-{team}-v0", split="test", levels=[level], limit=5)
        for problem_id in env.task.evaluation_set(5):
            episode = play(env, options={"task_id": problem_id})
            assert episode.success and not env.task.live.broken, (problem_id, episode.stop_reason)


@pytest.mark.parametrize("level", [1, 4])
def test_neither_desk_sees_what_the_other_knows_but_by_its_words(level):
    """Not the request, nor a result: whatever of them is not in somebody's words reaches one desk alone."""
    env = marft_envs.make("tools-desks-v0", split="test", levels=[level])
    tools = [env.task.holds[name] for name in ("front_0", "back_0")]
    assert not tools[0] & tools[1] and tools[0] | tools[1] == env.task.domain.tools.keys()
    for seed in range(5):
        env.reset(seed=seed)
        while not env.done:
            agent = env.agent_selection
            told = "\n".join(message["content"] for message in env.messages(agent))
            assert (env.task.problem.turns[0] in told) == (agent == "front_0")
            others = [turn for turn in env.view.history if turn.agent != agent]
            assert all(turn.result not in told for turn in others if turn.result)
            assert all((turn.text in told) == (not turn.result) for turn in others)
            env.step(env.task.expert(agent))
        assert env.episode.success
    with pytest.raises(ConfigError, match="names no specialists"):
        marft_envs.make("tools-desks-v0", domain=tiny(specialists={}))


def return_of(env, problem, replies):
    """The team's reward where a single agent says these things, and then ends."""
    env.reset(seed=0, options={"task_id": problem.id})
    for text in (*replies, written([ToolCall("finish", {})])):
        if not env.done:
            env.step(text)
    assert env.done
    return env.episode.team_return


@pytest.mark.parametrize("level", (2, 3, 4, 5))
def test_gold_scores_more_than_a_part_of_it_and_that_more_than_nothing_or_farming(level):
    env = marft_envs.make("tools-solo-v0", split="test", levels=[level], limit=25)
    farmed = [
        [written([ToolCall("get_order", {"order": order})]) for order in range(10, 40)],
        [written([ToolCall("calculate", {"expression": "1+1"})])] * 20,
        [written([ToolCall("find_customer", {"name": "a"})]), written([ToolCall("get_stock", {"item": "lamp"})])] * 10,
    ]
    for problem_id in env.task.evaluation_set(25):
        problem = env.task.problems.get(problem_id)
        calls = env.task.domain.oracle(problem)[0]
        writes = [call for call in calls if not env.task.domain.tools[call.name].read_only]
        gold = return_of(env, problem, [written([call]) for call in calls])
        null = return_of(env, problem, [])
        assert gold > null == 0.0, problem_id
        if len(writes) > 1:
            partial = return_of(env, problem, [written([call]) for call in calls[:-1]])
            assert gold > partial > null, problem_id
        for farmer in farmed:
            assert return_of(env, problem, farmer) <= null, problem_id
