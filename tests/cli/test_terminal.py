"""What files and models of others say cannot move a terminal's cursor, whatever command shows it."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import warnings
from pathlib import Path

import pytest

from marft_algos import terminal
from marft_algos.cli import main
from marft_algos.rollout import episodes
from marft_algos.terminal import clean

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x90q\x9c\x07\x08\r\u202emoc.live\u2066\u200fend"
"""OSC, CSI, their one-byte forms of C1, DCS, bell, backspace, carriage return, bidirectional overrides."""
OBEYED = [c for c in HOSTILE if not c.isprintable()]

ENV = f"""
import marft_envs
class Task:
    task_id, slow = {HOSTILE!r} + "\\nforged line", False
    def reset(self, rng, options): pass
    def observe(self, agent): return {HOSTILE!r}
    def on_layer(self, turns): return marft_envs.Outcome()
    def on_round(self, turns):
        return marft_envs.Outcome(team_reward=1.0, terminated=True, info={{{HOSTILE!r} + "key": {HOSTILE!r} + "value"}})
    def sample_actions(self, agent): return [{HOSTILE!r}]
    def validate(self): pass
def make(): return marft_envs.FlexEnv([marft_envs.AgentSpec("a_0", "a")], Task(), marft_envs.Chain())
def broken(): raise marft_envs.ConfigError({HOSTILE!r} + "in an error")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with contextlib.suppress(SystemExit):
        main(argv)
    printed = capsys.readouterr()
    said = printed.out + printed.err
    assert said and "Traceback" not in said
    assert not [c for c in OBEYED if c in said], repr(said)
    return said


def test_ids_info_words_and_errors(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "hostile_env.py").write_text(ENV)
    said = shown(["play", "hostile_env:make", "--random"], capsys)
    assert "end key" not in said and "endkey" in said and "endvalue" in said and "[2J" in said
    assert "\nforged line" not in said, "an id is one line"
    monkeypatch.setattr("sys.stdin", io.StringIO("words\n"))
    assert "sees:" in shown(["play", "hostile_env:make"], capsys)
    assert "moc.live" in shown(["envs", "hostile_env:make"], capsys)
    assert "in an error" in shown(["check", "hostile_env:broken"], capsys)
    assert "moc.live" in shown(["play", HOSTILE, "--random"], capsys)


def test_task_ids_of_a_data_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.jsonl").write_text(json.dumps({"id": HOSTILE, "problem": "1 + 1 = ?", "answer": "2"}) + "\n")
    argv = ["play", "math-solo-v0", "--random", "--env-kwargs", "data=rows.jsonl", "split=test"]
    assert "moc.live" in shown(argv, capsys)


def test_keys_of_metrics(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil").mkdir()
    Path("evil/config.toml").write_text('env = "relay-v0"\n')
    Path("evil/metrics.jsonl").write_text(json.dumps({"iteration": 1, HOSTILE: 1.0, "text": HOSTILE}) + "\n")
    assert "moc.live" in shown(["show", "evil", "--all"], capsys)


@pytest.mark.parametrize(("line", "says"), [
    ('{"iteration": "\\u001b[2J"}', "'iteration' is"),
    ('{"iteration": 1, "time_elapsed": "long"}', "'time_elapsed' is 'long'"),
    ('{"iteration": true}', "'iteration' is True"), ("[1, 2]", "holds list"), ('{"iteration": 1', "is not JSON"),
    ("[" * 100_000, "is not JSON"),
])  # fmt: skip
def test_metrics_that_are_none_are_one_clear_error(
    line: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("evil").mkdir()
    Path("evil/config.toml").write_text('env = "relay-v0"\n')
    Path("evil/metrics.jsonl").write_text('{"iteration": 0}\n' + line + "\n")
    said = shown(["show", "evil"], capsys)
    assert "error: evil/metrics.jsonl, line 2" in said and says in said


def test_what_people_write_stays() -> None:
    text = "Größe ≤ 3 · 日本語\u3000全角 · naïve\u00a0space · \N{GRINNING FACE}\n\ttabbed"
    assert clean(text) == text
    assert clean("a\nb\tc", line=True) == "a�b�c"
    assert clean("\ud800") == "�"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
@pytest.mark.parametrize(
    "words", [["train", "--help"], ["eval", "--help-all"], ["completion", "fish"], ["train", "--ö…"]]
)
def test_whatever_the_encoding_lacks_is_a_question_mark(
    words: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", error)
    with contextlib.suppress(SystemExit):
        main(words)
    assert out.errors == "replace", "what libraries and environments print there"
    said = (out if "--ö…" not in words else error).buffer.getvalue().decode(encoding)
    assert "marft" in said and ("options" in said or "complete" in said)


class Terminal(io.StringIO):
    """A terminal that shows colours."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_usage_error_at_a_terminal_has_no_rests_of_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out, error = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", error)
    with pytest.raises(SystemExit):
        main(["train", "--lx", "3"])
    assert "│ Unrecognized options: --lx, 3" in error.getvalue() and "\N{REPLACEMENT CHARACTER}" not in error.getvalue()


def test_defaults_that_help_takes_from_a_file_obey_nobody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("evil.toml").write_text('name = "\u202emoc.live"\n', encoding="utf-8")
    assert "moc.live" in shown(["train", "--config", "evil.toml", "--help"], capsys)


def test_nothing_in_marft_algos_prints_past_it() -> None:
    """Neither print() nor a write to the terminal's streams: what is said goes through terminal.say."""
    found = []
    for file in sorted((ROOT / "marft_algos").rglob("*.py")):
        if file.name == "terminal.py":
            continue
        text = file.read_text()
        if not re.search(r"print|std(out|err)\s*\.\s*write", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "print" or called.endswith(("stdout.write", "stderr.write", "pprint")):
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert not found


def test_warnings_are_notes_without_a_place_in_the_source() -> None:
    with terminal.prepared():
        ours = warnings.formatwarning("a \x1b[2J group", UserWarning, episodes.__file__, 274)
        theirs = warnings.formatwarning("b", UserWarning, "/other/module.py", 3)
        coders = warnings.formatwarning("c", RuntimeWarning, "/other/module.py", 3)
    assert ours == "note: a �[2J group\n"
    assert theirs == "note: b (module)\n" and coders == "note: RuntimeWarning: c (module, line 3)\n"
    assert "episodes.py:274" in warnings.formatwarning("a", UserWarning, episodes.__file__, 274)
