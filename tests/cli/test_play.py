"""`marft play --team`: the trained team's own game."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from helpers.runs import settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main


def test_a_team_plays_what_it_was_trained_on_unless_something_else_is_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, told = save_tiny(tmp_path / "model", hidden=16, layers=1), {"reasoner": "Work out the first step."}
    table = {"env": "math-dual-v0", "env_kwargs": {"levels": [0], "profiles": told}, "iterations": 1, "save_every": 1}
    run = train(settings(model, tmp_path, **table))[1]
    for typed, level in (([], "0"), (["--env-kwargs", "levels=[2]"], "2")):
        monkeypatch.setattr("sys.stdin", io.StringIO("I do not know\n"))
        assert main(["play", "math-dual-v0", "--agent", "reasoner_0", "--team", str(run.root), *typed]) == 0
        shown = capsys.readouterr().out
        assert told["reasoner"] in shown and f"/{level}/" in shown.splitlines()[0]
