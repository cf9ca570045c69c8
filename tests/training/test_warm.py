"""A warm start: a run of sft that another run makes for itself, and begins with."""

import json
import os

import pytest

import marft_algos
from marft_algos.algorithms import base as algorithms
from marft_algos.cli.app import main
from marft_algos.config import presets
from marft_algos.config import settings as configs
from marft_algos.runs.folder import RunFolder
from marft_algos.training.resolve import RISE
from marft_algos.training.warm import supervised

SHORT = ["--env", "relay-v0", "--preset", "toy", "--iterations", "1", "--episodes-per-iteration", "32"]
SHORT += ["--eval-every", "0", "--eval-episodes", "16", "--minibatches", "1"]


def test_a_run_begins_with_the_warm_start_that_it_makes(tmp_path, capsys):
    assert main(["train", *SHORT, "--warm-start", "3", "--runs-dir", str(tmp_path), "--name", "team"]) == 0
    warm, run = RunFolder(tmp_path / "team-warm"), RunFolder(tmp_path / "team")
    assert "warm start: " in capsys.readouterr().out
    assert configs.load(warm.config_file).algo == "sft" and warm.metrics()[-1]["iteration"] == 3
    before, after = warm.metrics()[0]["eval/success"], warm.metrics()[-1]["eval/success"]
    assert after > before
    assert run.metrics()[0]["eval/success"] == after  # what reinforcement begins with
    made = configs.load(run.config_file)
    assert made.start.startswith(str(warm.root)) and made.warm_start == 0  # so going on with it makes none
    typed = json.loads((warm.root / "commands.jsonl").read_text().splitlines()[0])
    assert "--warm-start 3" in typed["command"]


@pytest.mark.ci
def test_a_warm_start_that_is_there_is_taken(tmp_path):
    words = [*SHORT, "--warm-start", "1", "--runs-dir", str(tmp_path), "--name", "team"]
    assert main(["sft", *SHORT, "--runs-dir", str(tmp_path), "--name", "team-warm"]) == 0
    before = RunFolder(tmp_path / "team-warm").metrics()
    assert main(["train", *words]) == 0
    assert RunFolder(tmp_path / "team-warm").metrics() == before


@pytest.mark.ci
def test_a_run_that_starts_elsewhere_or_imitates_makes_none(tmp_path):
    place = ["--runs-dir", str(tmp_path), "--warm-start", "1"]
    assert main(["sft", *SHORT, *place, "--name", "taught"]) == 0
    assert main(["train", *SHORT, *place, "--name", "team", "--start", str(tmp_path / "taught")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taught", "team"]


@pytest.mark.ci
def test_from_python_too(tmp_path):
    run = marft_algos.train(
        "toy", env="relay-v0", warm_start=1, iterations=1, episodes_per_iteration=16, eval_every=0, eval_episodes=4,
        runs_dir=str(tmp_path), name="team",
    )  # fmt: skip
    assert configs.load(run.config_file).start.startswith(str(tmp_path / "team-warm"))


@pytest.mark.ci
def test_the_rate_rises_over_the_first_iterations_where_weights_were_trained_before(tmp_path):
    words = [*SHORT, "--episodes-per-iteration", "16", "--eval-episodes", "4", "--iterations", "0"]
    words += ["--runs-dir", str(tmp_path)]
    start = ["--start", str(tmp_path / "warmed-warm")]
    assert main(["train", *words, "--warm-start", "1", "--name", "warmed"]) == 0
    assert main(["train", *words, *start, "--name", "started"]) == 0
    assert main(["train", *words, *start, "--lr-warmup", "0", "--name", "told"]) == 0
    assert main(["train", *words, "--name", "untrained"]) == 0
    rises = {n: configs.load(tmp_path / n / "config.toml").algorithm.lr_warmup for n in os.listdir(tmp_path)}
    assert rises == {"warmed-warm": 0, "warmed": RISE, "started": RISE, "told": 0, "untrained": 0}


@pytest.mark.ci
def test_what_demonstrations_taught_is_not_undone_by_the_first_steps(tmp_path):
    """At the full rate this seed unlearns to end its turn; then nothing that it samples is paid any more."""
    run = marft_algos.train(
        "toy", env="examples.planted:planted-v0", env_kwargs={"case": "relay"}, warm_start=4, seed=12001,
        iterations=8, episodes_per_iteration=64, eval_every=0, eval_episodes=48, runs_dir=str(tmp_path), name="relay",
    )  # fmt: skip
    scores = [line["eval/success"] for line in run.metrics() if "eval/success" in line]
    assert scores == [1.0, 1.0]


def test_a_warm_start_has_the_team_and_the_task_of_its_run_and_the_defaults_of_sft():
    config = configs.build(
        {"env": "relay-v0", "warm_start": 2, "seed": 7, "lora_r": 4, "token_budget": 9, "algorithm": {"lr": 1e-6}}
    )
    made = supervised(config)
    assert (made.algo, made.iterations, made.seed, made.lora_r, made.env) == ("sft", 2, 7, 4, "relay-v0")
    assert made.token_budget is None and made.algorithm.lr == 5e-4


def test_a_presets_rate_and_steps_are_for_reinforcement_and_not_for_imitation():
    preset = configs.build(presets.get("smollm2"))
    for algo in ("sft", "dpo"):
        taught, plain = configs.build({"algo": algo}, preset).algorithm, algorithms.get(algo).Config()
        assert (taught.lr, taught.minibatches, taught.epochs) == (plain.lr, plain.minibatches, plain.epochs)
        assert taught.micro_tokens == preset.algorithm.micro_tokens == 2048  # a matter of the machine
    assert configs.build({"algo": "grpo"}, preset).algorithm.lr == preset.algorithm.lr
