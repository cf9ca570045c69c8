"""The command line: what it prints, what it returns, what it needs."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import marft_envs
from helpers import preloaded
from helpers.runs import QUICK
from helpers.tiny import save_tiny
from marft_algos.algorithms import base
from marft_algos.cli import commands, training
from marft_algos.cli.app import COMMANDS, main
from marft_algos.config import presets
from marft_algos.config.settings import SECTIONS, TrainConfig, build
from marft_algos.rollout import episodes as faults
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.progress import RunProgress
from marft_algos.training.collect import RolloutQueue
from marft_envs.core.vector import VectorEnv
from marft_envs.errors import ConfigError, elsewhere
from marft_envs.records import trajectory

ROOT = Path(__file__).resolve().parents[2]


def fails(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must fail with one clear message; returns it."""
    try:
        code = main(argv)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    printed = capsys.readouterr()
    assert code != 0 and "Traceback" not in printed.err
    return printed.err


def test_marft_alone_prints_lines_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in COMMANDS)
    lines = [line.split()[1:] for line in shown.splitlines() if line.startswith("  marft ")]
    assert len(lines) >= 5
    for words in lines:
        assert words[0] in COMMANDS


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert not leaving.value.code
    assert f"marft {command}" in capsys.readouterr().out


def test_the_help_of_train_shows_every_setting_of_run_and_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    shown = capsys.readouterr().out
    for flag in ("--env", "--models", "--iterations", "--lr", "--clip", "--level", "--kl-stop", "--resume", "--config"):
        assert flag in shown
    assert all(name in shown for name in presets.PRESETS)


