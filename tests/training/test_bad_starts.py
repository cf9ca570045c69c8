"""Runs, checkpoints and adapters that cannot be begun with, as a user names them: what is said, what is typed next."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.marks import rest_in_ci
from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_envs import artefacts

POLICY = "runs/a/checkpoints/step_000002/policies/planner_0"
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    model = save_tiny(root / "qwen", hidden=16, layers=1)
    save_tiny(root / "wider", hidden=32, layers=1)
    train(settings(model, root / "runs", env="relay-v0", name="a", iterations=2))
    return root


@pytest.fixture(autouse=True)
def here(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(study, tmp_path / "study")
    monkeypatch.chdir(tmp_path / "study")


def fails(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Types a command that must end with one message, and no new run; returns the message."""
    capsys.readouterr()
    there = sorted(Path("runs").iterdir())
    assert main(shlex.split(words)) == 1
    assert sorted(Path("runs").iterdir()) == there
    return capsys.readouterr().err


@pytest.mark.parametrize("more", ["--dry-run", ""])
@pytest.mark.parametrize(("words", "messages"), [
    ("--start runs/none", ["'runs/none' is no run"]), ("--start qwen", ["'qwen' is no run"]),
    ("--start runs/a/7", ["There is no checkpoint '7'", "Expected last, best or one of [0, 2]"]),
    ("--start runs/a/bset", ["There is no checkpoint 'bset'", "Expected last, best"]),
    ("--start a/latest", ["There is no checkpoint 'latest'"]),
    ("--start runs/a/checkpoints/step_000009", ["There is no checkpoint '9'"]),
    (f"--start {POLICY}", ["--start runs/a/checkpoints/step_000002.", f"--adapters planner_0={POLICY}"]),
    ("--start runs/a --lora-r 4", ["lora_r is 2; here it is 4", "Leave --lora-r out"]),
    ("--start runs/a --models wider", ["stands on the model", "Leave --models out"]),
    ("--start runs/a --full-finetune", ["full_finetune is False; here it is True"]),
    ("--start runs/a --policies shared", ["--policies planner_0=planner_0 solver_0=planner_0", "without --start."]),
    ("--start runs/a --env xor-v0", ["--policies left_0=planner_0 right_0=planner_0 joiner_0=planner_0"]),
    ("--start runs/a --frozen sovler_0", ["Did you mean 'solver_0'?"]),
    ("--start runs/a --lr plannr_0=1e-3 solver_0=1e-3", ["'lr' names an unknown policy", "'planner_0'?"]),
    (f"--start runs/a --adapters plan_0={POLICY}", ["'adapters' names an unknown policy 'plan_0'"]),
    (f"--env relay-v0 --models qwen --adapters planner_0={POLICY}", ["has rank 2", "Type: --lora-r 2 --lora-alpha"]),
    (f"--env relay-v0 --models qwen --lora-r 2 --lora-alpha 4 --adapters planner_0={POLICY}", ["--lora-alpha 16"]),
    (
        "--env relay-v0 --models qwen --adapters planner_0=runs/a",
        [f"There is no {WEIGHTS}", "runs/a/checkpoints/step_000002/policies/"],
    ),
    ("--env relay-v0 --models qwen --adapters planner_0=qwen", [f"There is no {WEIGHTS} in"]),
])  # fmt: skip
def test_what_cannot_be_begun_with_says_what_to_type(
    words: str, messages: list[str], more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = fails(f"train {words} --device cpu {more}", capsys)
    assert all(message in told for message in messages), told


def test_an_adapter_of_another_base_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    told = fails(
        f"train --env relay-v0 --models wider --lora-r 2 --max-new-tokens 3 --adapters planner_0={POLICY}", capsys
    )
    assert "belongs to the base model '" in told and "--models POLICY=" in told and "qwen" in told


@pytest.mark.parametrize(("damage", "message"), rest_in_ci([
    (lambda p: (p / WEIGHTS).write_bytes(b""), "cannot be read"),
    (lambda p: (p / WEIGHTS).write_bytes((p / WEIGHTS).read_bytes()[:400]), "is damaged, or cut"),
    (lambda p: (p / WEIGHTS).unlink(), f"There is no {WEIGHTS}"),
    (lambda p: (p / "adapter_config.json").write_text("{"), "Expected what peft writes"),
    (lambda p: (p / "adapter_config.json").write_text("[1]"), "Expected what peft writes"),
    (shutil.rmtree, "has no policy 'planner_0'"),
]))  # fmt: skip
def test_weights_that_were_saved_damaged_are_said_to_be_so_whoever_reads_them(
    damage: Callable[[Path], object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their checksums say that they were saved so; what has changed since, they tell (``tests/runs/test_checksums``)."""
    damage(Path(POLICY))
    artefacts.write(Path(POLICY).parents[1])
    for words in (
        "train grpo --start runs/a --episodes-per-iteration 8 --iterations 1",
        "train --resume runs/a --iterations 4",
        "eval runs/a --episodes 2",
        "export runs/a --out exported",
    ):
        assert message in fails(words, capsys), words
    assert not Path("exported").exists()


@pytest.mark.parametrize("words", ["eval {}", "export {}", "show {}", "train --resume {}", "eval --compare runs/a {}"])
@pytest.mark.parametrize("place", ["runs/a/best", "runs/a/checkpoints/step_000009", "a/last"])
def test_a_place_in_a_run_names_the_run(words: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = fails(words.format(place), capsys)
    assert "is no run, but lies in one: 'runs/a'" in told and "--checkpoint last, best or a number" in told
