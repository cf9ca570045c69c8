"""Cells made of trained ones: votes at equal inference tokens, ablations; and rates chosen by a sweep. A tiny model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers.runs import settings
from helpers.teams import episode, say
from helpers.tiny import save_tiny
from marft_algos.extras.bench import grid, sweep, worker
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.types import Trajectory
from marft_envs.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[BenchFolder, dict[str, Any]]:
    """Two trained cells, ``one`` and ``two``, and the settings that they share."""
    made = BenchFolder(tmp_path_factory.mktemp("bench") / "made")
    made.prepare({})
    model = save_tiny(tmp_path_factory.mktemp("model"), hidden=16, layers=1)
    table = settings(model, made.runs, iterations=1, eval_episodes=6).table()
    for seed, key in enumerate(("one", "two")):
        made.write_result(key, worker.make(made, job(table | {"seed": seed}, key)) | {"peak_memory": 1})
    return made, table


def job(config: dict[str, Any], key: str, kind: str = "train", **changes: Any) -> dict[str, Any]:
    return {
        "key": key, "kind": kind, "config": config, "contribution": 0, "samples": 0, "sources": [], "reference": "",
    } | changes  # fmt: skip


def said(*texts: str) -> list[Trajectory]:
    """One episode per text, solved where the text has a 4 in it."""
    votes = [episode([["a"]], rewards=[float("4" in text)], success="4" in text) for text in texts]
    for vote, text in zip(votes, texts, strict=True):
        say(vote.transitions[0], text=text)
    return votes


def test_the_majority_is_of_answers_not_of_texts_and_the_earliest_of_equals() -> None:
    env = marft_envs.make("math-solo-v0", levels=[0])
    key = env.task.answer_key
    assert worker.majority(said(r"so \boxed{4}", r"\boxed{ 4 }", r"\boxed{5}"), key) == 1.0
    assert worker.majority(said(r"4 is wrong: \boxed{5}", "x", "y"), key) == 1.0, "the earliest decides a tie"
    assert worker.majority(said("5", "5", "4"), key) == 0.0
    votes = said(r"\boxed{4}", r"\boxed{5}", r"\boxed{5}")
    for vote in votes[1:]:
        vote.episode.fault = "machine"
    assert worker.majority(votes, key) == 1.0 and worker.majority(votes[1:], key) is None, "an outage is no vote"


def test_members_answer_once_each_and_cost_together(folder: tuple[BenchFolder, dict[str, Any]]) -> None:
    bench, table = folder
    made = worker.make(bench, job(table, "v", "vote", sources=["one", "two"]))
    parts = [bench.result(k) for k in ("one", "two")]
    assert made["votes"] == 2 and len(made["outcomes"]) == 6 == len(made["problems"])
    assert made["tokens"] == sum(p["tokens"] for p in parts) and made["eval_tokens"] == sum(
        p["eval_tokens"] for p in parts
    )


def test_a_vote_spends_no_more_than_the_teams_inference_tokens(folder: tuple[BenchFolder, dict[str, Any]]) -> None:
    bench, table = folder
    allowed = 5 * bench.result("one")["eval_tokens"]
    bench.write_result("team", bench.result("one") | {"eval_tokens": allowed})
    made = worker.make(bench, job(table, "v", "vote", sources=["one"], reference="team"))
    assert made["votes"] >= 2 and made["eval_tokens"] <= allowed
    bench.write_result("poor", bench.result("one") | {"eval_tokens": 1})
    assert worker.make(bench, job(table, "v", "vote", sources=["one"], reference="poor"))["votes"] == 1


def test_sampled_answers_are_added_to_a_finished_run_without_training_it_again(
    folder: tuple[BenchFolder, dict[str, Any]],
) -> None:
    bench, table = folder
    asked = job(table | {"seed": 0}, "one") | {"samples": 3}
    bench.job_file("one").write_text(json.dumps(asked))
    before, trained = bench.result("one"), bench.runs / "one" / "metrics.jsonl"
    stamp = trained.stat().st_mtime_ns
    assert not bench.complete(asked)
    assert worker.main([str(bench.root), "one"]) == 0
    made = bench.result("one")
    assert bench.complete(asked) and trained.stat().st_mtime_ns == stamp
    assert {k: v for k, v in made.items() if k not in ("sampled", "samples")} == before and made["samples"] == 3
    assert len(made["sampled"]) == len(made["problems"]) and all(0 <= share <= 1 for share in made["sampled"])
    assert {round(3 * share, 6) for share in made["sampled"]} <= {0, 1, 2, 3}
    fewer = asked | {"samples": 2}
    bench.job_file("one").write_text(json.dumps(fewer))
    assert not bench.complete(fewer) and worker.main([str(bench.root), "one"]) == 0
    again = bench.result("one")
    assert bench.complete(fewer) and again["samples"] == 2 and {2 * share for share in again["sampled"]} <= {0, 1, 2}
    assert bench.complete(fewer | {"samples": 0}), "what nobody asks for any more is no reason to run"


def test_results_without_their_runs_are_no_team_to_play_and_say_so(
    folder: tuple[BenchFolder, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Packed results have no adapters: what needs them names the result to delete, so that they are trained again."""
    bench, table = folder
    packed = BenchFolder(tmp_path / "packed")
    packed.prepare({})
    packed.write_result("one", {k: v for k, v in bench.result("one").items() if k != "samples"})
    packed.job_file("one").write_text(json.dumps(job(table, "one") | {"samples": 3}))
    assert worker.main([str(packed.root), "one"]) == 1
    said = capsys.readouterr().err
    assert "is not here" in said and "samples" in said and str(packed.result_file("one")) in said
    with pytest.raises(ConfigError, match="is not here"):
        worker.make(packed, job(table, "x", "ablation", sources=["one"]))
    with pytest.raises(ConfigError, match="is not here"):
        worker.make(packed, job(table, "v", "vote", sources=["one"]))


