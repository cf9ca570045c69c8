"""What a stranger's files may do: nothing that executes or sends, unless the user has typed or allowed it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import marft_algos
from helpers.marks import rest_in_ci
from marft_algos.algorithms import base as algorithms
from marft_algos.cli import main
from marft_algos.config import settings as config
from marft_algos.config import trust, values
from marft_algos.extras.bench import grid
from marft_envs.errors import ConfigError
from tests.helpers.engine_tables import as_table

ROOT = Path(__file__).resolve().parents[2]
QUICK = [
    "--iterations", "1", "--episodes-per-iteration", "4", "--eval-episodes", "4", "--max-new-tokens", "4", "--lora-r",
    "2",
]  # fmt: skip
RELAY = (
    "import marft_envs, pathlib\npathlib.Path('ran').touch()\ndef relay(**k): return marft_envs.make('relay-v0', **k)\n"
)
CANARY = "import pathlib; pathlib.Path({!r}).touch()\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, a folder of states of its own, and the search path as it was before."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", None) or "").startswith(str(folder))]:
        del sys.modules[name]


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 1
    return capsys.readouterr().err


def stranger(folder: Path, text: str) -> Path:
    """A run folder as one that was sent by somebody."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(text)
    (folder / "metrics.jsonl").write_text('{"iteration": 0, "time_elapsed": 1.0}\n')
    return folder


class Listener:
    """Counts what arrives at a port of the loopback."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                listener.keys.append(self.headers.get("Authorization", ""))
                self.send_error(500)

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.server.shutdown()
    made.server.server_close()


MCP = (
    'env = "tools-solo-v0"\n[env_kwargs]\ndomain = "mcp"\ndomain_args = {server = ["sh", "-c", "touch ran; sleep 1"]}\n'
)


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--config", "evil/config.toml"],
        ["train", "--config", "evil/config.toml", "--dry-run"],
        ["train", "--resume", "evil"],
        ["eval", "evil"],
        ["eval", "--compare", "evil", "evil"],
        ["play", "relay-v0", "--team", "evil"],
    ],
)
@pytest.mark.parametrize(
    ("text", "named"),
    [
        (MCP, 'env_kwargs.domain_args.server = ["sh", "-c", "touch ran; sleep 1"]'),
        ('env = "evil_module:relay"\n', 'env = "evil_module:relay"'),
        ('algo = "evil_module:Algo"\n', 'algo = "evil_module:Algo"'),
        (
            'env = "tools-solo-v0"\n[env_kwargs]\ndomain = "evil_module:make"\n',
            'env_kwargs.domain = "evil_module:make"',
        ),
    ],
)
def test_a_strangers_settings_start_nothing(
    argv: list[str], text: str, named: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger(here / "evil", text)
    (here / "evil_module.py").write_text(RELAY)
    said = refused(argv, capsys)
    assert named in said and "evil/config.toml" in said, "every setting with its file and its value"
    assert f"marft {' '.join(argv)} --trust" in said, "and what to type"
    assert not (here / "ran").exists()


def test_a_strangers_engine_gets_no_variable(
    here: Path, listener: Listener, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cret")
    table = f'[engines.planner_0]\nkind = "openai"\nmodel = "m"\nurl = "{listener.url}/v1"\nkey_env = "MY_API_KEY"\n'
    stranger(here / "evil", 'env = "relay-v0"\n' + table)
    for argv in (["eval", "evil"], ["play", "relay-v0", "--team", "evil"], ["train", "--resume", "evil"]):
        said = refused(argv, capsys)
        assert f"{listener.url}/v1" in said and "key in MY_API_KEY" in said and "s3cret" not in said
    assert not listener.keys


def test_a_strangers_grid_is_a_file_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "evil_module.py").write_text(RELAY)
    text = 'algorithms = ["evil_module:Algo"]\nenvs = ["one"]\ntoken_budget = 10\n[env.one]\nid = "evil_module:relay"\n'
    (here / "grid.toml").write_text(text)
    for more in ([], ["--plan"]):
        said = refused(["bench", "run", "grid.toml", "--out", "out", *more], capsys)
        assert 'algorithms = "evil_module:Algo"' in said and 'env.one.id = "evil_module:relay"' in said
    with pytest.raises(trust.TrustError):
        grid.load("grid.toml")
    assert not (here / "ran").exists()


def test_a_plan_of_the_tutorials_grid_lists_its_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the two files that docs/first-algorithm.md and docs/first-benchmark.md say to save, and their command."""
    for page, name in (("first-algorithm", "better_half.py"), ("first-benchmark", "grid.toml")):
        text = (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
        body = re.search(rf"[Ss]ave (?:it|this) as `{name}`:\n\n```\w+\n(.*?)```", text, re.DOTALL)
        assert body
        (here / name).write_text(body[1])
    assert main(["bench", "run", "grid.toml", "--out", "runs/bench", "--trust", "--plan"]) == 0
    said = capsys.readouterr()
    assert "main: 9 runs, 49 152 tokens" in said.out and "not executed" not in said.out
    assert all(
        f"  {label} · relay-v0 · seed {n}" in said.out for label in ("reinforce", "better-half") for n in range(3)
    )
    assert 'algorithm.better-half.algo = "better_half:BetterHalf"' in said.err, "shown before it is imported"
    algorithms._REGISTRY.pop("better-half")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "env_kwargs",
    [
        'domain = "mcp"\n[env.one.settings.env_kwargs.domain_args]\nserver = ["sh", "-c", "touch ran; sleep 1"]',
        'domain = "mcp"\n[env.one.settings.env_kwargs.domain_args]\nurl = "URL/mcp"',
    ],
)
def test_a_plan_starts_no_program_and_sends_nothing(
    env_kwargs: str, here: Path, capsys: pytest.CaptureFixture[str], listener: Listener
) -> None:
    text = 'algorithms = ["marft"]\nenvs = ["one"]\ntoken_budget = 10\ncontrols = []\nbaseline = "marft"\n'
    text += (
        '[env.one]\nid = "tools-solo-v0"\n[env.one.settings.env_kwargs]\n'
        + env_kwargs.replace("URL", listener.url)
        + "\n"
    )
    (here / "grid.toml").write_text(text)
    assert main(["bench", "run", "grid.toml", "--out", "out", "--plan", "--trust"]) == 0
    assert "not executed" in capsys.readouterr().out and not (here / "ran").exists() and not listener.keys


def test_trust_shows_first_and_what_was_typed_needs_none(
    model: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "relay_of_mine.py").write_text(RELAY)
    (here / "mine.toml").write_text('env = "relay_of_mine:relay"\n')
    file = ["train", "--config", "mine.toml", "--models", str(model), *QUICK, "--preset", "toy", "--name"]
    assert "--trust" in refused([*file, "no"], capsys) and not Path("ran").exists() and not Path("runs").exists()
    assert main([*file, "allowed", "--trust"]) == 0
    said = capsys.readouterr().err
    assert 'trusted, from mine.toml:\n  env = "relay_of_mine:relay"   (runs code of that module)' in said
    assert Path("ran").exists()
    # What this user has run in this folder is known from now on, in a run's folder as in any other file.
    assert main([*file, "again"]) == 0
    assert main(["eval", "allowed"]) == 0
    assert "trusted, from" not in capsys.readouterr().err
    # Elsewhere another module may have that name: it is asked about again.
    (here / "elsewhere").mkdir()
    os.chdir(here / "elsewhere")
    (here / "elsewhere" / "relay_of_mine.py").write_text(CANARY.format("stolen"))
    assert "--trust" in refused(["eval", str(here / "runs" / "allowed")], capsys)
    assert not Path("stolen").exists()
    # A folder cannot say of itself that it is known.
    (here / "elsewhere" / "state").mkdir()
    os.environ["XDG_STATE_HOME"] = "state"
    assert "--trust" in refused(["eval", str(here / "runs" / "allowed")], capsys)


@pytest.mark.ci
def test_what_was_typed_needs_no_trust(model: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "relay_of_mine.py").write_text(RELAY)
    argv = [
        "train", "--env", "relay_of_mine:relay", "--models", str(model), *QUICK, "--preset", "toy", "--name", "typed",
    ]  # fmt: skip
    assert main([*argv, "--dry-run"]) == 0, "a module that the user types is imported to know the team"
    assert "memory at most" in capsys.readouterr().out and not Path("runs").exists()
    assert main(argv) == 0
    assert main(["eval", "typed"]) == 0
    assert main(["play", "relay_of_mine:relay", "--random"]) == 0
    assert main(["envs", "relay_of_mine:relay"]) == 0
    assert main(["train", "--config", "runs/typed/config.toml", "--env", "relay_of_mine:relay", "--dry-run"]) == 0
    capsys.readouterr()


