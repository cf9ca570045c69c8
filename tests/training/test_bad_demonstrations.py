"""Demonstrations that cannot be learnt from, given as a user gives them: named, counted, left out; or an error at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import helpers.runs  # noqa: F401  (registers test/letters-v0)
import marft_envs
from helpers.marks import rest_in_ci
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.runs.folder import RunFolder
from marft_envs.core.types import Episode
from marft_envs.records import experts, trajectory

SHORT = ["--env", "relay-v0", "--iterations", "1", "--episodes-per-iteration", "8", "--eval-episodes", "2"]
SHORT += ["--max-new-tokens", "3", "--lora-r", "2", "--device", "cpu"]
FORM = "Expected one recorded episode a line"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("models") / "qwen", hidden=16, layers=1))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def right(n: int = 6, env: str = "relay-v0") -> list[Episode]:
    made = marft_envs.make(env)
    return [experts.play(made, seed) for seed in range(n)]


def wrong(seed: int) -> Episode:
    env = marft_envs.make("relay-v0")
    env.reset(seed=seed)
    while not env.done:
        env.step("hello")
    return env.episode


def forged(seed: int) -> Episode:
    """An episode whose record says that it succeeded."""
    episode = wrong(seed)
    episode.success = True
    return episode


def changed(**fields: Any) -> Episode:
    episode = right()[-1]
    for name, value in fields.items():
        setattr(episode, name, value)
    return episode


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Runs a command that must end with one message, before anything is played or written; returns it."""
    capsys.readouterr()
    assert main([*words]) == 1
    told = capsys.readouterr().err
    assert "evaluat" not in told and not Path("runs").exists(), told
    return told