def test_costs_that_some_sources_do_not_have_are_not_added_up(folder: tuple[BenchFolder, dict[str, Any]]) -> None:
    bench, table = folder
    whole = bench.result("two")
    for kept in (["one", "two"], ["two", "one"]):
        bench.write_result(
            kept[1], {k: v for k, v in bench.result(kept[1]).items() if k not in ("processed", "prompts")}
        )
        with pytest.raises(ConfigError, match=f"'processed'.*{kept[1]}"):
            worker.make(bench, job(table, "v", "vote", sources=["one", "two"]))
        bench.write_result(kept[1], bench.result(kept[1]) | {k: whole[k] for k in ("processed", "prompts")})


def test_an_ablation_plays_the_sources_policies_elsewhere(folder: tuple[BenchFolder, dict[str, Any]]) -> None:
    bench, table = folder
    same = worker.make(bench, job(table, "x", "ablation", sources=["one"]))
    assert same["outcomes"] == bench.result("one")["outcomes"] and same["tokens"] == bench.result("one")["tokens"]


def test_the_contribution_of_no_policy_is_the_teams_score(folder: tuple[BenchFolder, dict[str, Any]]) -> None:
    bench, table = folder
    made = worker.make(bench, job(table, "c", contribution=6))
    assert made["contribution"][""] == pytest.approx(made["score"])
    assert set(made["contribution"]) == {"", "planner_0", "solver_0"}


def test_the_sweep_chooses_the_best_mean_and_of_equals_who_learnt_faster_then_the_smaller(tmp_path: Path) -> None:
    made = grid.build({
        "algorithms": ["marft"], "envs": ["relay-v0", "deaf"], "token_budget": 9, "controls": [], "baseline": "marft",
        "env": {"deaf": {"id": "relay-v0", "trained_on": "relay-v0"}},
        "sweep": {"lr": [1e-4, 1e-3, 1e-2], "seeds": [8, 9]},
    })  # fmt: skip
    bench = BenchFolder(tmp_path / "bench")
    bench.prepare({})
    scores = {1e-4: (0.5, 0.7), 1e-3: (0.6, 0.6), 1e-2: (1.0,)}
    rows = [
        {"key": f"{lr}-{i}", "algorithm": "marft", "env": "relay-v0", "lr": lr, "hidden": False, "skipped": ""}
        for lr in scores
        for i in range(2)
    ]
    bench.write_stage("sweep", rows)
    for lr, found in scores.items():
        for i, score in enumerate(found):
            bench.write_result(f"{lr}-{i}", {"score": score, "train_score": 0.2})
    with pytest.raises(ConfigError, match="sweep is not over"):
        sweep.chosen(made, bench)
    bench.error_file("0.01-1").write_text("out of memory")
    assert sweep.chosen(made, bench) == {("marft", "relay-v0"): 1e-4, ("marft", "deaf"): 1e-4}
    assert sweep.sheet(bench.rows("sweep")) == [
        ["environment", "algorithm", "0.0001", "0.001", "0.01", "chosen"],
        ["relay-v0", "marft", "0.600 (0.200)", "0.600 (0.200)", "–", "0.0001 (the smallest)"],
    ]
    for i, score in enumerate(scores[1e-3]):
        bench.write_result(f"{1e-3}-{i}", {"score": score, "train_score": 0.3})
    assert sweep.chosen(made, bench) == {("marft", "relay-v0"): 1e-3, ("marft", "deaf"): 1e-3}
    assert sweep.sheet(bench.rows("sweep"))[1][-1] == "0.001"
    assert sweep.chosen(dataclasses.replace(made, sweep=None), bench) is None
