"""`marft export --push`: what reaches the hub, and what is said where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import ModelCard, constants

from helpers import fake_hub
from helpers.fake_hub import FakeHub
from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.extras.export import hub as pushing
from marft_algos.runs.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    model = save_tiny(tmp_path_factory.mktemp("models") / "qwen", hidden=16, layers=1)
    return train(settings(model, tmp_path_factory.mktemp("runs"), name="pair", iterations=2))[1]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr("marft_algos.config.keys._announced", set[tuple[str, str]]())  # said once a process
    with fake_hub.serving() as made:
        point_at(made.url, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", made.token)
        yield made


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As HF_ENDPOINT does, which the package reads when it is imported."""
    for module in (constants, huggingface_hub.hf_api.constants):
        monkeypatch.setattr(module, "ENDPOINT", url)
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(module, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.repocard.constants, "ENDPOINT", url)


def command(run: RunFolder, out: Path, *more: str) -> list[str]:
    return ["export", str(run.root), "--out", str(out), "--push", "me/team", *more]


def test_every_folder_is_a_repository_and_names_are_those_of_the_hub(
    run: RunFolder, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(command(run, out, "--private")) == 0
    assert set(hub.repositories) == {"me/team", "me/team-base", "me/team-planner_0", "me/team-solver_0"}
    assert all(hub.private.values()) and hub.commits[0][0] == "me/team-base", "the base is there before what names it"
    assert hub.commits[-1][0] == "me/team", "the team comes last"
    for name, files in hub.repositories.items():
        folder = out / (name.removeprefix("me/team").removeprefix("-") or "team")
        assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == files.keys()
        assert all((folder / file).read_bytes() == data for file, data in files.items())
    described = json.loads(hub.repositories["me/team-solver_0"]["adapter_config.json"])
    assert described["base_model_name_or_path"] == "me/team-base"
    card = ModelCard.load(out / "solver_0" / "README.md")
    assert card.data.base_model == "me/team-base" and 'PeftModel.from_pretrained(base, "me/team-solver_0")' in card.text
    said = capsys.readouterr()
    assert "HF_TOKEN is sent to http://127.0.0.1" in said.err and hub.token not in said.err + said.out
    assert main(command(run, out)) == 0, "a second push is a second commit"
    assert len(hub.commits) == 8


def test_a_dry_run_lists_and_sends_nothing(
    run: RunFolder, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(pushing, "get_token", lambda: None)
    assert main(command(run, tmp_path / "out", "--dry-run")) == 0
    shown = capsys.readouterr().out
    assert "me/team-solver_0" in shown and "adapter_model.safetensors" in shown and "nothing was sent" in shown
    assert not hub.repositories and (tmp_path / "out" / "solver_0" / "README.md").is_file()


def test_without_a_hub_the_export_stays_and_the_next_command_is_named(
    run: RunFolder, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    assert main(command(run, out)) == 1
    error = capsys.readouterr().err
    assert "did not take 'me/team-base'" in error and "hf auth whoami" in error
    assert f"hf upload me/team-base {out / 'base'}" in error and "hf_of_another" not in error
    hub.close()
    assert main(command(run, out)) == 1
    error = capsys.readouterr().err
    assert f"The export stays in {out}" in error
    assert (out / "solver_0" / "adapter_model.safetensors").is_file() and not hub.repositories


def test_what_cannot_be_pushed_is_said_before_anything_is_written(
    run: RunFolder, hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def fails(*words: str) -> str:
        assert main(["export", str(run.root), "--out", str(out), *words]) == 1 and not out.exists()
        return capsys.readouterr().err

    assert "names no account. Expected USER/NAME" in fails("--push", "team")
    assert "Expected USER/NAME" in fails("--push", "me/te am")
    assert "Expected USER/NAME" in fails("--push", "https://huggingface.co/me/team")
    assert "Expected a shorter NAME" in fails("--push", f"me/{'a' * 92}", "--dry-run")
    monkeypatch.setattr(pushing.constants, "HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE" in fails("--push", "me/team")
    monkeypatch.setattr(pushing.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(pushing, "get_token", lambda: None)
    assert "Type: hf auth login" in fails("--push", "me/team")
    assert not hub.repositories


def test_the_names_that_are_checked_are_those_of_the_folders(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr(pushing, "check_names", lambda prefix, folders: checked.extend(folders))
    assert main(command(run, tmp_path / "out", "--dry-run", "--merged")) == 0
    assert checked == ["base", "planner_0", "planner_0-merged", "solver_0", "solver_0-merged", "team"]
    assert set(checked) == {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}


@pytest.mark.slow
def test_the_endpoint_is_that_of_the_environment(run: RunFolder, tmp_path: Path) -> None:
    """As a user pushes to a hub of one's own: by HF_ENDPOINT, in a process of its own."""
    with fake_hub.serving() as made:
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "HF_ENDPOINT": made.url}
        environ |= {"HF_TOKEN": made.token, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
        program = "import sys, helpers.runs; from marft_algos.cli import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", program, *command(run, tmp_path / "out")], env=environ, capture_output=True,
            text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        assert set(made.repositories) == {"me/team", "me/team-base", "me/team-planner_0", "me/team-solver_0"}
