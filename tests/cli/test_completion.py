"""Completion knows every command and option of the parser, and a shell completes with it."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from marft_algos.cli import completion, main
from marft_algos.cli.app import COMMANDS, GROUPS


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "eval", "play", "export", "bench run", "doctor", "view"])
def test_every_option_of_the_parser_is_known(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main([*command.split(), "--help-all"])
    shown = set(re.findall(r"^\W{1,6}(--[a-z][\w-]*)", capsys.readouterr().out, re.MULTILINE))
    assert shown and shown <= set(completion.words()[command])


def test_every_command_is_completed_and_grouped() -> None:
    assert set(COMMANDS) <= set(completion.words()[""]) and set(COMMANDS) <= set(completion.words())
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(("typed", "completed"), [
    (["marft", "tr"], ["train", "traces"]), (["marft", "bench", "rep"], ["report"]),
    (["marft", "bench", "run", "--st"], ["--stage"]),
    (["marft", "train", "--episodes-p"], ["--episodes-per-iteration"]),
    (["marft", "train", "--env", "rel"], ["relay-v0"]), (["marft", "train", "--dtype", "b"], ["bf16"]),
    (["marft", "play", "math-du"], ["math-dual-v0"]), (["marft", "train", "spi"], ["spiral"]),
])  # fmt: skip
def test_bash_completes(
    typed: list[str], completed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "marft.bash").write_text(script("bash", capsys))
    ask = f"COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; _marft; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {tmp_path}/marft.bash; {ask}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == completed and not done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "relay-v0" in text and "episodes-per-iteration" in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here to read it")
    (tmp_path / "script").write_text(text)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr
