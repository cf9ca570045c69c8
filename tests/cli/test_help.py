"""``--help`` opens with what the command does, its usage, and examples that the command accepts as they stand."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from marft_algos import terminal
from marft_algos.algorithms import base as algorithms
from marft_algos.cli import app, completion, main
from marft_algos.config import arguments, forms, manual
from marft_algos.config.settings import TrainConfig, build
from marft_algos.extras.bench import commands as bench
from marft_algos.runs.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
FORMS: dict[str, Any] = completion.options_of()
EXAMPLES = [(command, words) for command, entry in manual.MANUAL.items() for words, _ in entry.examples]


def shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(argv)
    assert not leaving.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("command", manual.MANUAL)
def test_help_opens_with_one_line_then_usage_then_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown([*command.split(), "--help"], capsys)
    first, usage, *_ = text.split("\n\n")
    assert first and usage.startswith(f"usage: marft {command}")
    examples = text.partition("\nExamples:\n")[2].partition("\n\n")[0]
    assert examples.count(f"marft {command}") >= 2 and 2 <= len(manual.MANUAL[command].examples) <= 4
    assert "``" not in re.split(r"(?m)^\W*(?:positional arguments|options)\b", text)[0]


def test_every_command_has_examples_and_no_other_has() -> None:
    verbs = {f"bench {verb}" for verb in bench.VERBS}
    assert {*app.COMMANDS, *verbs} == set(manual.MANUAL) and FORMS.keys() <= manual.MANUAL.keys()


class Accepted(Exception):
    """The parser has taken the words; nothing is run."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the run that examples name, in which commands end when they have been parsed."""
    read = arguments.read

    def parsed(*args: Any, **words: Any) -> Any:
        settings = read(*args, **words)
        raise Accepted(repr(settings))

    monkeypatch.setattr(arguments, "read", parsed)
    monkeypatch.chdir(tmp_path)
    run = RunFolder.create("runs", "NAME", "")
    (run.root / "config.toml").write_text(build({}).to_toml())
    (run.checkpoints / "step_000001" / "policies").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(("command", "words"), EXAMPLES)
def test_every_example_is_accepted_by_its_command(command: str, words: str, home: Path) -> None:
    typed = shlex.split(f"{command} {words}")
    if ">" in typed:  # the shell's
        typed = typed[: typed.index(">")]
    with pytest.raises(Accepted):
        main(typed)
    for word in typed:
        if word.startswith("examples/"):
            assert (ROOT / word).is_file()
        elif re.fullmatch(r"[a-z0-9-]+-v\d+", word):
            assert marft_envs.spec(word).id == word


def test_what_no_command_accepts_is_no_example(home: Path) -> None:
    assert main(["train", "--env", "math-dual-v0", "--iterations", "-1"]) == 2, "the examples' test can fail"


@pytest.mark.parametrize("command", [command for command, entry in manual.MANUAL.items() if entry.groups])
def test_every_option_is_in_one_group(command: str) -> None:
    entry, types = manual.MANUAL[command], forms.hints(FORMS[command])
    grouped = [*entry.common, *(name for names in entry.groups.values() for name in names)]
    assert sorted(grouped) == sorted(name for name, hint in types.items() if not forms.is_positional(hint))


@pytest.mark.parametrize("command", ["train", "eval", "versus"])
def test_help_is_short_and_says_where_the_rest_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    brief, whole = (shown([command, word], capsys) for word in ("--help", "--help-all"))
    boxes = (text.partition("common options")[2] for text in (brief, whole))
    options = [re.findall(r"^\W{1,3}(--[a-z][\w-]*)", text, re.MULTILINE) for text in boxes]
    common = ["--" + name.replace("_", "-") for name in manual.MANUAL[command].common]
    assert options[0] == common == options[1][: len(common)], "short first"
    left = re.search(rf"^(\d+) more options \([^)]*\):\s+marft {command} --help-all$", brief, re.MULTILINE)
    assert left and int(left[1]) == len(options[1]) - len(options[0]) and "more options" not in whole


def test_an_algorithm_that_is_named_shows_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--group-size" in shown(["train", "grpo", "--help"], capsys)
    assert "--group-size" not in shown(["train", "--help"], capsys)
    assert "--demonstrations" in shown(["sft", "--help"], capsys)


def test_common_settings_of_training_are_settings() -> None:
    assert set(manual.MANUAL["train"].common) <= set(TrainConfig.__dataclass_fields__)


def test_the_page_of_the_command_line_has_every_example() -> None:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    marked = re.findall(r"<!-- no-output: examples of ([a-z ]+) -->", page)
    assert sorted(marked) == sorted(manual.MANUAL.keys() - {"bench"}), "bench's examples are its verbs'"
    assert manual.replaced(page) == page, "type: python -m marft_algos.config.manual docs/cli.md"


PRINTED = [[], ["envs"], ["algorithms"], ["doctor"], ["bench"], ["show", "run"], ["show", "run", "--all"]]
PRINTED += [[*command.split(), word] for command in manual.MANUAL for word in ("--help", "--help-all")]
PRINTED += [["envs", spec.id] for spec in marft_envs.list_envs() if "data" not in spec.kwargs]  # those download it
PRINTED += [["algorithms", name] for name in algorithms.names()]
MARKUP = re.compile(r"(?<!`)``(?!`)|:[a-z]+:`|^\|.*\|$")
"""Of docstrings; three backticks stand in prompts."""


@pytest.mark.parametrize("argv", PRINTED, ids=" ".join)
def test_a_terminal_of_80_columns_shows_whole_lines_without_markup(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    run = RunFolder(Path("run"))
    run.root.mkdir()
    run.write_config(build({"env": "relay-v0"}).to_toml())
    run.append_metrics({"iteration": 0, "time_elapsed": 0.0, "return": 0.5, "eval/success": 0.5, "tokens_total": 9})
    with contextlib.suppress(SystemExit):
        assert main(argv) in (0, 1)
    shown = capsys.readouterr().out.splitlines()
    assert shown and [line for line in shown if (len(line) > 80 and " " in line.strip()) or MARKUP.search(line)] == []


def test_lines_are_folded_under_their_column_and_commands_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal.folded("name  a text that is too long for one line") == (
        "name  a text that is too long for one\n      line"
    )
    command = "marft train grpo --env relay-v0 --iterations 100"
    assert terminal.folded(f"next:    {command}").splitlines()[-1].strip() == command
    monkeypatch.delenv("COLUMNS")
    assert terminal.folded("a b" * 99) == "a b" * 99, "for grep"


def test_docstrings_are_shown_without_markup() -> None:
    assert terminal.plain("Rule:\n\n    a = b\n    c = d\n") == "Rule:\n\n    a = b\n    c = d", (
        "a formula keeps its lines"
    )
    text = "First\nline of :class:`View`.\n\n| | score |\n|---|---|\n| best | 1 |\n\nArgs:\n    a: One\n        thing.\n    b: Two."
    assert terminal.plain(text) == ("First line of View.\n\nscore\nbest: 1\n\nArgs:\n    a: One thing.\n    b: Two.")