def test_the_help_of_train_has_sections_and_options_keep_their_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main(["train", "grpo", "--help-all"])
    options: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if title := re.match(r"\W*(\w+) options[^\w:]*$", line):
            section = options[title[1]] = []
        elif options and (flag := re.match(r"\W? (--\w[\w-]*)", line)):
            section.append(flag[1])
    fields = [f.name for f in dataclasses.fields(TrainConfig)]
    assert [name for name in fields if name in SECTIONS] == list(SECTIONS), "in the order of the settings"
    shown = [name for title in SECTIONS.values() for name in options[title]]
    flags = ["--" + name.replace("_", "-") for name in fields if name != "algorithm"]
    assert shown == [flag for flag in flags if flag not in options["common"]], "in the order of the settings"
    assert set(shown) | set(options["common"]) == set(flags) and len(shown) + len(options["common"]) == len(flags)
    assert {"--lr", "--group-size"} <= set(options["algorithm"])
    for words in (["--lora-alpha", "0"], ["--lr", "-1"]):
        assert main(["train", *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and "expected" in said and "marft train --help" in said, "in every section"


def test_envs_lists_and_describes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    assert "math-dual-v0" in capsys.readouterr().out
    assert main(["envs", "math-dual-v0", "--env-kwargs", "levels=[0]"]) == 0
    page = capsys.readouterr().out
    assert "reasoner_0" in page and "actor_0 (gives the answer)" in page and "levels" in page and "<system>" in page
    assert "Did you mean 'relay-v0'" in fails(["envs", "relai-v0"], capsys)


def test_play_at_random_and_by_hand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["play", "xor-v0", "--random", "--episodes", "3"]) == 0
    shown = capsys.readouterr().out
    assert "joiner_0 saw left_0, right_0" in shown and "mean score of 3 episodes" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO("3\n3\n"))
    assert main(["play", "relay-v0", "--seed", "0"]) == 0
    shown = capsys.readouterr().out
    assert "digit 3" in shown and "score 1, success True" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO("\x1b[2J\n"))
    assert main(["play", "relay-v0", "--agent", "planner_0"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "--random" in fails(["play", "relay-v0"], capsys)
    assert "Did you mean 'solver_0'" in fails(["play", "relay-v0", "--agent", "solver0"], capsys)


def test_check_passes_and_fails(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["check", "relay-v0"]) == 0
    assert "checks passed" in capsys.readouterr().out
    (here / "leaky_env.py").write_text(
        "import marft_envs\n"
        "class Leaky:\n"
        "    task_id, slow = 't', False\n"
        "    def reset(self, rng, options): self.calls = 0\n"
        "    def observe(self, agent):\n"
        "        self.calls += 1\n"
        "        return f'call {self.calls}'\n"
        "    def on_layer(self, turns): return marft_envs.Outcome()\n"
        "    def on_round(self, turns): return marft_envs.Outcome(terminated=True)\n"
        "    def sample_actions(self, agent): return ['a']\n"
        "    def validate(self): pass\n"
        "def make_env():\n"
        "    return marft_envs.FlexEnv([marft_envs.AgentSpec('a_0', 'a')], Leaky(), marft_envs.Chain())\n"
    )
    assert "breaks" in fails(["check", "leaky_env:make_env"], capsys)
    assert "Cannot load" in fails(["check", "leaky_env:make_nothing"], capsys)


@pytest.mark.pictures
def test_train_eval_show_resume(model: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "train", "marft", "--env", "relay-v0", "--models", str(model), *QUICK, "--level", "action", "--name", "first",
    ]  # fmt: skip
    assert main(argv) == 0
    shown = capsys.readouterr().out
    run = Path("runs/first")
    assert f"report:  {run}/report.html" in shown and "gain:" in shown and "task:    relay-v0\n" in shown
    assert "next:    do the messages of planner_0 matter? marft eval runs/first --swap planner_0" in shown
    for name in ("config.toml", "metrics.jsonl", "curves.png", "report.html", "episodes", "checkpoints"):
        assert (run / name).exists()
    assert 'level = "action"' in (run / "config.toml").read_text()

    assert main(["eval", "first", "--swap", "planner", "--out", "out/episodes.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "untrained" in shown and "step_000002" in shown and "shuffled" in shown and shown.count("paired, 95 %") == 2
    played = [list(trajectory.read(Path("out") / name)) for name in ("episodes.jsonl", "episodes-shuffled.jsonl")]
    assert [e.task_id for e in played[0]] == [e.task_id for e in played[1]] and len(played[0]) == 12
    words = [[e.turns[0].text for e in episodes] for episodes in played]
    assert sorted(words[0]) == sorted(words[1]), "every message of the planner is in another episode"

    assert main(["eval", "first", "--env-kwargs", "history=public", "--episodes", "2"]) == 0
    assert "relay-v0 history=public, 2 episodes, greedy" in capsys.readouterr().out
    assert main(["show"]) == 0
    shown = capsys.readouterr().out
    assert "iteration 2" in shown and "task:    relay-v0\n" in shown
    assert "trained on relay-v0<" in (run / "report.html").read_text()
    (run / "report.html").unlink()
    assert main(["show", "first", "--html"]) == 0 and (run / "report.html").exists()

    kept = (run / "config.toml").read_text()
    for more, says in (
        (["--config", "any.toml"], "Leave out --config FILE"),
        (["--eval-episodes", "5"], "other problems"),
    ):
        assert says in fails(["train", "--resume", "first", "--iterations", "3", *more], capsys)
    assert (run / "config.toml").read_text() == kept
    assert main(["train", "--resume", "first", "--iterations", "3"]) == 0
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["iteration"] == 3
    assert "iterations = 3" in (run / "config.toml").read_text()
    assert main(["play", "relay-v0", "--team", "first"]) == 0
    capsys.readouterr()

    assert "Did you mean 'runs/first'" in fails(["show", "runs/frist"], capsys)
    assert "exists already" in fails(argv, capsys)
    assert "has no policy" in fails(["eval", "first", "--env", "xor-v0"], capsys)
    assert "Expected last, best or one of" in fails(["eval", "first", "--checkpoint", "77"], capsys)


class Killed(BaseException):
    """What no handler catches: nothing more is written."""


@pytest.mark.ci
@pytest.mark.parametrize(
    "stopped", [Killed(), faults.InfrastructureError("the engine is away.")], ids=["killed", "outage"]
)
def test_a_run_that_ended_before_its_last_evaluation_makes_up_for_it(
    stopped: BaseException, model: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["train", "marft", "--env", "relay-v0", "--models", str(model), *QUICK, "--save-every", "1", "--name"]
    assert main([*argv, "whole"]) == 0
    play, evaluations = RolloutQueue.held_out, []

    def interrupted(*args: object) -> object:
        evaluations.append(1)
        if len(evaluations) == 2:
            raise stopped
        return play(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(RolloutQueue, "held_out", interrupted)
    if isinstance(stopped, Killed):
        with pytest.raises(Killed):
            main([*argv, "run"])
    else:
        assert "--resume runs/run" in fails([*argv, "run"], capsys)
    run, whole = RunFolder.open("run"), RunFolder.open("whole")
    assert run.recorded("eval") == [0] and run.gain() is None
    capsys.readouterr()
    assert main(["train", "--resume", "run"]) == 0
    shown = capsys.readouterr().out
    assert "gain:" in shown and "nothing to do" not in shown
    assert run.recorded("eval") == [0, 2] and run.evaluation(2) == whole.evaluation(2) and run.report_file.exists()
    last, other = run.metrics()[-1], whole.metrics()[-1]
    assert (last["iteration"], last["eval/success"], last["eval/gain"]) == (
        2,
        other["eval/success"],
        other["eval/gain"],
    )
    assert main(["train", "--resume", "run"]) == 0
    assert "nothing to do" in capsys.readouterr().out and len(evaluations) == 3


def test_settings_come_from_preset_file_and_command_line(model: Path, here: Path) -> None:
    settle = training.typed_settings
    quick, _ = settle([])
    assert quick.preset == "quickstart" and quick.env_kwargs == {} and quick.algo == "marft"
    toy, _ = settle(["--env", "relay-v0"])
    assert toy.preset == "toy" and toy.env == "relay-v0" and toy.env_kwargs == {}
    tools, _ = settle(["--models", "embedded-tools"])
    assert (tools.preset, tools.models) == ("quickstart", "embedded-tools"), "naming it makes it no real model"
    solo, _ = settle(["--env", "math-solo-v0"])
    assert solo.preset == "quickstart" and solo.env_kwargs == {}
    other, _ = settle(["--env-kwargs", "rounds=2", "--lr", "actor_0=1e-4", "reasoner_0=2e-4", "--kl-stop", "None"])
    assert other.env_kwargs == {"rounds": 2}
    assert other.algorithm.lr == {"actor_0": 1e-4, "reasoner_0": 2e-4} and other.algorithm.kl_stop is None
    data, _ = settle(["--data", "rows.jsonl"])
    assert data.env_kwargs == {"data": "rows.jsonl"}
    real, _ = settle(["--models", str(model)])
    assert real.preset == "default" and real.max_new_tokens == 512
    paper, _ = settle(["marft", "--preset=paper-table3", "--seed", "4"])
    assert paper.algorithm.entropy_coef == 0.1 and paper.seed == 4 and paper.context == 2048
    Path("mine.toml").write_text('env = "xor-v0"\n[algorithm]\nlr = 0.5\n')
    mine, _ = settle(["--config", "mine.toml", "--clip", "0.3"])
    assert (mine.env, mine.algorithm.lr, mine.algorithm.clip) == ("xor-v0", 0.5, 0.3)
    Path("toy.toml").write_text('preset = "toy"\nenv = "xor-v0"\n')
    small, _ = settle(["--config", "toy.toml"])
    assert (small.env, small.max_new_tokens, small.algorithm.lr) == ("xor-v0", toy.max_new_tokens, toy.algorithm.lr)


@pytest.mark.parametrize(("argv", "message"), [
    (["trian"], "Did you mean 'train'"),
    (["--env", "relay-v0", "train"], "the command comes first: marft train --env relay-v0"),
    (["rft", "--env", "relay-v0"], "as an algorithm: marft train rft --env relay-v0"),
    (["train", "--iteratoins", "3"], "--iterations"),
    (["train", "--env", "relay-v0", "grpo"], "The algorithm comes first: marft train grpo --env relay-v0"),
    (["sft", "grpo"], "The algorithm comes first: marft train grpo"),
    (["train", "--profiles", "mine.json"], "math-dual-v0: --env-kwargs profiles=…"),
    (["train", "--levels=[0]"], "--env-kwargs levels=[0]"),
    (["train", "--output_dir", "out"], "--output_dir is called here: --runs-dir DIR --name NAME"),
    (["train", "grpo", "--num-generations=8"], "--num-generations is called here: --group-size N"),
    (["train", "--dataset", "x"], "--dataset is called here: --data PATH"),
    (["train", "--dataset-name", "x"], "--dataset-name is called here: --data PATH"),
    (["train", "--reward", "x"], "--reward is called here: --env-kwargs reward=MODULE:FUNCTION"),
    (["train", "--wandb"], "--wandb is called here: --loggers wandb"),
    (["train", "--gpus", "2"], "--gpus is called here: --device cuda; --nproc N"),
    (["train", "--bf16"], "--bf16 is called here: --dtype bf16 --old-logprobs learner"),
    (["train", "--episodes-per-iteration", "0"], "expected at least 1"),
    (["train", "--warm-start", "-1"], "warm_start is -1; expected 0 or more"),
    (["train", "--preset", "quikstart"], "Did you mean 'quickstart'"), (["train", "mraft"], "Did you mean 'marft'"),
    (["train", "--env", "math-duel-v0"], "Did you mean 'math-dual-v0'"),
    (["train", "--resume"], "--resume needs a value"), (["train", "--resume", "runs/none"], "is no run"),
    (["train", "--config", "none.toml"], "Cannot read the settings"),
    (["train", "--env", "relay-v0", "--models", "./nowhere"], "There is no model folder"),
    (["train", "--data", "nowhere.jsonl"], "neither a data set nor a file"),
    (["train", "--policies", "mine"], "Unknown sharing"), (["eval"], "marft eval RUN"),
    (["eval", "nothing"], "is no run"), (["show"], "Start one: marft train"),
])  # fmt: skip
def test_bad_input_is_one_clear_message(
    argv: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in fails(argv, capsys)
    assert not (here / "runs").exists()


def test_what_other_trainers_settings_are_called_here_can_be_typed_here() -> None:
    algorithms = [base.get(name).Config for name in base.names()]
    known = {field.name for settings in (TrainConfig, *algorithms) for field in dataclasses.fields(settings)}
    here = elsewhere("marft_algos").items()
    options = {word for name, told in here if name.startswith("--") for word in re.findall(r"--([a-z-]+)", told)}
    assert {option.replace("-", "_") for option in options} <= known | {"resume", "data", "nproc", "dry_run"}


@pytest.mark.parametrize(("setting", "says"), [
    ("learning_rate", "In Python: lr=…; on the command line: --lr RATE"), ("dataset", "In Python: data=…"),
    ("output_dir", "In Python: runs_dir=…, name=…"),
    ("reward_funcs", "In Python: env_kwargs=…; on the command line: --env-kwargs reward=MODULE:FUNCTION"),
    ("model", "In Python: models=…"), ("iteration", "Did you mean 'iterations'"),
])  # fmt: skip
def test_python_is_told_by_the_same_table_what_a_setting_is_called(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        build({setting: 1})


@pytest.mark.parametrize(("wish", "typed"), [
    (["list"], "marft envs"), (["ls"], "marft show"), (["plot"], "marft view"), (["curves"], "marft view"),
    (["compare", "a", "b"], "marft eval --compare RUN_A RUN_B"), (["version"], "marft --version"),
    (["deploy"], "docs/export.md"), (["run"], "marft train"),
])  # fmt: skip
def test_a_command_of_another_name_is_answered_with_the_one_here(
    wish: list[str], typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails(wish, capsys)
    assert f"there is no command '{wish[0]}'. Type: " in said and typed in said


def test_help_of_a_command_and_the_short_word_for_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "show"])
    assert "usage: marft show" in capsys.readouterr().out
    assert main(["-V"]) == 0
    assert capsys.readouterr().out == f"marft {marft_envs.__version__}\n"
    assert "no command 'trian'" in fails(["help", "trian"], capsys)


@pytest.mark.ci
def test_real_problems_from_a_path(shared_data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GSM8K from a local file, with a random model that has its own chat template: near zero, and end to end."""
    data = str(shared_data / "math" / "gsm8k_{split}.jsonl")
    small = save_tiny(here / "small", hidden=16, layers=1, context=256)
    short = ["train", "--data", data, "--models", str(small), *QUICK, "--name", "gsm"]
    assert "has a context of 256" in fails(short, capsys) and not Path("runs").exists()
    large = save_tiny(here / "large", hidden=16, layers=1, context=4096)
    assert main(["train", "--data", data, "--models", str(large), *QUICK, "--name", "gsm"]) == 0
    assert main(["eval", "gsm", "--data", str(shared_data / "math" / "svamp.jsonl"), "--episodes", "8"]) == 0
    assert "svamp.jsonl" in capsys.readouterr().out


def test_a_run_on_two_files_is_evaluated_on_the_second(
    model: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The held-out problems are in the file of the split ``test`` and in no other; one by one they are the same."""
    for split, n in (("train", 40), ("test", 12)):
        rows = [{"id": f"{split}-{i}", "problem": f"What is {i} and 1?", "answer": str(i + 1)} for i in range(n)]
        (here / f"sums_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of = ["--env", "math-solo-v0", "--data", "sums_{split}.jsonl", "--models", str(model), "--name", "sums"]
    assert main(["train", *of, *QUICK]) == 0
    assert main(["eval", "sums", "--out", "rows.jsonl"]) == 0
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert {row["task_id"] for row in rows} == {f"test-{i}" for i in range(12)}

    capsys.readouterr()
    started, many = list[int](), VectorEnv.__init__
    monkeypatch.setattr(VectorEnv, "__init__", lambda vec, makers: (started.append(len(makers)), many(vec, makers))[1])
    with monkeypatch.context() as patch:  # a clock by which every call of it comes six seconds later
        patch.setattr("marft_algos.terminal.time", SimpleNamespace(monotonic=itertools.count(0, 6).__next__))
        assert main(["eval", "sums", "--one-by-one", "--episodes", "3", "--out", "waited.jsonl"]) == 0
    assert started == [1, 1]  # the untrained team, and the trained one: an episode at a time
    alone = [json.loads(line) for line in Path("waited.jsonl").read_text().splitlines()]
    said = capsys.readouterr()
    assert said.err.split("\n") == [f"  {i}/3 episodes, infrastructure errors 0" for i in (1, 2, 3, 1, 2, 3)] + [""]
    waited = [line for line in said.out.splitlines() if line.startswith("waited ")]
    assert len(waited) == 2 and all(0 < float(line.split()[1]) < 60 for line in waited)
    assert f"for {sum(row['critical_path'] for row in alone) / 3:.3g} tokens one after the other" in waited[1]


@pytest.mark.ci
def test_held_out_problems_may_have_another_team(model: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer readers than in training, or more of one policy; what is typed at an evaluation counts, for both."""
    argv = ["train", "--env", "docs-chain-v0", "--models", str(model), *QUICK, "--eval-episodes", "2"]

    def trained(name: str, windows: int, held_out: int, policies: str) -> list[str]:
        words = ["--env-kwargs", f"lengths={windows}", "--eval-kwargs", f"lengths={held_out}", "--policies", policies]
        return [*argv, *words, "--name", name]

    def readers(run: str, *words: str) -> set[int]:
        assert main(["eval", run, *words, "--out", f"{run}.jsonl"]) == 0
        return {len({turn.agent for turn in episode.turns}) for episode in trajectory.read(Path(f"{run}.jsonl"))}

    assert main(trained("fewer", 2, 1, "own")) == 0 and readers("fewer") == {2}
    assert readers("fewer", "--env-kwargs", "lengths=2") == {4}
    assert main([*trained("more", 1, 2, "shared"), "--dry-run"]) == 0
    assert main(trained("more", 1, 2, "shared")) == 0 and readers("more") == {4}
    assert readers("more", "--env-kwargs", "lengths=3") == {6}
    assert readers("more", "--env", "relay-v0") == {2}  # it takes no lengths
    assert "no policy of the run plays: reader_2, reader_3" in fails(trained("none", 1, 2, "own"), capsys)


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    """Without training: it is what a report of a bug asks for."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"marft {marft_envs.__version__}\n"


def test_a_program_that_calls_a_command_keeps_its_own_signal_handler(capsys: pytest.CaptureFixture[str]) -> None:
    own = signal.signal(signal.SIGTERM, handler := lambda number, frame: None)
    try:
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, own)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_with_130_and_a_checkpoint_too(
    number: signal.Signals,
    model: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the suite may ignore it
    request.addfinalizer(lambda: signal.signal(number, before))
    fill = RolloutQueue.fill

    def filled(queue: RolloutQueue, progress: RunProgress, *args: Any) -> None:
        if progress.iteration == 3:
            signal.raise_signal(number)
        fill(queue, progress, *args)

    monkeypatch.setattr(RolloutQueue, "fill", filled)
    argv = ["train", "--env", "relay-v0", "--models", str(model), *QUICK]
    assert main([*argv, "--iterations", "100000", "--eval-every", "0", "--name", "stopped"]) == 130
    assert "go on: marft train --resume" in capsys.readouterr().out
    assert max(p.name for p in Path("runs/stopped/checkpoints").iterdir()) == "step_000003"


@pytest.mark.ci
@pytest.mark.parametrize("number", [
    signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
])  # fmt: skip
def test_ctrl_c_ends_with_130_and_a_checkpoint(number: signal.Signals, model: Path, here: Path) -> None:
    words = ("--env", "relay-v0", "--models", str(model), *QUICK, "--eval-every", "0", "--name", "stopped")
    process = preloaded.Started(here, "-m", "marft_algos", "train", *words, "--iterations", "100000")
    while "iteration 3/" not in process.err.read_text():
        assert process.runs(0.1), process.wait()
    os.kill(process.pid, number)
    done = process.wait(60)
    assert done.returncode == 130
    assert "go on: marft train --resume" in done.stdout
    steps = sorted(p.name for p in Path("runs/stopped/checkpoints").iterdir())
    assert int(steps[-1].removeprefix("step_")) >= 3


@pytest.mark.parametrize(("start", "paid", "credit", "says"), [
    (0.02, 1.0, "broadcast", "score of 0.020 is little.*--warm-start"),
    (0.4, 1.0, "broadcast", "the reward was 0 or 1.*rft"), (0.4, 1.5, "broadcast", "rewards were more than success"),
    (0.4, 1.0, {"rule": "broadcast", "costs": {"tokens": 0.01}}, "rewards were more than success"),
])  # fmt: skip
def test_what_a_run_says_at_its_end_follows_from_its_start_and_its_pay(
    start: float, paid: float, credit: Any, says: str
) -> None:
    class Run:
        def metrics(self) -> list[dict[str, float]]:
            return [{"iteration": 0}, {"return": 0.5 * paid, "success": 0.5}]

    config = build({"env": "relay-v0", "algorithm": {"credit": credit}})
    assert re.search(says, commands._advice(Run(), config, start))  # type: ignore[arg-type]