@pytest.mark.parametrize(("episode", "reason"), rest_in_ci([
    (lambda: wrong(20), "no success"), (lambda: forged(20), "the grader rejects it"),
    (lambda: changed(seed=None), "recorded without a seed"),
    (lambda: changed(options={"task_id": "relay/9"}), "played again it is another episode"),
    (lambda: right(1, "xor-v0")[0], "an episode of xor-v0"),
], 2))  # fmt: skip
def test_what_is_rejected_is_named_counted_and_left_out(
    episode: Callable[[], Episode], reason: str, qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rejected, good = episode(), right(4)
    trajectory.write("some.jsonl", [*good, rejected])
    words = ["sft", "--models", qwen, *SHORT, "--demonstrations", "some.jsonl", "--name", "run", "--record-every", "1"]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert f"{reason}" in told and f"(1, such as {rejected.task_id} (no. 5 of some.jsonl))" in told
    assert "left out in all: " in told and told.count("no. 5 of some.jsonl") == 1, "it is told once"
    run = RunFolder.open("run")
    (metrics,) = (line for line in run.metrics() if line["iteration"] == 1)
    assert metrics["rejected"] == 1.0
    assert [n for key, n in metrics.items() if key.startswith("rejected/") and reason in key] == [1.0]
    assert {episode.seed for episode in run.episodes("train", 1)} <= {episode.seed for episode in good}
    Path("alone.jsonl").write_text(Path("some.jsonl").read_text().splitlines()[-1])
    assert main([*words[:-5], "alone.jsonl"]) == 1
    assert reason in capsys.readouterr().err or reason == "no success"


@pytest.mark.parametrize(("text", "messages"), [
    ("", ["'some.jsonl' holds no episode", FORM]), ("\n\n", ["holds no episode", FORM]),
    ('{"prompt": "1 + 1", "completion": "2"}', ["some.jsonl:1: No episode record: prompt is unknown", FORM]),
    (
        '{"messages": [{"role": "user", "content": "1"}]}',
        ["line 1: expected a row with 'messages', and text as 'action' and 'agent'", FORM],
    ),
    ("[1, 2]", ["it is of type list", FORM]), ("hello", ["some.jsonl:1: Expecting value", FORM]),
    ("\udcff\udcfe\udc80", ["some.jsonl:1: ", FORM]), ("GOOD\nGOOD[:99]\nGOOD", ["some.jsonl:2: ", FORM]),
    ("BAD", ["None of the 1 episodes at", "--record-every 1 --record-episodes 64"]),
])  # fmt: skip
def test_a_file_that_is_none_says_which_line_and_what_is_expected(
    text: str, messages: list[str], qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {"GOOD": json.dumps(trajectory.to_dict(right(1)[0])), "BAD": json.dumps(trajectory.to_dict(wrong(20)))}
    text = text.replace("GOOD[:99]", lines["GOOD"][:99]).replace("GOOD", lines["GOOD"]).replace("BAD", lines["BAD"])
    Path("some.jsonl").write_bytes(text.encode(errors="surrogateescape"))
    for more in ([], ["--dry-run"]):
        told = fails(capsys, "sft", "--models", qwen, *SHORT, "--demonstrations", "some.jsonl", *more)
        assert all(message in told.replace(str(Path.cwd()) + "/", "") for message in messages), told


@pytest.mark.parametrize(("words", "message"), [
    (["sft", "--demonstrations", "none.jsonl"], "There are no demonstrations at 'none.jsonl'"),
    (["sft", "--demonstrations", "Expert"], "Expected 'expert', a JSONL file"),
    (["sft", "--demonstrations", "."], "the folder of a run that recorded some"),
    (["sft", "--max-new-tokens", "1"], "a reply of more than 1 tokens (8, such as relay/"),
    (["sft", "--context", "84"], "prompt and reply of more than 84 tokens"),
    (["sft", "--context", "80"], "has a context of 80"), (["sft", "--env", "test/letters-v0"], "has no expert"),
    (["dpo"], "--demonstrations runs/NAME"), (["dpo", "--demonstrations", "expert"], "--demonstrations runs/NAME"),
    (["dpo", "--demonstrations", "good.jsonl"], "marft train grpo --record-every 1 --record-episodes 64"),
    (["dpo", "--demonstrations", "mixed.jsonl", "--episodes-per-iteration", "1"], "Raise --episodes-per-iteration"),
    (["train", "--warm-start", "1", "--env", "test/letters-v0"], "has no expert"),
    (["train", "--warm-start", "1", "--max-new-tokens", "1"], "a reply of more than 1 tokens"),
    (["train", "grpo", "--warm-start", "1", "--episodes-per-iteration", "9"], "no multiple of grpo's group_size"),
    (["train", "--warm-start", "1", "--name", "../out"], "would lie outside"),
])  # fmt: skip
def test_what_cannot_be_demonstrated_is_an_error_before_anything_is_played(
    words: list[str], message: str, qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trajectory.write("good.jsonl", right())
    trajectory.write("mixed.jsonl", [*right(), wrong(0)])
    algo = words[: 2 if words[1:] and not words[1].startswith("-") else 1]
    given = [*SHORT, *words[len(algo) :]]
    assert message in fails(capsys, *algo, "--models", qwen, *given)


def test_a_run_named_without_its_folder_is_found(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/taught/episodes").mkdir(parents=True)
    assert main(["sft", "--models", qwen, *SHORT, "--demonstrations", "taught"]) == 1
    assert "Did you mean 'runs/taught'?" in capsys.readouterr().err


def test_a_warm_start_is_not_trained_for_a_run_that_cannot_begin(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--models", qwen, *SHORT, "--warm-start", "1", "--name"]
    Path("runs/taken").mkdir(parents=True)
    Path("runs/taken/notes.txt").write_text("mine")
    assert main([*words, "taken"]) == 1
    assert "'runs/taken' exists already" in capsys.readouterr().err and not Path("runs/taken-warm").exists()
    assert main(["sft", "--models", qwen, *SHORT, "--env", "xor-v0", "--name", "team-warm"]) == 0
    before = Path("runs/team-warm/config.toml").read_text()
    assert main([*words, "team"]) == 1
    told = capsys.readouterr().err
    assert "has another 'env' ('xor-v0'; wanted 'relay-v0')" in told and "--start runs/team-warm" in told
    assert Path("runs/team-warm/config.toml").read_text() == before and not Path("runs/team").exists()