def test_a_dry_run_starts_nothing_whoever_said_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither what is typed nor what is trusted."""
    typed = [
        "--env",
        "tools-solo-v0",
        "--env-kwargs",
        "domain=mcp",
        'domain_args={server=["sh","-c","touch ran; sleep 1"]}',
    ]
    assert main(["train", *typed, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "not executed" in said and "touch ran" in said
    stranger(here / "evil", MCP)
    assert main(["train", "--config", "evil/config.toml", "--dry-run", "--trust"]) == 0
    assert "touch ran" in capsys.readouterr().out
    assert not Path("ran").exists()
    (here / "relay_of_mine.py").write_text(RELAY)
    stranger(here / "mine", 'env = "relay_of_mine:relay"\n')
    assert main(["train", "--config", "mine/config.toml", "--dry-run", "--trust"]) == 0
    assert "memory at most" in capsys.readouterr().out, "a module that is trusted is imported, as a typed one"


def test_python_passes_or_trusts(model: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    (here / "relay_of_mine.py").write_text(RELAY)
    small: dict[str, Any] = {
        "models": str(model),
        "iterations": 0,
        "eval_episodes": 2,
        "max_new_tokens": 4,
        "lora_r": 2,
    }
    stranger(here / "evil", 'env = "relay_of_mine:relay"\n')
    file = here / "evil" / "config.toml"
    with pytest.raises(trust.TrustError, match="trusted=True"):
        marft_algos.train("toy", config=file, **small)
    with pytest.raises(trust.TrustError, match="trusted=True"):
        config.load(file)
    assert not (here / "ran").exists()
    assert config.load(file, trusted=True).env == "relay_of_mine:relay"
    run = marft_algos.train("toy", config=file, trusted=True, name="a", **small)
    assert 'env = "relay_of_mine:relay"' in run.config_file.read_text()
    assert marft_algos.train("toy", env="relay_of_mine:relay", name="b", **small).root.name == "b"


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"env": "pettingzoo:some.module_v0"}, "env"),
        ({"env": "gymnasium:module:Game-v0"}, "env"),
        ({"env": "module:task-v0"}, "env"),
        ({"env_kwargs": {"codec": "module:Codec"}}, "env_kwargs.codec"),
        ({"env_kwargs": {"domain_args": {"server": "https://somewhere/mcp"}}}, "env_kwargs.domain_args.server"),
        ({"env_kwargs": {"domain_args": {"package": "folder"}}}, "env_kwargs.domain_args.package"),
        ({"env_kwargs": {"url": "http://token@somewhere:1"}}, "env_kwargs.url"),
        ({"eval_kwargs": {"unsafe": True}}, "eval_kwargs.unsafe"),
        ({"engines": {"a": as_table("vllm:http://somewhere:8000")}}, "engines.a"),
        ({"engines": {"a": as_table("openai:gpt")}}, "engines.a"),
        ({"engines": {"a": {"kind": "openai", "model": "gpt:latest"}}}, "engines.a"),
        ({"engines": {"a": {"kind": "vllm", "url": ["http://one:1", "http://two:1"]}}}, "engines.a"),
        ({"engines": {"a": {"model": "gpt"}}}, "engines.a"),
        ({"engines": {"a": {"kind": "native", "server": ["./start"]}}}, "engines.a.server"),
        ({"env": {"x": {"settings": {"engines": {"a": as_table("openai:gpt")}}}}}, "env.x.settings.engines.a"),
    ],
)
def test_every_setting_that_executes_or_sends_is_known(table: dict[str, Any], named: str) -> None:
    assert [power.name for power in trust.powers(table)] == [named]


def test_an_engine_that_executes_is_told_as_such() -> None:
    engine = {"kind": "openai", "model": "m", "package": "./mine", "unsafe": True, "env": "module:task"}
    names = {power.name for power in trust.powers({"env_kwargs": {"engines": {"a": engine}}}) if power.executes}
    assert names == {f"env_kwargs.engines.a.{key}" for key in ("package", "unsafe", "env")}


def test_an_engine_that_was_typed_needs_no_further_word(here: Path) -> None:
    engine = {"kind": "openai", "model": "m", "url": "http://127.0.0.1:9", "key_env": "MY_API_KEY"}
    typed = 'a={key_env="MY_API_KEY", model="m", url="http://127.0.0.1:9", kind="openai"}'
    with trust.command(["train", "--engines", typed]):
        trust.check({"engines": {"a": engine}}, "file.toml")
        with pytest.raises(trust.TrustError, match="key in HER_API_KEY"):
            trust.check({"engines": {"a": engine | {"key_env": "HER_API_KEY"}}}, "file.toml")


def test_ordinary_settings_are_no_powers(here: Path) -> None:
    table = {
        "env": "pettingzoo:tictactoe_v3", "algo": "marft", "models": "org/model", "engines": {"a": "native", "b": {"kind": "native"}},
        "env_kwargs": {"profiles": {"a": "Answer: say it."}, "data": "rows.jsonl", "domain": "depot", "unsafe": False},
    }  # fmt: skip
    assert not trust.powers(table) and not trust.powers({"env": "gymnasium:FrozenLake-v1"})
    assert not trust.powers(config.TrainConfig().table())
    for file in (Path(__file__).parents[2] / "examples" / "configs").glob("*.toml"):
        own = ("marft_algos.extras.audit.games:make", "examples.reliability:reliability-v0")  # they ask for --trust
        assert [power for power in trust.powers(values.read(file)) if power.value not in own] == [], file


def test_a_settings_file_holds_no_control_characters(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.toml").write_text('name = "\\u001b[2Jfine"\n')
    with pytest.raises(ConfigError, match=r"name in 'x.toml' holds the control character '\\x1b'"):
        config.load("x.toml")


@pytest.mark.parametrize("how", rest_in_ci(["-m", "script"]))
def test_files_of_the_current_folder_stand_in_for_nothing(how: str, here: Path) -> None:
    """In a run's folder that holds html.py, typing.py, …: none of them is executed, not even by ``show``."""
    run = stranger(here / "evil", 'env = "relay-v0"\n')
    names = (
        "html", "tomllib", "typing", "dataclasses", "json", "tyro", "rich", "numpy", "runpy", "mystery", "pydantic",
    )  # fmt: skip
    for name in names:
        (run / f"{name}.py").write_text(CANARY.format("ran"))
    script = [str(Path(sys.executable).with_name("marft"))]
    command = [sys.executable, "-m", "marft_algos"] if how == "-m" else script
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    done = subprocess.run(
        [*command, "show", "."], cwd=run, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (run / "ran").exists()
    # Typed, a module of this folder is found, behind all others.
    (run / "task_of_mine.py").write_text("import json, marft_envs\ndef relay(): return marft_envs.make('relay-v0')\n")
    done = subprocess.run(
        [*command, "play", "task_of_mine:relay", "--random"],
        cwd=run,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "score" in done.stdout, done.stderr
    assert not (run / "ran").exists()


@pytest.mark.slow
def test_a_benchmarks_processes_find_nothing_here_either(here: Path) -> None:
    names = ("socket", "selectors", "pickle", "multiprocessing", "tempfile", "struct", "_winapi", "json", "hashlib")
    for name in names:
        (here / f"{name}.py").write_text(CANARY.format("ran"))
    (here / "grid.toml").write_text(
        'algorithms = ["marft"]\nenvs = ["relay-v0"]\ncontrols = ["untrained"]\nbaseline = "untrained"\nseeds = [0]\n'
        'token_budget = 10\n[settings]\nmodels = "./nowhere"\n'
    )
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    command = [str(Path(sys.executable).with_name("marft")), "bench", "run", "grid.toml", "--out", "out"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert "There is no model folder" in done.stdout, done.stderr
    assert not (here / "ran").exists()


def test_a_cell_by_hand_is_a_file_too(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from marft_algos.extras.bench import worker
    from marft_algos.training import environments

    (here / "evil_module.py").write_text(RELAY)
    (here / "out" / "jobs").mkdir(parents=True)
    job = {"key": "k", "kind": "train", "contribution": 0, "samples": 0, "config": {"env": "evil_module:relay"}}
    (here / "out" / "jobs" / "k.json").write_text(json.dumps(job))
    monkeypatch.setattr(sys, "argv", ["worker", "out", "k"])
    assert worker.main() == 1
    said = capsys.readouterr().err
    assert "TrustError" in said and "evil_module:relay" in said and not Path("ran").exists()
    assert "python -m marft_algos.extras.bench.worker out k --trust" in said, "what to type, and where"
    monkeypatch.setattr(
        worker,
        "make",
        lambda folder, job: environments.env_factory(config.build(job["config"]), {})() and {"score": 1.0},
    )
    monkeypatch.setattr(sys, "argv", ["worker", "out", "k", "--trust"])
    (here / "out" / "results").mkdir()
    assert worker.main() == 0 and Path("ran").exists(), "a module of this folder is found then"
    assert "trusted, from out/jobs/k.json" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["worker", "out"])
    assert worker.main() == 2 and "DIR KEY [--trust]" in capsys.readouterr().err


def test_rows_of_a_stranger_start_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Data is below settings: whatever a row says, it is text."""
    row = {"id": "x", "problem": "__import__('pathlib').Path('ran').touch()", "answer": "1", "env": "evil_module:relay"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    (here / "evil_module.py").write_text(RELAY)
    main(["play", "math-solo-v0", "--random", "--env-kwargs", "data=rows.jsonl"])
    capsys.readouterr()
    assert not (here / "ran").exists()
