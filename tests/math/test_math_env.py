"""Math teams: who answers, what is graded, the agents' prompts, profiles in the released format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import marft_envs
from marft_envs import FlexEnv
from marft_envs.core.teams import load_profiles
from marft_envs.errors import ConfigError, DataError
from marft_envs.families.math import grader
from marft_envs.families.math.teams import TEAMS
from marft_envs.workers.untrusted import WorkerPool

LEVEL0 = {"levels": [0], "split": "test"}


def play(env: FlexEnv, replies: dict[str, str], seed: int = 0) -> FlexEnv:
    """Plays an episode in which every role has one thing to say; ``GOLD`` stands for the gold answer."""
    env.reset(seed=seed)
    while not env.done:
        role = env.profile(env.agent_selection).role
        env.step(replies.get(role, "").replace("GOLD", env.task.gold()))
    return env


@pytest.mark.parametrize("team", TEAMS)
def test_the_answering_agents_box_decides_and_nobody_elses(team: str) -> None:
    env = marft_envs.make(f"math-{team}-v0", **LEVEL0)
    roles = {agent.role: agent.with_answer for agent in env.team}
    right = {role: r"\boxed{GOLD}" if answers else "arithmetic" for role, answers in roles.items()}
    wrong = {role: r"arithmetic \boxed{GOLD}" if not answers else r"\boxed{-1}" for role, answers in roles.items()}
    assert play(env, right).episode.team_return == 1.0
    assert env.episode.success is True and env.episode.info["status"] == "correct"
    assert play(env, wrong).episode.team_return == 0.0
    assert env.episode.success is False and env.episode.info["status"] == "wrong"
    assert env.episode.metrics["parsed"] == 1.0


@pytest.mark.parametrize(("reply", "status"), [("no box", "no_box"), (r"\boxed{12", "unclosed_box"), ("", "no_box")])
def test_replies_without_an_answer_score_zero_under_a_named_status(reply: str, status: str) -> None:
    env = play(marft_envs.make("math-dual-v0", **LEVEL0), {"reasoner": "hm", "actor": reply})
    assert env.episode.team_return == 0.0
    assert env.episode.metrics["parsed"] == 0.0
    assert env.infos["actor_0"]["status"] == status


def test_the_actor_reads_the_reasoner_and_the_reasoner_nobody() -> None:
    env = marft_envs.make("math-dual-v0", **LEVEL0)
    env.reset(seed=3)
    problem = env.task.problem.problem
    assert env.messages("reasoner_0")[-1]["content"] == problem
    env.step("first add")
    assert env.messages("actor_0")[-1]["content"] == f"{problem}\n\n[reasoner]\nfirst add"


def test_only_the_specialist_that_was_named_acts() -> None:
    env = marft_envs.make("math-router-v0", **LEVEL0)
    env.reset(seed=0)
    env.step("This is one for algebra.")
    assert env.ready_agents == ["algebra_0"]
    env.step(rf"\boxed{{{env.task.gold()}}}")
    assert env.done and env.episode.success


def test_an_unreadable_routing_goes_to_the_default_and_is_counted() -> None:
    env = marft_envs.make("math-router-v0", **LEVEL0)
    env.reset(seed=0)
    env.step("?")
    assert env.ready_agents == ["arithmetic_0"] and env.episode.invalid == 1


def test_the_return_of_several_rounds_is_the_score_of_the_last_answer() -> None:
    env = marft_envs.make("math-dual-v0", rounds=3, **LEVEL0)
    env.reset(seed=0)
    gold = env.task.gold()
    for answer in (gold, "-1", gold):
        env.step("go on")
        env.step(rf"\boxed{{{answer}}}")
    assert env.done and len(env.episode.rounds) == 3
    assert [layer.team_reward for layer in env.episode.layers] == [0.0, 1.0, 0.0, -1.0, 0.0, 1.0]
    assert env.episode.team_return == 1.0
    assert not any("right" in message["content"] for message in env.messages("actor_0"))


def test_the_oracle_says_whether_it_was_right_and_stops_when_it_was() -> None:
    env = marft_envs.make("math-solo-v0", rounds=3, oracle=True, **LEVEL0)
    env.reset(seed=0)
    env.step(r"\boxed{-1}")
    assert "wrong" in env.messages("actor_0")[-1]["content"]
    env.step(rf"\boxed{{{env.task.gold()}}}")
    assert env.done and env.episode.success and len(env.episode.rounds) == 2


def test_profiles_in_the_released_format_become_the_team(tmp_path: Path) -> None:
    released = [
        {"role": "reasoner", "prompt": "<|im_start|>system: Guide the Actor.<|im_end|>\n", "with_answer": False},
        {"role": "actor", "prompt": "<|im_start|>system: Answer in \\boxed{{}}.<|im_end|>\n", "with_answer": True},
    ]
    file = tmp_path / "profiles.json"
    file.write_text(json.dumps(released), encoding="utf-8")
    env = marft_envs.make("math-dual-v0", profiles=file, **LEVEL0)
    assert [agent.prompt for agent in env.team] == ["Guide the Actor.", r"Answer in \boxed{}."]
    assert play(env, {"actor": r"\boxed{GOLD}"}).episode.success


def test_a_profile_may_stand_for_several_agents() -> None:
    profiles = [
        {"role": "solver", "prompt": "Solve.", "count": 2},
        {"role": "actor", "prompt": "Answer.", "with_answer": True},
    ]
    assert [agent.name for agent in load_profiles(profiles)] == ["solver_0", "solver_1", "actor_0"]
    for wrong in (0, -1, "2", True, 1.5):
        with pytest.raises(ConfigError, match=r"entry 0: count is .*1 or more"):
            load_profiles([{**profiles[0], "count": wrong}, profiles[1]])


def test_bad_profiles_and_data_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="with_answer"):
        load_profiles([{"role": "reasoner", "prompt": "think"}])
    with pytest.raises(ConfigError, match="entry 0"):
        load_profiles([{"role": "reasoner"}])
    with pytest.raises(ConfigError, match="JSON"):
        load_profiles(tmp_path / "absent.json")
    with pytest.raises(DataError, match="procedural"):
        marft_envs.make("math-dual-v0", data="procedurl")
    with pytest.raises(ConfigError, match="levels"):
        marft_envs.make("math-dual-v0", level=[0])
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "1+1", "answer": ""}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 1"):
        marft_envs.make("math-dual-v0", data=rows)


def test_d_can_be_swapped_by_name_by_layers_and_by_matrix() -> None:
    for dependency, sees in (("independent", ()), ("chain", (0,)), ([[0, 1], [0, 0]], (0,))):
        env = play(marft_envs.make("math-dual-v0", dependency=dependency, **LEVEL0), {})
        assert env.episode.turns[1].sees == sees
    env = play(marft_envs.make("math-dual-v0", dependency=[["actor_0"], ["reasoner_0"]], **LEVEL0), {})
    assert [turn.agent for turn in env.episode.turns] == ["actor_0", "reasoner_0"]


def test_the_evaluation_set_has_every_problem_at_most_once_and_none_of_training() -> None:
    test = marft_envs.make("math-dual-v0", **LEVEL0).task
    train = marft_envs.make("math-dual-v0", levels=[0], split="train").task
    panel = test.evaluation_set(500)
    assert len(panel) == len(set(panel)) == 500
    statements = {problem.problem for problem in train.problems}
    assert not any(test.problems.get(task_id).problem in statements for task_id in panel)


def test_a_timeout_of_the_grader_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text('{"problem": "Add 1 to 9.", "answer": "5\\\\cdot 9"}\n', encoding="utf-8")
    env = marft_envs.make("math-solo-v0", data=str(tmp_path / "sums.jsonl"))
    counted = []
    monkeypatch.setattr("marft_envs.workers.untrusted.WALL", 30_000.0)  # the CPU time is up first
    with WorkerPool("marft_envs.families.math._verify_worker:verify", deadline=0.001) as hurried:
        for pool in (hurried, grader._pool()):
            monkeypatch.setattr(grader, "_pool", lambda pool=pool: pool)
            env.reset(seed=0)
            env.step(r"\boxed{\sum_{n=1}^{9} n}")
            counted.append((env.episode.metrics["timeout"], env.episode.success))
    assert counted == [(1.0, False), (0.0, True)]


def test_profiles_by_agent_or_role_replace_the_agents_prompts() -> None:
    env = marft_envs.make("math-debate-v0", profiles={"solver": "Solve.", "solver_1": "Doubt."}, **LEVEL0)
    assert [agent.prompt for agent in env.team[:3]] == ["Solve.", "Doubt.", "Solve."]
    assert env.team[3].prompt == TEAMS["debate"].agents[3].prompt and env.team[3].with_answer
    assert [len(layer) for layer in rounds_of(env)] == [3, 1], "D stays"
    with pytest.raises(ConfigError, match=r"no agent or role 'sovler'.*'solver'"):
        marft_envs.make("math-debate-v0", profiles={"sovler": "x"}, **LEVEL0)


def rounds_of(env: FlexEnv) -> list[list[str]]:
    """The layers of a first round, by who acts in them."""
    env.reset(seed=0)
    layers = []
    while not env.done:
        layers.append(list(env.ready_agents))
        for agent in layers[-1]:
            env.select(agent)
            env.step(r"\boxed{1}")
    return layers


def test_one_class_of_teams_serves_every_family() -> None:
    from marft_envs.families import code, math, tools

    assert math.Team is code.Team is tools.Team is marft_envs.Team
    assert all(isinstance(team, marft_envs.Team) for team in (*math.TEAMS.values(), *code.TEAMS.values()))
