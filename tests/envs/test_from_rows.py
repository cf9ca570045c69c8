"""Rows and a reward function are an environment: `marft_envs.from_rows`."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import marft_envs
from marft_envs import AgentSpec, ConfigError, DataError, from_rows
from marft_envs.records import trajectory

ROWS: list[dict[str, Any]] = [{"problem": f"What is {i}+1?", "answer": i + 1, "unit": "apples"} for i in range(8)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def in_units(answer: str, row: dict[str, Any]) -> dict[str, Any]:
    right = str(row["answer"]) in answer.split()
    return {"reward": right + 0.5 * (row["unit"] in answer), "success": right, "words": len(answer.split())}


def played(make_env: Callable[[], Any], *texts: str, **options: Any) -> marft_envs.Episode:
    env = make_env()
    env.reset(seed=0, options=options or None)
    for text in texts:
        env.step(text)
    return env.episode


@pytest.mark.parametrize(
    ("reward", "said", "score", "success", "metrics"),
    [
        ("em", "The 1.", 1.0, True, {"em", "f1", "substring"}),
        ("substring", "Not 2", 0.0, False, {"em", "f1", "substring"}),
        ("f1", "It is 1", 0.5, False, {"em", "f1", "substring"}),
        (in_units, "1 apples", 1.5, True, {"words"}),
        (lambda answer, row: answer == "1", "1", 1.0, True, set()),
        (lambda answer, row: answer == "1", "2", 0.0, False, set()),
        (lambda answer, row: -0.25, "x", -0.25, None, set()),
        ("examples.row_reward:close", "2", 0.5, None, set()),
    ],
)
def test_the_answer_is_rewarded_by_name_or_by_a_function_of_the_row(
    reward: Any, said: str, score: float, success: bool | None, metrics: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(reward, str) and ":" in reward:
        monkeypatch.setitem(__import__("sys").modules, "examples.row_reward", CLOSE)
    ids = [{**row, "id": f"sum/{i}"} for i, row in enumerate(ROWS)]
    episode = played(from_rows(ids, reward=reward), said, task_id="sum/0")
    assert (episode.reward, episode.success, set(episode.metrics)) == (score, success, metrics)
    assert episode.score == (score if success is None else float(success)) and episode.answer == said


@pytest.mark.parametrize("reward", ["substring", lambda answer, row: float(str(row["answer"]) in answer)])
def test_with_several_rounds_the_last_answer_counts(reward: Any) -> None:
    """``max_rounds`` was ignored: an episode ended with its first round, so that nobody could debate."""
    make_env = from_rows(ROWS[:1], reward=reward, team=2, max_rounds=3)
    debate = played(make_env, "think", "It is 1.", "think again", "It is 2.", "and again", "No, 1.")
    assert [turn.round for turn in debate.turns] == [0, 0, 1, 1, 2, 2] and debate.stop_reason == "max_rounds"
    assert (debate.reward, debate.score) == (1.0, 1.0)
    assert [layer.team_reward for layer in debate.layers] == [0, 1, 0, -1, 0, 1]
    worse = played(make_env, "think", "It is 1.", "think again", "It is 2.", "and again", "Not 3.")
    assert (worse.reward, worse.score) == (0.0, 0.0)


class CLOSE:
    """Stands for a module."""

    __name__ = "examples.row_reward"

    @staticmethod
    def close(answer: str, row: dict[str, Any]) -> float:
        return 1 / (1 + abs(float(answer) - row["answer"]))


@pytest.mark.parametrize(
    "wrong", [None, "yes", float("nan"), {"score": 1.0}, {"reward": 1.0, "why": "so"}, {"reward": None}]
)
def test_what_is_no_reward_is_an_error_that_shows_it(wrong: Any) -> None:
    def mine(answer: str, row: dict[str, Any]) -> Any:
        return wrong

    with pytest.raises(
        ConfigError, match=r"The reward function mine returned .*Expected a finite number, True or False"
    ):
        played(from_rows(ROWS, reward=mine), "1")


SPEC = AgentSpec("checker_0", "checker", "Check it.", with_answer=True, trained=False)


@pytest.mark.parametrize(
    ("team", "names", "answers"),
    [
        (1, ["agent_0"], "agent_0"),
        (3, ["helper_0", "helper_1", "agent_0"], "agent_0"),
        (["planner", "solver"], ["planner_0", "solver_0"], "solver_0"),
        ({"planner": "Plan it.", "solver": "Solve it."}, ["planner_0", "solver_0"], "solver_0"),
        (["Plan it now.", "Solve it now."], ["agent_0", "agent_1"], "agent_1"),
        ([SPEC, "critic"], ["checker_0", "critic_0"], "checker_0"),
        ([{"role": "solver", "prompt": "Solve.", "count": 2}], ["solver_0", "solver_1"], "solver_0"),
    ],
)
def test_a_team_is_a_number_roles_prompts_or_specs(team: Any, names: list[str], answers: str) -> None:
    env = from_rows(ROWS, team=team)()
    assert env.possible_agents == names
    assert next(agent.name for agent in env.team if agent.with_answer) == answers
    if SPEC in ([] if isinstance(team, int) else team):
        assert env.team[0] == SPEC


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"team": 0}, ConfigError, "team is 0. Expected how many agents"),
        ({"team": [3]}, ConfigError, "Expected how many agents"),
        ({"team": []}, ConfigError, "profiles: expected a list"),
        ({"team": "none.json"}, ConfigError, "Cannot read profiles from none.json"),
        ({"reward": "exact"}, ConfigError, "There is no reward 'exact'. Known: em, f1, substring"),
        ({"data": []}, DataError, "holds no rows"),
        ({"data": [{"question": "1+1"}]}, DataError, "line 1: expected text as 'problem' and as 'answer'"),
        ({"data": [{"problem": "1+1"}]}, DataError, "line 1: expected text as 'problem' and as 'answer'"),
        ({"data": 3}, DataError, "a list of dictionaries"),
        ({"dependency": "chian"}, marft_envs.MarftError, "chian"),
    ],
)
def test_what_cannot_work_is_said_at_once(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as refused:
        from_rows(**{"data": ROWS, **wrong})
    assert says in str(refused.value)


def test_rows_of_every_kind_are_the_same_environment_and_the_vector_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for data in (ROWS, pd.DataFrame(ROWS), file):
        make_env = from_rows(data, reward=in_units, team=["planner", "solver"])
        with_vec = marft_envs.make_vec(make_env, 2)
        with_vec.reset([0, 1])
        assert [turn.agent for turn in with_vec.poll()] == ["planner_0", "planner_0"]
        env = make_env()
        assert env.unwrapped.task.evaluation_set(None)[-1].endswith("/8")
        env.reset(seed=0)
        env.step("Seven apples.")
        seen = env.unwrapped.messages("solver_0")[-1]["content"]
        assert "What is" in seen and "Seven apples." in seen and '"answer"' not in seen
    named = from_rows(ROWS, team=["planner", "solver"])()
    assert json.loads(json.dumps(named.env_kwargs)) == named.env_kwargs, "a file can name it"


@pytest.mark.parametrize("reward", ["em", in_units])
def test_it_keeps_the_rules_of_an_environment(reward: Any) -> None:
    assert len(marft_envs.check_env(from_rows(ROWS, reward=reward, team=2)).passed) > 12
    free = [{"problem": f"Write a poem of {i} lines."} for i in range(4)]
    assert marft_envs.check_env(from_rows(free, reward=long_enough)).remarks["gold_hidden"]


def long_enough(answer: str, row: dict[str, Any]) -> float:
    return min(len(answer.split()) / 10, 1.0)


def test_an_episode_says_what_was_asked_answered_and_prompted_and_is_kept(tmp_path: Path) -> None:
    episode = played(from_rows(ROWS, team=["planner", "solver"]), "Add one.", "1")
    assert episode.problem.startswith("What is") and episode.answer == "1"
    planner, solver = episode.messages
    assert planner[0]["content"].startswith("You are the planner.") and "Add one." in solver[-1]["content"]
    with pytest.raises(ConfigError, match=r"turn 1 has no prompt. Next: episode.messages\[1\]"):
        _ = episode.turns[1].messages
    episode.save(tmp_path / "kept.jsonl")
    assert list(trajectory.read(tmp_path / "kept.jsonl")) == [episode]
    assert marft_envs.Episode.from_dict(episode.to_dict()) == episode
    with pytest.raises(DataError):
        marft_envs.Episode.from_dict({"turns": []})


def test_a_process_that_stores_the_same_rows_never_shows_another_half_a_file() -> None:
    rows = [{"problem": "x" * 1000, "answer": i} for i in range(1000)]
    path = Path(from_rows(rows).keywords["data"])  # type: ignore[attr-defined]
    whole, seen = path.stat().st_size, set()
    with ThreadPoolExecutor(1) as pool:
        storing = pool.submit(lambda: [from_rows(rows) for _ in range(3)])
        while not storing.done():
            seen.add(path.stat().st_size)
    storing.result()
    assert seen == {whole}
    assert [each.name for each in path.parent.iterdir()] == [path.name], "nothing is left beside it"


@pytest.mark.parametrize("form", [list, lambda prompts: [AgentSpec("a", "a", p, with_answer=True) for p in prompts]])
def test_braces_of_a_prompt_stay_as_they_are(form: Callable[[list[str]], Any]) -> None:
    prompt = r'Answer as JSON, {"a": {"b": {{1}}}}, of \frac{1}{\sqrt{2}}.'
    assert from_rows(ROWS, team=form([prompt]))().team[0].prompt == prompt
    assert from_rows(ROWS, team={"agent": prompt})().team[0].prompt == prompt
