"""Input that must be refused, as a table: each line is a command, and what its error says in three parts."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from marft_algos.cli import main

Refused = Callable[[str, tuple[str, ...]], None]
"""Types a command, which must be refused with these parts of an error."""

GRID = 'algorithms = ["marft"]\nenvs = ["relay-v0"]\ntoken_budget = 1000\nseeds = [0, 1]\n'
GRIDS = {
    "grid": GRID, "g_text": GRID.replace('["marft"]', '"marft"'), "g_unknown": GRID.replace("marft", "mraft"),
    "g_env": GRID.replace("relay-v0", "relai-v0"), "g_twice": GRID.replace("[0, 1]", "[0, 0]"),
    "g_negative": GRID.replace("[0, 1]", "[-1]"), "g_budget": GRID.replace("1000", "0"),
    "g_missing": 'algorithms = ["marft"]\n', "g_key": GRID + "tokens = 3\n", "g_baseline": GRID + 'baseline = "ppo2"\n',
    "g_control": GRID + 'controls = ["untraind"]\n', "g_sweep0": GRID + "[sweep]\nlr = [0]\nseeds = [7]\n",
    "g_shared": GRID + "[sweep]\nlr = [0.1]\nseeds = [0]\n", "g_members": GRID + '[env."relay-v0"]\nmembers = 1\n',
    "g_trained_on": GRID + '[env."relay-v0"]\ntrained_on = "nope"\n', "g_reference": GRID + 'reference = "nope"\n',
    "g_settings": GRID + "[settings]\niteratoins = 3\n", "g_value": GRID + "[settings]\nlora_r = 0\n",
    "g_credit": GRID + 'credit = ["nope"]\n', "g_label": GRID + '[algorithm.other]\nalgo = "grpo"\n',
    "g_code": GRID.replace('"marft"', '"evilmodule:Algo"'),
}  # fmt: skip
OWN = """
import marft_envs
from marft_envs import AgentSpec, Chain, FlexEnv, Layered, Outcome, Router, StaticDAG

A, B = AgentSpec("a_0", "a", "Say a."), AgentSpec("b_0", "b", "Say b.")

class Task:
    task_id, slow, made = "t", False, 0
    def reset(self, rng, options): self.calls = 0
    def observe(self, agent): return "x"
    def on_layer(self, turns): return Outcome()
    def on_round(self, turns): return Outcome(team_reward=1.0, success=True, terminated=True)
    def sample_actions(self, agent): return ["a", "b"]
    def validate(self): pass

class Impure(Task):
    def observe(self, agent):
        self.calls += 1
        return f"call {self.calls}"

class Seedless(Task):
    def reset(self, rng, options):
        Seedless.made += 1
        self.number = Seedless.made
    def observe(self, agent): return f"{self.number}"

class NoHook:
    task_id, slow = "t", False
    def reset(self, rng, options): pass
    def observe(self, agent): return "x"

class BadReward(Task):
    def on_round(self, turns): return Outcome(team_reward="much", terminated=True)

class NanReward(Task):
    def on_round(self, turns): return Outcome(team_reward=float("nan"), terminated=True)

class BadOutcome(Task):
    def on_round(self, turns): return 1.0

class NotAlgorithm: pass

