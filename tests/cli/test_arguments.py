"""Values as they are typed behind ``--env-kwargs``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft_algos.cli import main, training
from marft_algos.config import arguments
from marft_algos.config.evaluation import EvalArguments


@pytest.mark.parametrize(("text", "wanted"), [
    ("3", 3), ("true", True), ("[0, 1]", [0, 1]), ('{package = "here"}', {"package": "here"}),
    ('{"package": "here"}', {"package": "here"}),
    ('{"levels": [0, null], "deep": {"a": true}}', {"levels": [0, None], "deep": {"a": True}}), ("null", None),
    ("none", "none"), ("{name}", "{name}"), ("tau:/data/tau", "tau:/data/tau"),
])  # fmt: skip
def test_toml_json_and_text(text: str, wanted: Any) -> None:
    assert arguments.value(text) == wanted


def kwargs(*argv: str) -> dict[str, Any]:
    return training.typed_settings(list(argv))[0].env_kwargs


def test_null_takes_the_presets_argument_away() -> None:
    assert kwargs("--preset", "tools") == {"show_policy": False, "show_tools": "none"}
    assert kwargs("--preset", "tools", "--env-kwargs", "show_tools=null") == {"show_policy": False}


def test_what_a_preset_says_of_its_domain_is_not_said_of_another() -> None:
    assert kwargs("--preset", "tools", "--env-kwargs", "domain=bfcl") == {"domain": "bfcl"}
    found = kwargs("--preset", "tools", "--env-kwargs", "domain=mcp", 'domain_args={"server": "url"}', "levels=[2]")
    assert found == {"domain": "mcp", "domain_args": {"server": "url"}, "levels": [2]}


def test_a_table_that_is_typed_in_several_places_is_one() -> None:
    """Else `--gate cost=+0 --gate score=-0.02` is a gate of the score alone, and nothing says so."""
    parts = ("--env-kwargs", "domain=bfcl", "--seed", "3", "--env_kwargs", "levels=[1,2]", "--env-kwargs=limit=4")
    assert kwargs(*parts) == {"domain": "bfcl", "levels": [1, 2], "limit": 4}
    argv = ["--compare", "a", "b", "--gate", "cost=+0", "--gate", "score=-0.02", "x=+1", "--seed", "1", "--seed", "2"]
    options = arguments.parse(EvalArguments, argv, prog="marft eval")
    assert (options.gate, options.seed) == ({"cost": "+0", "score": "-0.02", "x": "+1"}, 2)
    assert options.compare == ("a", "b")


def test_the_settings_of_a_file_stay(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('env = "tools-solo-v0"\n[env_kwargs]\ndomain = "depot"\nlevels = [1]\n')
    assert kwargs("--config", str(file), "--env-kwargs", "domain=tau")["levels"] == [1]


def test_check_takes_arguments_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["check", "tools-solo-v0", "--env-kwargs", 'domain_args={"injections": true}', "levels=null", "limit=1"]
    assert main(argv) == 0 and "16 checks passed" in capsys.readouterr().out
