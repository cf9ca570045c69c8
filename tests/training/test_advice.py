"""What a run says of a team that cannot begin to learn."""

import json
from pathlib import Path

import pytest

import marft_envs
from marft_algos.cli.app import main
from marft_algos.config.settings import build
from marft_algos.evaluation import environments
from marft_algos.training.environments import make_env
from marft_algos.training.session import advice, unfamiliar
from marft_envs import registration

CONFIG = build({"env": "math-dual-v0", "max_new_tokens": 32})
FINE = {
    "agent/reasoner_0/truncated": 0.1,
    "agent/actor_0/truncated": 0.2,
    "task/parsed": 0.9,
    "task/timeout": 0.0,
    "turns": 2.0,
}


def test_a_team_that_answers_is_left_alone():
    assert advice(FINE, CONFIG) == ""
    assert advice({"turns": 1.0}, CONFIG) == ""  # a task that counts nothing, with hosted agents
    assert advice({**FINE, "task/parsed": 0.45, "task/timeout": 0.5}, CONFIG) == ""  # an outage is nobody's form


def test_cut_replies_are_named_by_agent_with_what_to_type():
    words = advice({**FINE, "agent/reasoner_0/truncated": 0.9}, CONFIG)
    assert "90% of reasoner_0's replies were truncated at max_new_tokens = 32" in words and "actor_0's" not in words
    for command in ("marft profiles math-dual-v0", "marft sft", "--max-new-tokens"):
        assert command in words


def test_replies_that_lack_their_end_alone_are_no_hindrance():
    cut = {**FINE, "agent/actor_0/truncated": 1.0}
    assert advice({**cut, "success": 0.23}, CONFIG) == advice({**cut, "return": 0.23}, CONFIG) == ""
    assert "100% of actor_0's" in advice({**cut, "success": 0.02}, CONFIG)


def test_an_embedded_model_is_said_not_to_know_an_environment_of_ones_own(monkeypatch):
    monkeypatch.setattr(registration, "_specs", dict(registration._specs))
    marft_envs.register("mine/desk-v0", lambda: marft_envs.make("relay-v0"))
    words = unfamiliar(build({"env": "mine/desk-v0"}))
    assert "the embedded model knows only the prompts" in words and "--warm-start" in words and "--models" in words
    assert unfamiliar(build({"env": "relay-v0"})) == ""
    assert unfamiliar(build({"env": "mine/desk-v0", "models": "smollm2-135m"})) == ""


def test_profiles_are_advised_where_the_environment_takes_some(capsys):
    words = advice({**FINE, "task/parsed": 0.1}, build({"env": "relay-v0"}))
    assert "marft sft" in words and "profiles" not in words
    assert main(["profiles", "relay-v0"]) == 1
    assert "'relay-v0' takes no profiles" in capsys.readouterr().err


def test_answers_programs_and_calls_that_nobody_can_read_are_named():
    assert "80% of answers have no form that the task reads" in advice({**FINE, "task/parsed": 0.2}, CONFIG)
    assert "75% of answers" in advice({"task/verdict/no_code": 0.75, "turns": 3.0}, CONFIG)
    assert "50% of turns" in advice({"task/malformed": 2.0, "turns": 4.0}, CONFIG)
    assert advice({"task/malformed": 1.0, "turns": 4.0}, CONFIG) == ""


def test_a_run_says_it_once(tmp_path, capsys):
    command = ["train", "--max-new-tokens", "2", "--iterations", "2", "--episodes-per-iteration", "4"]
    command += ["--eval-every", "1", "--eval-episodes", "4", "--runs-dir", str(tmp_path), "--lora-r", "2"]
    assert main(command) == 0
    said = "".join(capsys.readouterr())
    assert said.count("were truncated at max_new_tokens = 2") == 2  # reasoner and actor, in one note
    assert said.count("note: ") == 1


def write_rows(file, long, words):
    """Writes eight problems, of which some have so many words more."""
    texts = [f"What is {i}+1?" + " and a word" * (words * (i in long)) for i in range(8)]
    rows = [{"id": f"row-{i}", "problem": text, "answer": str(i + 1)} for i, text in enumerate(texts)]
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.ci
def test_a_row_that_is_too_long_fares_alike_wherever_it_stands_and_is_named(here, monkeypatch, capsys):
    """Among those that are looked at before anything is played, or behind them."""
    monkeypatch.setattr(environments, "PROMPTS_CHECKED", 4)
    command = "eval --env math-solo-v0 --data rows.jsonl --engines embedded --episodes 8 --max-new-tokens 4 --out"
    for long in (1, 6):
        write_rows("rows.jsonl", {long}, 420)
        assert main([*command.split(), f"out{long}"]) == 0
        told = capsys.readouterr().err
        assert f"note: too long for the model's context, so their texts were cut at the end: row-{long}. " in told
        metrics = json.loads(Path(f"out{long}/results.json").read_text())["metrics"]
        assert metrics["turns"] == 1.0 and metrics["prompts_truncated"] == 1

    write_rows("rows.jsonl", range(8), 420)
    assert main([*command.split(), "out"]) == 1 and not Path("out").exists()
    assert "prompts of 4 of the first 4 problems do not fit: that of row-" in capsys.readouterr().err


@pytest.mark.ci
def test_a_training_names_rows_that_are_too_long_once(here, capsys):
    write_rows("rows.jsonl", {3}, 40)
    command = "train --data rows.jsonl --context 128 --max-new-tokens 2 --lora-r 2 --iterations 2 --eval-episodes 8"
    assert main([*command.split(), "--episodes-per-iteration", "16", "--name", "r"]) == 0
    said = "".join(capsys.readouterr())
    assert said.count("too long for the model's context") == said.count(": row-3. ") == 1


@pytest.mark.ci
def test_a_budget_is_told_when_asked_for():
    told = build({"env": "math-dual-v0", "max_new_tokens": 32, "show_budget": True})
    assert "at most 32 tokens" in make_env(told, {}).profile("actor_0").prompt
    assert "tokens" not in make_env(CONFIG, {}).profile("actor_0").prompt
    assert "at most 8 tokens" in make_env(told, {"reply_tokens": 8}).profile("actor_0").prompt
