"""``marft plan``: what it prints, where it takes configurations from, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import published
from marft_algos.cli import app as cli
from marft_algos.runs.paths import local_model
from marft_algos.training import setup
from marft_envs.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(setup, "make_policies", lambda *_: pytest.fail("weights were loaded"))
    return published.save(tmp_path, "7B")


def test_a_plan_of_a_folder_with_a_configuration_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.parent.rglob("*"))
    argv = ["plan", "grpo", "--preset", "default", "--models", "./7B", "--lora-r", "32", "--gpus", "8"]
    assert cli.main([*argv, "--memory", "80", "--bandwidth", "1.1", "40"]) == 0
    shown = capsys.readouterr().out
    assert "math-dual-v0 · grpo, on 8 GPUs of 80 GB" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith(("  reasoner_0", "  actor_0"))]
    assert [row[1:3] for row in rows] == [["./7B", "80,740,352"]] * 2
    assert " ".join(rows[0][3:]) == "323 MB 161 MB 294 ms, 147 ms 8.1 ms, 4 ms"
    assert "ranks 0-7" in shown and "choose: ranks = 8, workers = 0, shard = whole" in shown
    assert "gradients   969 MB" in shown, "three partners, 323 MB each"
    assert sorted(folder.parent.rglob("*")) == before, "nothing is written"


def test_options_of_the_plan_stand_anywhere_among_those_of_train(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--gpus", "4", "--env", "relay-v0", "--ranks", "2", "--algo", "mappo", "--models", "7B/config.json"]
    assert cli.main(["plan", *options, "--worker-gpus=1"]) == 0
    shown = capsys.readouterr().out
    assert "relay-v0 · mappo, on 4 GPUs of 80 GB" in shown and "choose: ranks = 2, workers = 2" in shown
    assert "7B/config.json" in shown and "--staleness" in shown


def test_without_options_the_embedded_model_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan"]) == 0
    assert "embedded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gpus", "1"], "a chunk of 128 episodes (all of an iteration); rows in flight on a GPU: 128"),
        (["--gpus", "2", "--ranks", "2", "--workers", "0"], "a chunk of 16 episodes (128 over 8 lanes, at least 8, at"),
        (
            ["--gpus", "4", "--ranks", "2"],
            "(128 over 2 workers, at least 8, at most --engine-batch 256); rows in flight",
        ),
        (["--gpus", "1", "--chunk", "32"], "a chunk of 32 episodes (--chunk); rows in flight on a GPU: 32"),
    ],
)
def test_a_plan_says_what_is_decoded_at_once(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--episodes-per-iteration", "128", *options]) == 0
    assert expected in capsys.readouterr().out


def test_what_does_not_fit_is_printed_and_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--preset", "default", "--models", "7B", "--memory", "6", "--gpus", "1"]) == 1
    printed = capsys.readouterr()
    assert "does not fit, nor in smaller pieces" in printed.out
    assert "choose" not in printed.out
    assert "A rank does not fit." in printed.err and "What would hold it: " in printed.err


def test_a_hubs_model_is_taken_from_the_cache_and_never_downloaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a connection was opened"))
    argv = ["plan", "--preset", "default", "--models", "Qwen/Qwen2.5-7B-Instruct", "--gpus", "8"]
    assert cli.main(argv) == 1
    told = capsys.readouterr().err
    assert "hf download Qwen/Qwen2.5-7B-Instruct config.json --local-dir Qwen2.5-7B-Instruct" in told
    assert "--models ./Qwen2.5-7B-Instruct" in told
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(folder / "config.json"))
    assert cli.main(argv) == 0
    assert "Qwen/Qwen2.5-7B-Instruct" in capsys.readouterr().out, "by the name that was typed"


def test_where_a_configuration_is_taken_from(folder: Path) -> None:
    assert local_model("embedded") == "embedded"
    assert local_model("7B/config.json") == "7B"
    assert local_model(str(folder)) == str(folder)
    Path("shape.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"copy it, say to shape/config\.json"):
        local_model("shape.json")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--gpus", "0"], "expected at least 1"),
        (["--gpus", "8", "--ranks", "6"], "--ranks 4 or --ranks 8"),
        (["--gpus", "8", "--ranks", "16"], "--ranks 8, or --gpus 16"),
        (["--memory", "0"], "more than 0"),
        (["--bandwidth", "0"], "more than 0"),
        (["--bandwidth"], "--bandwidth"),
        (["--iteratoins", "3"], "--iterations"),
        (["--models", "./none"], "There is no model folder './none'"),
        (["--models", "a/b/c"], "There is no model folder 'a/b/c'"),
        (["--shard", "base", "--gpus", "1", "--ranks", "1"], "--shard whole, or --ranks 2"),
        (["--shard", "bse"], "bse"),
        (["--lr", "0"], "has lr = 0"),
    ],
)
def test_bad_input_is_refused_with_what_to_type(
    more: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["plan", *more])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    printed = capsys.readouterr()
    assert code in (1, 2) and said in printed.err and "Traceback" not in printed.err


def test_a_folder_without_a_configuration_says_what_is_expected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    assert cli.main(["plan", "--models", "empty"]) == 1
    assert "holds no config.json" in capsys.readouterr().err
    (here / "empty" / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    assert cli.main(["plan", "--models", "empty"]) == 1
    assert "The model 'empty' cannot be loaded" in capsys.readouterr().err


def test_a_plan_executes_nothing_of_a_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(here / "states"))
    (here / "strange.py").write_text("open('executed', 'w')")
    (here / "run.toml").write_text('env = "strange:odd-v0"')
    assert cli.main(["plan", "--config", "run.toml"]) == 1
    assert "--trust" in capsys.readouterr().err and not (here / "executed").exists()
    server = 'domain_args = {server = ["sh", "-c", "touch executed"]}'
    (here / "run.toml").write_text(f'env = "tools-solo-v0"\n[env_kwargs]\ndomain = "mcp"\n{server}\n')
    assert cli.main(["plan", "--config", "run.toml", "--trust"]) == 0
    assert "not executed" in capsys.readouterr().out
    assert not (here / "executed").exists()