def number(): return 3
def impure(): return FlexEnv([A], Impure(), Chain())
def leaks_seed(): return FlexEnv([A], Seedless(), Chain())
def two_alike(): return FlexEnv([A, A], Task(), Chain())
def bad_name(): return FlexEnv([AgentSpec("a b!", "a")], Task(), Chain())
def path_name(): return FlexEnv([AgentSpec("../a", "a")], Task(), Chain())
def cycle(): return FlexEnv([A, B], Task(), StaticDAG([[0, 1], [1, 0]]))
def unknown_agent(): return FlexEnv([A, B], Task(), Layered([["a_0"], ["c_0"]]))
def no_agents(): return FlexEnv([], Task(), Chain())
def no_hook(): return FlexEnv([A], NoHook(), Chain())
def bad_reward(): return FlexEnv([A], BadReward(), Chain())
def nan_reward(): return FlexEnv([A], NanReward(), Chain())
def bad_outcome(): return FlexEnv([A], BadOutcome(), Chain())
def router_none(): return FlexEnv([A, B], Task(), Router(lambda view: None))
def strange_router(): return FlexEnv([A, B], Task(), Router(lambda view: "c_0"))
def typo(levels=3): return FlexEnv([A], Task(), Chain())
def needs(levels): return FlexEnv([A], Task(), Chain())
"""
FILES = {f"{name}.toml": text for name, text in GRIDS.items()} | {
    "own.py": OWN, "broken_module.py": "def make(:\n",
    "raising.py": "def make(): raise RuntimeError('no luck')\ndef make_late():\n    raise KeyError('x')\n",
    "empty.jsonl": "", "broken.jsonl": '{"problem": "1+1"', "noanswer.jsonl": '{"problem": "1 + 1 = ?"}\n',
    "list.jsonl": "[1, 2]\n", "rows.jsonl": '{"id": "a", "problem": "1 + 1 = ?", "answer": "2"}\n',
    "profiles_broken.json": "{", "profiles_list.json": "[1]", "profiles_stranger.json": '{"nobody_0": "x"}',
    "profiles_number.json": '{"actor_0": 3}', "profiles_empty.json": "", "broken.toml": "lr = = 3\n",
    "unknown.toml": "iteratoins = 3\n", "unknown_algorithm.toml": "[algorithm]\nlrr = 3\n",
    "wrong_type.toml": 'iterations = "many"\n', "badrange.toml": "[algorithm]\nclip = -1\n",
    "section.toml": "algorithm = 3\n", "control.toml": 'name = "a\\u001b[2J"\n',
    "code.toml": 'env = "evilmodule:thing-v0"\n', "emptyname.toml": '"" = 3\n',
    "evil/config.toml": 'env = "relay-v0"\n', "evil/metrics.jsonl": "nonsense\n", "full/thing.txt": "x",
    "emptydir/.keep": "", "dir/.keep": "",
}  # fmt: skip


def write(folder: Path) -> Path:
    """Writes the files that the tables name."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary.jsonl").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "latin.toml").write_bytes(b'name = "\xe9"\n')
    return folder


def table(text: str) -> list[object]:
    """Reads lines of command, what happened, what was expected, what to type next."""
    rows = [line.split(" | ") for line in text.strip().splitlines()]
    assert all(len(row) == 4 and all(row) for row in rows), "command | happened | expected | type next"
    assert len({row[0] for row in rows}) == len(rows)
    return [pytest.param(row[0], tuple(row[1:]), id=row[0]) for row in rows]


def refused(
    command: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types a command, which must end with 1 or 2 and an error that has these parts."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.setenv("COLUMNS", "200")  # a narrow terminal breaks the parser's lines
    try:
        code = main(shlex.split(command))
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    said = capsys.readouterr()
    text = " ".join(re.sub(r"[─│╭╮╰╯]", " ", said.err).split())
    assert code in (1, 2), f"accepted:\n{said.out}"
    assert "Traceback" not in said.err and "\x1b" not in said.err
    for part in parts:
        assert part in text, f"{part!r} is not in: {text}"


def with_run(folder: Path) -> Path:
    """Adds a run ``done`` of two iterations on ``relay-v0``."""
    from helpers.runs import QUICK
    from helpers.tiny import save_tiny

    model = save_tiny(folder / "model", hidden=16, layers=1)
    argv = ["train", "marft", "--env", "relay-v0", "--models", str(model), *QUICK]
    assert main([*argv, "--runs-dir", str(folder / "runs"), "--name", "done"]) == 0
    return folder
