"""A user-agent, the messages to the user, and teams of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from helpers.tools_tiny import PROBLEMS, SPECIALISTS, TOOLS, Desk, call, grade, problem, said, start, tiny
from marft_envs import ConfigError, Layered, Router, check_env
from marft_envs.call_formats import parse
from marft_envs.core.types import AgentSpec
from marft_envs.families.tools import TEAMS, FunctionDomain, StateGrade, Team, ToolProblem, make, oracle
from marft_envs.records import experts


def shown(env: Any, agent: str) -> str:
    return "\n".join(message["content"] for message in env.messages(agent))


# The user-agent ------------------------------------------------------------------------------------------


def test_the_user_agent_reads_its_own_policy_and_not_the_agents() -> None:
    env = make("dual_control", tiny(user_policy="Be brief."))
    env.reset(seed=0)
    assert "Never reset a counter." in shown(env, "agent_0") and "Be brief." not in shown(env, "agent_0")
    assert "Never reset a counter." not in shown(env, "user_0") and "Policy:\nBe brief." in shown(env, "user_0")
    env = make("dual_control", tiny())
    env.reset(seed=0)
    assert "Policy:" not in shown(env, "user_0")


def test_a_user_without_tools_can_talk_and_finish() -> None:
    env = make("dual_control", tiny(user_tools=()))
    episode = oracle.play(env, options={"task_id": "tiny/two"})
    assert episode.success and episode.turns[0].agent == "user_0"
    assert env.unwrapped.task.tools("user_0")[0]["function"]["name"] == "finish"
    env.reset(seed=0, options={"task_id": "tiny/one"})
    experts.turn(env, {"user_0": said(call("add", name="a", by=3))})
    assert "not_permitted" in env.episode.turns[0].result
    check_env(lambda: make("dual_control", tiny(user_tools=()), max_turns=6))


def conversation(texts: list[str]) -> Any:
    env = make("dual_control", tiny())
    env.reset(seed=0, options={"task_id": "tiny/one"})
    for text in texts:
        if env.done:
            break
        experts.turn(env, {env.agent_selection: text})
    return env


def test_talk_with_new_words_is_not_idling() -> None:
    questions = [
        "counters", "Which one?", "the first", "By how much?", "by three", "Shall I?", "yes", "Really?", "yes please",
        "Now?",
    ]  # fmt: skip
    env = conversation([*questions, "Go on.", said(call("add", name="a", by=3)), "It is done.", said(call("finish"))])
    episode = env.episode
    assert env.done and episode.success and episode.stop_reason == "task" and len(episode.turns) == 14
    assert episode.metrics["idle_loops"] == 0.0 and episode.info["terms"]["loops"] == 0.0
    assert episode.team_return == pytest.approx(1.3)


def test_talk_that_repeats_itself_is() -> None:
    env = conversation(["Help me!", "How?"] * 3 + ["help me", "How?!"] * 3)
    assert env.done and env.episode.stop_reason == "stalled" and len(env.episode.turns) == 2 + 8
    assert env.episode.metrics["idle_loops"] == 1.0 and env.episode.team_return < 0


def test_talk_among_the_members_of_a_team_is_idling_as_before() -> None:
    env = make("router", tiny())
    env.reset(seed=0)
    for number in range(4):
        experts.turn(env, {"router_0": f"counting, please, {number}"})
        experts.turn(env, {"counting_0": f"I have nothing, {number}."})
    assert env.done and env.episode.stop_reason == "stalled"


# Messages to the user -----------------------------------------------------------------------------------


def informed(state: Desk, problem: ToolProblem, messages: tuple[str, ...]) -> StateGrade:
    done = any("seven" in text for text in messages)
    return StateGrade(done, float(done), {"messages": list(messages)})


ASKED = [
    ToolProblem(
        "tiny/asked", ("How many are there?",), 1, secret={"calls": [[call("read_notes")]], "says": "There are seven."}
    )
]


@pytest.mark.parametrize("team", TEAMS)
def test_a_grade_can_ask_for_the_messages_to_the_user(team: str) -> None:
    env = make(team, tiny(problems=ASKED, grade=informed))
    env.task.validate()
    assert oracle.play(env).success
    env.reset(seed=0)
    while not env.done:
        experts.turn(env, dict.fromkeys(env.ready_agents, ""))
    assert not env.episode.success and env.episode.team_return == 0, "silence tells nobody anything"


def messages_of(team: str, script: list[str]) -> list[str]:
    env = make(team, tiny(problems=ASKED, grade=informed))
    env.reset(seed=0)
    for text in script:
        experts.turn(env, {env.agent_selection: text})
    assert env.done
    return env.episode.info["grade"]["messages"]


def test_only_words_that_go_to_the_user_count() -> None:
    finish = said(call("finish"))
    assert messages_of("solo", ["<think>seven?</think>It is seven."]) == ["It is seven."]
    assert messages_of("solo", [f"seven {said(call('read_notes'))}", f"So: seven.\n{finish}"]) == ["So: seven."]
    assert messages_of("solo", ['```json\n{"name": "read_notes", "arguments": {"text": "seven"}}\n```', finish]) == []
    assert messages_of("dual", ["It is seven.", finish]) == [], "a plan is for the executor"
    assert messages_of("router", ["counting: seven?", "seven", "nobody knows"]) == ["nobody knows"]
    assert messages_of("dual_control", ["Is it seven?", f"seven {said(call('read_notes'))}", "Eight.", finish]) == [
        "Eight."
    ]


def test_messages_survive_forks_and_count_over_user_turns() -> None:
    two = problem("asked", ("How many?", "Sure?"), [], [])
    env = make("solo", tiny(problems=[two], grade=informed))
    env.reset(seed=0)
    experts.turn(env, {"agent_0": "It is seven."})
    fork = env.fork()[0]
    for one, text, count in ((fork, "Yes.", 2), (env, "", 1)):
        experts.turn(one, {"agent_0": text})
        assert one.episode.success and len(one.episode.info["grade"]["messages"]) == count


def test_words_beside_calls() -> None:
    assert parse(f"Yes {said(call('a'))} sir").words == "Yes  sir" and parse(said(call("a"))).words == ""
    for text, words in (("<think>a</think> b", "b"), ("", ""), ("Take {1, 2}.", "Take {1, 2}.")):
        assert parse(text).words == words


# Teams and states of one's own ----------------------------------------------------------------------------


def relay(**changes: Any) -> Team:
    agents = (AgentSpec("reader_0", "reader", "You read."), AgentSpec("writer_0", "writer", "You write.", True))
    settings: dict[str, Any] = {
        "agents": agents,
        "holds": {"reader_0": frozenset({"read_counter", "read_notes"}), "writer_0": frozenset({"add", "write_note"})},
        "dependency": lambda: Layered([["reader_0"], ["writer_0"]]),
        "enders": frozenset({"writer_0"}),
    }
    return Team(**{**settings, **changes})


def test_a_team_of_ones_own_plays() -> None:
    env = make(relay(), tiny(), history="public")
    assert oracle.play(env, options={"task_id": "tiny/two"}).success
    env.reset(seed=0, options={"task_id": "tiny/one"})
    experts.turn(env, {"reader_0": said(call("read_counter", name="a"))})
    assert "read_counter: 0" in shown(env, "writer_0") and "write_note" not in str(env.tools["reader_0"])
    experts.turn(env, {"writer_0": said(call("add", name="a", by=3)) + said(call("finish"))})
    assert env.episode.success and env.episode.rounds[0].D == [[0, 1], [0, 0]]


@pytest.mark.parametrize(("changes", "says"), [
    ({"agents": ()}, "different names"), ({"enders": frozenset()}, "No agent can end"),
    ({"enders": frozenset({"writer"})}, "writer_0"), ({"holds": {"reader_0": frozenset({"read_notez"})}}, "read_notes"),
    ({"user": "nobody"}, "not in the team"), ({"transfers": {"reader_0": ("writer",)}}, "writer_0"),
])  # fmt: skip
def test_a_team_that_cannot_work_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(relay(**changes), tiny())


@dataclass
class Office:
    rooms: Any = None


@pytest.mark.parametrize("state", [Office, Office(), lambda: Desk(), lambda problem, more: Desk()])
def test_what_makes_no_state_of_a_problem_is_refused_at_once(state: Any) -> None:
    with pytest.raises(ConfigError, match="the problem"):
        FunctionDomain(TOOLS, PROBLEMS, grade, state=state, specialists=SPECIALISTS)
    assert FunctionDomain(TOOLS, PROBLEMS, grade, state=start).open(PROBLEMS[0]).state == Desk()


def test_a_router_of_ones_own_sees_what_came_of_the_turn() -> None:
    seen = []

    def who(view: Any) -> list[str]:
        if view.layer:
            seen.append({name: view.outcome.info[name] for name in ("called", "failed", "handoff", "over")})
            if seen[-1]["over"]:
                return []
        return ["writer_0"]

    env = make(relay(dependency=lambda: Router(who)), tiny())
    env.reset(seed=0, options={"task_id": "tiny/one"})
    for text in (said(call("add", name="z")), said(call("add", name="a", by=3)), "Done."):
        experts.turn(env, {"writer_0": text})
    assert env.episode.success
    assert [(f["called"], f["failed"], f["over"]) for f in seen] == [(True, True, False), (True, False, False)]


def test_a_planner_advises_the_agent_whenever_the_user_has_spoken() -> None:
    env = make("service", tiny())
    env.reset(seed=0, options={"task_id": "tiny/one"})
    calls = said(call("peek"))
    for text in ("Please.", "peek first", calls, "Well?", "Go on.", "then add", "Done."):
        experts.turn(env, {env.agent_selection: text})
    turns = env.episode.turns
    assert [turn.agent for turn in turns] == [
        "user_0", "planner_0", "agent_0", "agent_0", "user_0", "planner_0", "agent_0",
    ]  # fmt: skip
    assert [turn.sees for turn in turns] == [(), (0,), (0, 1), (0, 1, 2), (0, 3), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5)]
    assert [agent.trained for agent in env.team] == [False, True, True]
    assert oracle.play(make("service", tiny()), options={"task_id": "tiny/two"}).success
    check_env(lambda: make("service", tiny(), max_turns=6))


def test_a_users_end_marker_ends_its_turn() -> None:
    env = make("dual_control", tiny(), end_marker="###STOP###")
    assert "Say ###STOP### when you are done." in env.profile("user_0").prompt
    env.reset(seed=0, options={"task_id": "tiny/one"})
    for text in ("Add.", "How much?", "Thanks. ###STOP###"):
        assert not env.done
        experts.turn(env, {env.agent_selection: text})
    assert env.done and env.episode.stop_reason == "task"
    with pytest.raises(ConfigError, match="teams with a user-agent"):
        make("solo", tiny(), end_marker="###STOP###")


# Skills ----------------------------------------------------------------------------------------------


def test_an_agent_reads_a_skill_when_it_needs_it() -> None:
    text = "Peek first; then add what is missing."
    profiles: Any = {"agent": {"skills": {"adding": {"when": "a counter is too low", "text": text}}}}
    env = make("solo", tiny(), profiles=profiles)
    env.reset(seed=0, options={"task_id": "tiny/one"})
    assert "a counter is too low" in shown(env, "agent_0") and text not in shown(env, "agent_0")
    experts.turn(env, {"agent_0": said(call("read_skill", name="adding"))})
    assert text in shown(env, "agent_0")
    experts.turn(env, {"agent_0": said(call("read_skill", name="taking"), call("finish"))})
    episode = env.episode
    assert "no such skill" in episode.turns[1].result
    assert (episode.metrics["skill_words"], episode.metrics["calls"]) == (7.0, 0.0)
    check_env(lambda: make("solo", tiny(), profiles=profiles, max_turns=6))
    for wrong in ({"adding": "text"}, [], {"adding": {"when": "", "text": "x"}}):
        with pytest.raises(ConfigError, match=r"skill"):
            make("solo", tiny(), profiles={"agent": {"skills": wrong}})  # type: ignore[dict-item]


def test_a_domains_tool_cannot_have_the_name_of_the_one_that_reads_skills() -> None:
    def read_skill(state: Desk) -> str:
        """Reads something else."""
        return "else"

    domain = FunctionDomain([read_skill], PROBLEMS[:1], grade, state=start)
    profiles: Any = {"agent": {"skills": {"adding": {"when": "w", "text": "t"}}}}
    with pytest.raises(ConfigError, match="'read_skill' has the name of the tool that reads skills"):
        make("solo", domain, profiles=profiles)
