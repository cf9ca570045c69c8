"""What README, CONTRIBUTING and the pages say to type is read by the parser that it is for, and somebody has run it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import benchmarks.__main__ as measurements
from benchmarks.correctness import commands
from marft_algos.cli import completion, main
from marft_algos.config import arguments, trust
from marft_algos.config.settings import build
from marft_algos.runs.folder import RunFolder

EVERY = commands.every()
RECORD = json.loads(commands.RECORD.read_text(encoding="utf-8"))
PROCESSES = re.compile(r" --nproc[ =]\S+")
"""The option that starts processes before anything else is read."""
OPEN = re.compile(r"\bN\b|\$|USER/NAME|(better_half|grpo_range):")
"""What the reader, the shell or another page puts in: of such commands the names of the options are read."""
ABSENT = re.compile(
    r"is no run|Cannot read|There is no (model folder|module)|There are no demonstrations|neither a data set"
)
"""What is said where a file, a run or a model of the reader's is not there; every option has been read or is below."""


class Read(Exception):
    """The parser has taken the words; nothing is run."""


@pytest.fixture
def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the run that pages name, in which commands end when they have been parsed."""
    take, parse_args = arguments.read, argparse.ArgumentParser.parse_args

    def parsed(*args: Any, **words: Any) -> Any:
        take(*args, **words)
        raise Read

    def measured(self: argparse.ArgumentParser, *args: Any, **words: Any) -> Any:
        parse_args(self, *args, **words)
        raise Read

    monkeypatch.setattr(arguments, "read", parsed)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", measured)
    monkeypatch.setattr(trust, "importable", lambda: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [""])
    (tmp_path / "examples").symlink_to(commands.ROOT / "examples")
    run = RunFolder.create("runs", "NAME", "")
    (run.root / "config.toml").write_text(build({}).to_toml())
    (run.checkpoints / "step_000001" / "policies").mkdir(parents=True)
    yield


def read(command: str) -> None:
    """Reads a command of a page as it is typed; fails where its parser does not know a word."""
    assert "[" not in re.sub(r"'[^']*'", "", command), "zsh takes [ for a pattern: quote it"
    program, *words = shlex.split(PROCESSES.sub("", command.partition(" > ")[0]))
    try:
        if program == "marft":
            known = completion.words()
            verb = " ".join(words[: 1 + (words[:1] == ["bench"])])
            strange = {w.partition("=")[0] for w in words if re.match(r"--[a-z]", w)} - {"--version", "--no-engines"}
            strange -= {option for name in (verb, "") for option in known.get(name, [])} | {"--tail"}
            assert not strange, f"no option of marft {verb}"
            assert OPEN.search(command) or main(words) == 0
        elif words[:2] == ["-m", "benchmarks"]:
            files = measurements.modules()
            file = files.get(words[2], files.get(f"perf_{words[2]}")) if len(words) > 2 else None
            if file is None or "ArgumentParser" in file.read_text(encoding="utf-8"):
                measurements.main(words[2:])
            assert file or words[2:3] == ["--help"] or len(words) == 2, "no such measurement"
    except (Read, SystemExit) as leaving:
        assert not getattr(leaving, "code", None)


@pytest.mark.parametrize("page", dict.fromkeys(EVERY.values()))
def test_every_command_of_a_page_is_read_by_its_parser(
    page: str, reading: None, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for command in (command for command, where in EVERY.items() if where == page):
        try:
            read(command)
        except AssertionError as error:
            said = capsys.readouterr().err
            if "no option" in str(error) or not ABSENT.search(said):
                wrong.append(f"{command}\n    {error}\n    {said}")
    assert not wrong, "\n".join(wrong)


def test_every_command_has_been_run_or_has_a_reason_not_to_be() -> None:
    due = {command for command, page in EVERY.items() if not commands.reason(command, page)}
    assert len(due) >= 25 and RECORD.keys() == due, "type: python -m benchmarks commands"
    for command, ran in RECORD.items():
        assert ran["exit"] == 0 or (ran["exit"] == 1 and commands.VERDICTS.match(command)), command
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", ran["ran"]), command


def test_every_target_of_make_on_a_page_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (commands.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    typed = {command.split()[1] for command in EVERY if command.startswith("make ")}
    assert typed and typed <= targets


def test_a_misspelt_option_of_a_page_is_found(reading: None) -> None:
    for command in ("marft train --iteratoins 3", "python -m benchmarks envs --sedonds 3", "marft envz"):
        with pytest.raises(AssertionError):
            read(command)
