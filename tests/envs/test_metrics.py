"""Numbers about how a team worked together, on episodes small enough to count by hand."""

from __future__ import annotations

import pytest

from helpers.flex import flex, play
from helpers.tools_tiny import call, tiny
from marft_envs import Episode, Independent, Router
from marft_envs.call_formats import written
from marft_envs.core import metrics as m
from marft_envs.families.tools import TEAMS, make, oracle
from marft_envs.records import experts
from marft_envs.testing.played import sampled


def routed(script: str) -> Episode:
    d = Router(lambda view: [f"{script[view.layer]}_0"] if view.layer < len(script) else [])
    return play(flex(3, d), say=lambda env, agent: "word").episode


@pytest.mark.parametrize(
    ("script", "loops"),
    [
        ("ababa", 0),  # twice there and back
        ("ababab", 1),
        ("abababab", 1),
        ("aabbaabbab", 1),  # an agent that acts twice in a row has kept control
        ("abcabcabc", 0),
        ("abababcacaca", 2),
    ],
)
def test_control_that_goes_back_and_forth_more_than_twice_is_a_loop(script: str, loops: int) -> None:
    assert m.handoff_loops(routed(script)) == loops


def test_the_rate_is_over_episodes() -> None:
    episodes = [routed("ababab"), routed("abababcacaca"), routed("abc"), routed("a")]
    assert m.handoff_loop_rate(episodes) == 0.5 and m.handoff_loop_rate([]) == 0.0


def test_rounds_and_simultaneous_turns_are_no_handoffs() -> None:
    rotation = play(flex(2, max_rounds=4), say=lambda env, agent: "word").episode
    assert [turn.agent for turn in rotation.turns] == ["a_0", "b_0"] * 4 and m.handoff_loops(rotation) == 0
    assert m.handoff_loops(play(flex(2, Independent(), max_rounds=4), say=lambda env, agent: "word").episode) == 0


def test_step_efficiency() -> None:
    assert m.step_efficiency(True, 4, 4) == m.step_efficiency(True, 4, 2) == m.step_efficiency(True, 0, 0) == 1.0
    assert m.step_efficiency(True, 4, 20) == pytest.approx(0.2) and m.step_efficiency(False, 4, 4) == 0.0


def test_tool_selection_counts_what_was_skipped_and_what_was_hoarded() -> None:
    gold = ["look", "look", "write"]
    assert m.tool_selection_accuracy(["write", "look", "look"], gold) == 1.0
    assert m.tool_selection_accuracy(["look"], gold) == pytest.approx(1 / 3), "skipped"
    assert m.tool_selection_accuracy([*gold, "look", "look", "drop"], gold) == 0.5, "hoarded"
    assert m.tool_selection_accuracy([], []) == 1.0 and m.tool_selection_accuracy([], gold) == 0.0


def test_tools_metrics_are_these_and_no_others() -> None:
    """What an episode's record says of itself is what anybody computes from the record."""
    for team in TEAMS:
        if team == "screened":
            continue  # its reader answers after every call: that hands nothing over, but the record cannot tell
        env = make(team, tiny())
        for seed in range(6):
            env.reset(seed=seed)
            while not env.done:
                experts.turn(env, {agent: sampled(seed)(env, agent) for agent in env.ready_agents})
            found = env.episode.metrics
            assert found["handoff_loops"] == m.handoff_loops(env.episode)
            assert found["handoff_loop_rate"] == float(m.handoff_loops(env.episode) > 0)


def test_a_productive_ping_pong_is_a_loop_and_costs_nothing() -> None:
    """Router and specialist pass control four times, one call each: a signal, not a penalty."""
    env = make("router", tiny())
    env.reset(seed=0, options={"task_id": "tiny/one"})
    for _ in range(3):
        experts.turn(env, {"router_0": "counting"})
        experts.turn(env, {"counting_0": written([call("add", name="a", by=1)])})
    experts.turn(env, {"router_0": written([call("finish")])})
    found = env.episode.metrics
    assert env.episode.success and found["handoff_loops"] == 1.0 and found["idle_loops"] == 0.0
    assert env.episode.info["terms"]["loops"] == 0.0
    assert found["step_efficiency"] == pytest.approx(1 / 3) and found["trajectory_score"] == 1.0
    assert found["tool_selection_accuracy"] == found["tool_selection_accuracy/counting_0"] == pytest.approx(1 / 3)


def test_scores_of_gold_of_faults_and_of_silence() -> None:
    env = make("solo", tiny())
    gold = oracle.play(env, options={"task_id": "tiny/two"}).metrics
    names = ("step_efficiency", "tool_selection_accuracy", "trajectory_score")
    assert [gold[name] for name in names] == [1.0, 1.0, 1.0]
    env.reset(seed=0, options={"task_id": "tiny/two"})
    experts.turn(
        env,
        {"agent_0": written([call("read_notes"), call("read_notes"), call("add", name="z"), call("add", name="b")])},
    )
    experts.turn(env, {"agent_0": "Done."})
    some = env.episode.metrics
    assert some["trajectory_score"] == 0.5, "of four, one was a duplicate and one failed"
    assert some["tool_selection_accuracy"] == 0.25 and some["step_efficiency"] == 0.0
    env.reset(seed=0, options={"task_id": "tiny/two"})
    experts.turn(env, {"agent_0": "I can do nothing."})
    assert [env.episode.metrics[name] for name in names] == [0.0, 0.0, 0.0]
