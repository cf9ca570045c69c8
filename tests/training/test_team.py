"""A trained team in Python: it plays, answers and shows its prompts; evaluations and runs are compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marft_algos
import marft_envs
from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.config.presets import CUSTOM
from marft_algos.evaluation import environments
from marft_algos.evaluation.answers import RefusedPrompt
from marft_algos.runs.folder import RunFolder
from marft_envs import AgentSpec, ConfigError, FlexEnv

TOLD = {"reasoner": "Work out the first step."}
ROWS = [{"problem": f"What is {i}+1?", "answer": i + 1} for i in range(8)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("team")
    table = {"env": "math-dual-v0", "env_kwargs": {"levels": [0], "profiles": TOLD}, "iterations": 1, "save_every": 1}
    return train(settings(save_tiny(folder / "model", hidden=16, layers=1), folder, **table))[1]


@pytest.fixture(scope="module")
def team(run: RunFolder) -> marft_algos.TrainedTeam:
    team: marft_algos.TrainedTeam = run.team()
    return team


def test_it_answers_a_problem_and_shows_what_each_agent_was_prompted_with(team: marft_algos.TrainedTeam) -> None:
    episode = team.ask("Compute $1+2$.")
    reasoner, actor = episode.turns
    assert [message["role"] for message in reasoner.messages] == ["system", "user"]
    assert reasoner.messages[0]["content"] == TOLD["reasoner"] and "Compute $1+2$." in reasoner.messages[1]["content"]
    assert reasoner.text.strip() in actor.messages[-1]["content"]
    assert episode.messages == [reasoner.messages, actor.messages] and "Compute $1+2$." in episode.problem
    assert episode.success is None and not episode.metrics, "nobody has judged it"
    message = {"role": "user", "content": "Compute $1+2$."}
    assert team("Compute $1+2$.") == team([message]) == episode.answer == actor.text
    for messages in ([{"role": "system", "content": "Be brief."}, message], [message, message], []):
        with pytest.raises(ConfigError, match="one task per request"):
            team(messages)
    with pytest.raises(RefusedPrompt, match="does not fit"):
        team("one " * 100_000)


def test_it_plays_an_environment_as_its_evaluation_did(run: RunFolder, team: marft_algos.TrainedTeam) -> None:
    for known in run.episodes("eval", 1):
        episode = team.play(seed=known.seed or 0, task_id=known.task_id)
        assert [turn.text for turn in episode.turns] == [turn.text for turn in known.turns]
        assert (episode.score, episode.task_id) == (known.score, known.task_id)
        assert episode.messages == [turn.messages for turn in episode.turns] == known.messages, "as a replay finds them"
    other = marft_envs.make("math-dual-v0", levels=[2])
    assert "/2/" in team.play(other, seed=1).task_id and "/2/" in team.play(lambda: other, seed=1).task_id
    assert "/0/" in team.play("math-dual-v0", seed=1).task_id, "the run's own problems"
    with pytest.raises(ConfigError, match=r"No policy for agent 'planner_0'"):
        team.play("relay-v0")


def test_checkpoint_temperature_and_environment_are_chosen(run: RunFolder) -> None:
    first = marft_algos.load_team(run.root, checkpoint=1, temperature=0.9, env=marft_envs.make("math-dual-v0"))
    assert first.settings.temperature == 0.9 and not first.settings.eval_greedy
    assert len({first("Compute $1+2$.", seed=seed) for seed in (0, 1)}) > 1
    assert first("Compute $1+2$.", seed=1) == first("Compute $1+2$.", seed=1)
    assert run.team(temperature=0).settings.eval_greedy
    for wrong, says in (
        ({"checkpoint": 7}, "There is no checkpoint '7'"),
        ({"device": "tpu"}, "Unknown device 'tpu'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"env": "relay-v0"}, "nobody plays 'planner_0'"),
        ({"env": 3}, "env is of type int"),
    ):
        with pytest.raises(ConfigError, match=says):
            run.team(**wrong)
    with pytest.raises(ConfigError, match="'nowhere' is no run"):
        marft_algos.load_team("nowhere")


def test_an_export_is_a_team(run: RunFolder, team: marft_algos.TrainedTeam, tmp_path: Path) -> None:
    from marft_algos.cli import main

    assert main(["export", str(run.root), "--out", str(tmp_path / "out")]) == 0
    assert marft_algos.load_team(tmp_path / "out")("Compute $1+2$.") == team("Compute $1+2$.")


def right(messages: Sequence[dict[str, str]]) -> str:
    return str(int(messages[-1]["content"].split("+")[0].split()[-1]) + 1)


@pytest.mark.parametrize(
    ("players", "score"),
    [(right, 1.0), ({"agent_0": right}, 1.0), (lambda messages: "x", 0.0)],
    ids=["function", "by agent", "wrong"],
)
def test_functions_play_agents_of_an_environment_by_rows(players: Any, score: float, tmp_path: Path) -> None:
    make_env = marft_envs.from_rows(ROWS)
    for env in (make_env, make_env(), lambda: make_env()):
        found = marft_algos.evaluate(players, env=env, episodes=4)
        assert float(found) == found.score.mean == found.success.mean == found.metrics["score"] == score
        assert len(found) == 4 and found.cost == 0.0 and found.latency == {}
        assert found.results["average"]["mean"] == score and (found.folder / "results.json").is_file()


@pytest.mark.parametrize(
    ("team", "options", "says"),
    [
        (right, {}, "Which environment"),
        (right, {"env": 3}, "env is of type int"),
        ({"agent_1": right}, {}, "Which environment"),
        ({"agent_1": right}, {"env": marft_envs.from_rows(ROWS)}, "unknown agent 'agent_1'"),
        (lambda messages: 3, {"env": marft_envs.from_rows(ROWS)}, "returned 3, and text is expected"),
        ("nowhere", {}, "'nowhere' is no run"),
        ("", {"episodes": 0, "untrained": True}, "episodes is 0"),
        ("", {"episodes": "x", "untrained": True}, "episodes"),
        ("", {"compare": ("a", "b")}, "There is no setting 'compare'"),
    ],
)
def test_what_cannot_be_evaluated_is_said(team: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(marft_envs.MarftError) as refused:
        marft_algos.evaluate(team, **options)
    assert says in str(refused.value)


def test_an_environment_is_played_as_it_was_changed() -> None:
    env = marft_envs.make("math-solo-v0")
    env.rules = replace(env.rules, max_rounds=3)
    found = marft_algos.evaluate(lambda messages: "no", env=env, episodes=1)
    assert len(json.loads((found.folder / "episodes.jsonl").read_text())["turns"]) == 3


def test_another_function_does_not_go_on_with_the_results_of_the_first(tmp_path: Path) -> None:
    def says(word: str) -> Any:
        return lambda messages: word

    make_env = marft_envs.from_rows([{"problem": "2+2?", "answer": "4"}])
    for _ in range(2):
        assert marft_algos.evaluate(says("4"), env=make_env, out=str(tmp_path / "e")).score.mean == 1.0
    for other in (says("5"), lambda messages: "five"):
        with pytest.raises(ConfigError, match="engines"):
            marft_algos.evaluate(other, env=make_env, out=str(tmp_path / "e"))


def test_evaluations_are_compared_task_by_task(run: RunFolder) -> None:
    make_env = marft_envs.from_rows(ROWS)
    a, b = (marft_algos.evaluate(each, env=make_env, episodes=6) for each in (lambda messages: "x", right))
    for found in (marft_algos.compare(a, b), marft_algos.compare(a.folder, str(b.folder))):
        assert found.difference.mean == 1.0 and found.difference.n == 6
        assert repr(found).splitlines()[0].split()[:4] == ["score", "0.000", "1.000", "+100.0"]
    again = marft_algos.evaluate(run, episodes=2, one_by_one=True)
    assert set(again.latency["episode"]) == {"p50", "p95"} and len(again) == 2
    assert marft_algos.compare(again, marft_algos.evaluate(run, episodes=2, untrained=True)).difference.n == 2
    assert marft_algos.compare(run, str(run.root)).difference.mean == 0.0
    one, same, other = (
        replace(again, episodes=[replace(e, env_id=env, task_id=str(i)) for i, e in enumerate(again.episodes)])
        for env in ("gymnasium:A", "gymnasium:A", "gymnasium:B")
    )
    assert marft_algos.compare(one, same).difference.n == 2
    with pytest.raises(ConfigError, match="different tasks"):  # whose numbers are the same
        marft_algos.compare(one, other)
    with pytest.raises(ConfigError, match="different tasks"):
        marft_algos.compare(a, again)
    with pytest.raises(ConfigError, match="is an evaluation, and the other is none"):
        marft_algos.compare(run, a)


def test_an_environment_without_an_id_gets_one_for_this_process() -> None:
    relay = marft_envs.make("relay-v0")
    mine = FlexEnv([AgentSpec("planner_0", "p"), AgentSpec("solver_0", "s", "", True)], relay.task, relay.dependency)
    found = marft_algos.evaluate("embedded", env=mine, episodes=2, max_new_tokens=4)
    assert len(found) == 2 and found.episodes[0].env_id.startswith(environments.UNNAMED)
    assert found.episodes[0].messages, "replayed"


SMALL: dict[str, Any] = {
    "iterations": 1, "episodes_per_iteration": 4, "eval_episodes": 2, "max_new_tokens": 4, "lora_r": 2,
}  # fmt: skip


def trained(folder: Path, **options: Any) -> RunFolder:
    return marft_algos.train("quickstart", runs_dir=folder, name="r", **(SMALL | options))


def named(answer: str, row: dict[str, Any]) -> bool:
    return str(row["answer"]) in answer


@pytest.mark.ci
@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"data": ROWS, "reward": named}, CUSTOM),
        ({"env": marft_envs.from_rows(ROWS, reward=named, team=["planner", "solver"])}, CUSTOM),
        ({"env": marft_envs.from_rows(ROWS, team=["planner", "solver"])}, "cases-v0"),
        ({"env": "math-dual-v0", "reward": lambda episode: float(len(episode.turns))}, CUSTOM),
    ],
    ids=["rows and a function", "from_rows with a function", "from_rows by name", "of an episode"],
)
def test_a_function_of_a_notebook_rewards(options: dict[str, Any], noted: str, tmp_path: Path) -> None:
    run = trained(tmp_path, **options)
    assert marft_algos.config.settings.load(run.config_file).env == noted
    facts = run.evaluation_set()
    assert facts is not None and facts.held_out, "a part of the rows is held out, whoever rewards"
    if noted != CUSTOM:
        assert isinstance(run.team()("What is 1+1?"), str)
        return
    with pytest.raises(ConfigError, match=r"Pass it again: RUN.team\(env=ENV\)"):
        run.team()
    env = options.get("env", marft_envs.from_rows(ROWS, reward=named))
    assert isinstance(run.team(env=env)("What is 1+1?"), str)
    again = marft_algos.evaluate(run, env=env, episodes=2)
    if env != "math-dual-v0":
        assert [e.task_id for e in again.episodes] == [e.task_id for e in run.episodes("eval", 1)], "held out, too"


@pytest.mark.parametrize("wrong", [{"env": marft_envs.make("relay-v0")}, {}, {"env": "relay-v0", "reward": 3}])
def test_a_reward_needs_rows_or_an_id(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward= is a function of an episode where env= is an id"):
        trained(tmp_path, **{"reward": named, **wrong})
