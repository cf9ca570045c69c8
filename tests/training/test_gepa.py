"""Profiles as parameters: children are judged on their parent's starts, and a hosted team gets better without weights."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers.fake_servers import Answer, chat, serving
from helpers.runs import settings, timeless, train
from helpers.teams import episode, put
from marft_algos.algorithms import gepa
from marft_algos.algorithms.gepa import GEPA, Candidate, GEPAConfig
from marft_algos.cli import main
from marft_algos.config import trust
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.training.evaluate import HeldOut
from marft_algos.types import Estimates, Trajectory
from marft_envs import AgentSpec
from marft_envs.consent import TrustError
from marft_envs.errors import ConfigError
from marft_envs.records import trajectory

HERE = Path(__file__).stem
ASKED: list[tuple[str, str, Sequence[Mapping[str, Any]]]] = []


def write(agent: str, profile: str, episodes: Sequence[Mapping[str, Any]]) -> str:
    """A proposer that counts."""
    ASKED.append((agent, profile, episodes))
    return f"{profile} And {len(profile)}."


def same(agent: str, profile: str, episodes: Sequence[Mapping[str, Any]]) -> str:
    return profile


def pair(number: int, kind: str, parent: float, child: float, profiles: Mapping[str, str]) -> list[Trajectory]:
    """Parent and child at one start."""
    made = []
    for member, score in enumerate((parent, child)):
        d = episode([["a"], ["b"]], number=2 * number + member, rewards=[0.0, score], group=number)
        d.episode.agents = (AgentSpec("a", "a", "A."), AgentSpec("b", "b", "B."))
        d.episode.task_id, d.episode.options = f"{kind}/{number}", {"profiles": dict(profiles)} if member else {}
        made.append(d)
    return made


def test_a_child_is_kept_if_it_scores_higher_on_its_parents_starts_and_kinds_draw_the_next_parent() -> None:
    made = GEPA(GEPAConfig(proposer=f"{__name__}:write"))
    assert made.profiles(0) == made.profiles(1) == made.profiles(None) == {}
    first = made.credit(pair(0, "x", 0.5, 0.0, {}), Estimates())
    assert "gepa/gain" not in first and first["gepa/candidates"] == 1
    child = dict(made.profiles(1))
    assert child == {"a": "A. And 2."} and made.profiles(0) == {}
    data = [*pair(0, "x", 0.0, 1.0, child), *pair(1, "y", 1.0, 0.5, child)]
    told = made.credit(data, Estimates())
    assert told["gepa/gain"] == pytest.approx((1.0 - 0.5) / 2) and told["gepa/accepted"] == 1.0
    kept = made.pool[1]
    assert kept.profiles == child and kept.scores == {"x": (1.0, 1), "y": (0.5, 1)}
    assert made.pool[0].scores == {"x": (0.5, 3), "y": (1.0, 1)}
    # x: (1 + 1)/3 against (1 + .5)/5; y: (1 + .5)/3 against (1 + 1)/3: each is the best at one kind
    assert kept.mean("x") == pytest.approx(2 / 3) and made.pool[0].mean("y") == pytest.approx(2 / 3)
    assert kept.mean() == pytest.approx(2.5 / 4) and made.profiles(None) == child
    assert set(made.profiles(1)) == {"a", "b"} if made.parent else set(made.profiles(1)) == {"b"}, "agents take turns"
    drawn = set()
    for turn in range(20):
        made.turn = turn
        made._next()
        drawn.add(made.parent)
    assert drawn == {0, 1}


def test_an_agent_that_a_candidate_does_not_rewrite_has_its_own_profile() -> None:
    """Whoever was told what in the last iteration: a new parent may be another candidate."""
    made = GEPA(GEPAConfig(proposer=f"{__name__}:write"))
    made.credit(pair(0, "x", 0.5, 0.0, {}), Estimates())
    child = dict(made.profiles(1))
    data = pair(0, "x", 0.0, 1.0, child)
    for d in data:
        d.episode.agents = (AgentSpec("a", "a", "Told."), AgentSpec("b", "b", "Told."))
    ASKED.clear()
    made.credit(data, Estimates())
    assert ASKED[0][:2] == ("b", "B.")


def test_a_child_that_is_no_better_is_forgotten_and_one_like_its_parent_is_not_played() -> None:
    made = GEPA(GEPAConfig(proposer=f"{__name__}:write"))
    made.credit(pair(0, "x", 0.5, 0.5, {}), Estimates())
    told = made.credit(pair(0, "x", 0.5, 0.5, made.profiles(1)), Estimates())
    assert told["gepa/gain"] == 0.0 and told["gepa/accepted"] == 0.0 and len(made.pool) == 1
    still = GEPA(GEPAConfig(proposer=f"{__name__}:same"))
    still.credit(pair(0, "x", 0.5, 0.5, {}), Estimates())
    assert still.profiles(1) == still.profiles(0) == {}


def test_the_proposer_reads_the_worst_episodes_and_the_best() -> None:
    made = GEPA(GEPAConfig(proposer=f"{__name__}:write", shown=3))
    ASKED.clear()
    made.credit([d for i in range(4) for d in pair(i, "x", i / 10, 1.0 - i / 10, {})], Estimates())
    ((agent, profile, episodes),) = ASKED
    assert (agent, profile) == ("a", "A.") and [e["score"] for e in episodes] == [0.0, 0.1, 1.0]
    assert [turn["agent"] for turn in episodes[0]["turns"]] == ["a", "b"]


def test_by_blame_the_agent_whose_turns_cost_the_most_in_the_parents_failures_is_next() -> None:
    made = GEPA(GEPAConfig(proposer=f"{__name__}:write", credit={"rule": "blame", "failures": 2}, shown=2))
    data = pair(0, "x", 0.0, 0.0, {}) + pair(1, "x", 0.0, 0.0, {})
    put(data[2], replayed=[0.25, -0.5])
    ASKED.clear()
    made.credit(data, Estimates())
    ((agent, _, episodes),) = ASKED
    assert agent == "b" and [turn["credit"] for turn in episodes[0]["turns"]] == [0.25, -0.5], "what was replayed first"
    assert "[reply of b, which changed the expected score by -0.500]" in gepa._written(episodes[0])
    assert "changed" not in gepa._written(episodes[1])


def test_what_is_restored_goes_on_alike() -> None:
    one, other = (GEPA(GEPAConfig(proposer=f"{__name__}:write")) for _ in range(2))
    one.credit(pair(0, "x", 0.5, 0.0, {}), Estimates())
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    data = pair(0, "x", 0.0, 1.0, one.profiles(1))
    assert one.credit(data, Estimates()) == other.credit(data, Estimates())
    assert one.profiles(1) == other.profiles(1) and one.parent == other.parent


def test_profiles_of_an_episode_are_told_recorded_and_replayed(tmp_path: Path) -> None:
    env = marft_envs.make("relay-v0")
    usual = env.team[0].prompt
    env.reset(seed=1, options={"profiles": {"planner": "Whistle."}})
    assert env.last()[0]["messages"][0]["content"] == "Whistle." and env.team[0].prompt == usual
    env.step("1")
    assert env.last()[0]["messages"][0]["content"] != "Whistle."
    env.step("1")
    trajectory.write(tmp_path / "one.jsonl", env.episode)
    (read,) = trajectory.read(tmp_path / "one.jsonl")
    assert read.agents[0].prompt == "Whistle." and read.options["profiles"] == {"planner": "Whistle."}
    env.reset(seed=1)
    assert env.last()[0]["messages"][0]["content"] == usual
    for bad in ({"nobody": "x"}, {"planner": 3}, "Whistle."):
        with pytest.raises(ConfigError, match="'profiles' has"):
            env.reset(seed=1, options={"profiles": bad})


def run_of(model: Path, folder: Path, **changes: Any) -> Any:
    algorithm = {"proposer": f"{HERE}:write"}
    return settings(model, folder, algo="gepa", algorithm=algorithm, episodes_per_iteration=4, **changes)


def test_a_run_that_goes_on_is_the_unbroken_one_and_moves_no_weight(model: Path, tmp_path: Path) -> None:
    whole, run = train(run_of(model, tmp_path, name="whole"))
    before = {p: [t.clone() for t in whole.policies.parameters(p)] for p in whole.policies.policies}
    assert before and all(not t.any() for p in before for t in whole.policies.parameters(p)[1::2]), "B of LoRA is 0"
    train(run_of(model, tmp_path, name="parts", iterations=2))
    assert main(["train", "--resume", str(tmp_path / "parts"), "--iterations", "4", "--trust"]) == 0
    parts = RunFolder.open(tmp_path / "parts")
    assert timeless(parts) == timeless(run)
    assert parts.profiles_file.exists() == run.profiles_file.exists()


def test_an_evaluation_tells_what_the_run_has_found(model: Path, tmp_path: Path) -> None:
    _, run = train(run_of(model, tmp_path, name="one", iterations=1))
    run.profiles_file.write_text(json.dumps({"planner": "Whistle."}))
    evaluation = HeldOut(paths.of_run(run), 3)
    evaluation.load(run)
    assert {t.episode.agents[0].prompt for t in evaluation.play()} == {"Whistle."}
    run.profiles_file.unlink()
    evaluation.load(run)
    assert {t.episode.agents[0].prompt for t in evaluation.play()} == {"Plan."}, "another run, which found none"
    run.profiles_file.write_text("{")
    with pytest.raises(ConfigError, match="Cannot read the profiles"):
        evaluation.load(run)


@pytest.mark.ci
def test_a_hosted_team_learns_to_be_told_better(tmp_path: Path) -> None:
    """The planner says the digit; the solver guesses until it is told to repeat, which a hosted proposer writes."""

    def answer(path: str, body: dict[str, Any]) -> Answer:
        messages = body["messages"]
        if len(messages) == 1:  # the proposer
            assert "Score" in messages[0]["content"]
            assert re.search(
                r"\[reply of planner_0(, which changed the expected score by [^]]+)?\]", messages[0]["content"]
            )
            return 200, chat("They guess.\n```\nREPEAT the digit that you read.\n```")
        digits = [c for c in messages[-1]["content"] if c.isdigit()]
        obeys = "REPEAT" in messages[0]["content"] or "Pass the digit on" in messages[0]["content"]
        return 200, chat(digits[-1] if obeys and digits else "0")

    with serving(answer) as fake:
        table = f'{{kind="openai", model="m", url="{fake.url}"}}'
        words = ["train", "gepa", "--env", "relay-v0", "--engines", f"planner_0={table}", f"solver_0={table}"]
        words += ["--proposer", table, "--iterations", "6", "--episodes-per-iteration", "16", "--eval-episodes", "40"]
        words += ["--credit", "rule=blame", "failures=2"]
        assert main([*words, "--runs-dir", str(tmp_path), "--name", "told", "--eval-every", "0"]) == 0
        run = RunFolder.open(tmp_path / "told")
        scores = [line["eval/success"] for line in run.metrics() if "eval/success" in line]
        assert scores[0] < 0.5 and scores[-1] == 1.0
        assert sum(line.get("branches", 0) for line in run.metrics()) > 0
        assert "REPEAT" in json.loads(run.profiles_file.read_text())["solver_0"]


@pytest.mark.parametrize("proposer", [{"kind": "openai", "model": "m"}, "somebodys:function"])
def test_a_file_sends_nothing_and_runs_nothing_that_nobody_has_typed(proposer: Any) -> None:
    with pytest.raises(TrustError, match="proposer"):
        trust.check({"algo": "gepa", "algorithm": {"proposer": proposer}}, "x.toml")


def test_bad_proposers_are_refused() -> None:
    for bad in ("", "no_such_module_of_mine:write", f"{__name__}:nothing"):
        made = GEPA(GEPAConfig(proposer=bad))
        with pytest.raises(ConfigError, match=r"module:(function|name)"):
            made.profiles(None)
    with pytest.raises(ConfigError, match="parent and child: 2"):
        GEPAConfig(group_size=4)
    assert Candidate({}).mean() == 0.5
