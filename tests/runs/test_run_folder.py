"""A run's folder: one process writes it, its paths hold from anywhere, and it says what it was and what it measured."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import marft_algos
from helpers import preloaded
from helpers.runs import QUICK, settings, train
from helpers.tiny import save_tiny
from marft_algos.cli import main
from marft_algos.config import settings as config
from marft_algos.extras.bench import grid
from marft_algos.runs import disk, paths, plots, report
from marft_algos.runs.disk import RunError, writing
from marft_algos.runs.folder import EvaluationSetFacts, RunFolder
from marft_envs.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]
NAME = "ace ü"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model ``hf/tiny`` and a run that was made there, both named as one types them."""
    folder = tmp_path_factory.mktemp("study")
    save_tiny(folder / "hf/tiny", hidden=16, layers=1)
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["train", "--env", "relay-v0", "--models", "hf/tiny", *QUICK, "--name", NAME]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def here(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the study, and the current folder in it."""
    copied = tmp_path / "copy"
    shutil.copytree(study, copied)
    monkeypatch.chdir(copied)
    return copied


def fails(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Runs a command that must end with one clear message; returns what it printed before, and the message."""
    capsys.readouterr()
    try:
        code = main(argv)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    printed = capsys.readouterr()
    assert code and "Traceback" not in printed.err
    return printed.out, printed.err


# One owner -------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_second_process_is_refused_and_a_killed_one_leaves_nothing_in_the_way(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.open(NAME)
    first = preloaded.Started(here, "-m", "marft_algos", "train", "--resume", NAME, "--iterations", "5000")
    try:
        end = time.monotonic() + 120
        while len(run.metrics()) < 5:
            assert time.monotonic() < end and first.runs(0.2), "the first process does not get on"
        before = run.config_file.read_text()
        _, message = fails(["train", "--resume", NAME, "--iterations", "3"], capsys)
        assert f"process {first.pid} on " in message and "since " in message and f"kill {first.pid}" in message
        assert "--iterations 5000" in message
        assert run.config_file.read_text() == before
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    assert (run.root / disk.FILE).read_text(), "the killed process had no time to clear up"
    done = run.metrics()[-1]["iteration"] + 2
    assert main(["train", "--resume", NAME, "--iterations", str(done)]) == 0
    iterations = [line["iteration"] for line in run.metrics()]
    assert iterations == list(range(done + 1)), "no iteration twice, none out of order"


def test_the_lock_is_one_processs_and_its_children_do_not_keep_it(tmp_path: Path) -> None:
    try_it = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from marft_algos.runs import disk; from pathlib import Path\n"
    )
    try_it += f"with disk.held(Path({str(tmp_path)!r})): print('free')"

    def other() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", try_it], capture_output=True, text=True, timeout=60)

    with disk.held(tmp_path, "marft train --lr 1"), disk.held(tmp_path):
        child = os.fork()
        if not child:
            time.sleep(30)
            os._exit(0)
        assert f"process {os.getpid()} on" in other().stderr and "marft train --lr 1" in other().stderr
    try:
        assert other().stdout == "free\n", "a forked child outlives the owner's lock"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    (tmp_path / disk.FILE).write_text("half a line of a proc")
    assert other().stdout == "free\n"


# Where things lie ------------------------------------------------------------------------------------


def test_a_run_goes_on_from_another_folder(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["train", "--env", "relay-v0", "--models", "hf/tiny", *QUICK, "--name", "second"]) == 0
    run = RunFolder(here / "runs/second")
    model = str(here / "hf/tiny")
    assert config.load(run.config_file).models == model
    adapters = list(run.root.glob("checkpoints/*/policies/*/adapter_config.json"))
    assert adapters and all(json.loads(file.read_text())["base_model_name_or_path"] == model for file in adapters)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["train", "--resume", str(run.root), "--iterations", "3"]) == 0
    assert main(["eval", str(run.root)]) == 0


def test_data_files_are_named_absolutely_and_data_sets_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rows.jsonl", "rows-train.jsonl", "math"):
        (tmp_path / name).write_text("{}")
    for given, kept in (
        ("rows.jsonl", tmp_path / "rows.jsonl"),
        ("rows-{split}.jsonl", tmp_path / "rows-{split}.jsonl"),
        ("math", "math"),
        ("none.jsonl", "none.jsonl"),
    ):
        made = paths.absolute(config.build({"env_kwargs": {"data": given, "limit": 3}}))
        assert made.env_kwargs == {"data": str(kept), "limit": 3}
    assert paths.absolute(config.build({"models": "embedded"})).models == "embedded"
    (tmp_path / "told.json").write_text('{"actor": "Be brief."}')
    for given, kept in (("told.json", {"actor": "Be brief."}), ("Name a column. " * 99, "Name a column. " * 99)):
        assert paths.absolute(config.build({"env_kwargs": {"profiles": given}})).env_kwargs == {"profiles": kept}


def test_a_study_that_moved_as_a_whole_finds_its_model(here: Path, study: Path) -> None:
    run = RunFolder.open(NAME)
    table = run.config_file.read_text()
    run.config_file.write_text(table.replace(str(study), "/nowhere/study"))
    lines = [
        json.loads(line) | {"root": f"/nowhere/study/runs/{NAME}"}
        for line in run.commands_file.read_text().splitlines()
    ]
    run.commands_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert paths.of_run(run).models == str(here / "hf/tiny")
    shutil.rmtree(here / "hf")
    with pytest.raises(ConfigError, match=re.escape(f"write its new place into {run.config_file}")):
        paths.of_run(run)


@pytest.mark.parametrize("name", ["../esc", "a/../../esc", "..", "/tmp/esc"])
def test_no_run_lies_outside_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outside"):
        RunFolder.create(tmp_path / "runs", name, "stem")
    assert not list(tmp_path.glob("*"))


# What it says of itself -------------------------------------------------------------------------------


def test_a_report_shows_the_command_that_made_the_run_and_its_resumes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.open(NAME)
    assert main(["train", "--resume", NAME, "--iterations", "2"]) == 0
    printed = capsys.readouterr().out
    assert "nothing to do" in printed and "gain:" not in printed
    more = re.search(r"for more: (marft .*)", printed)
    assert more and shlex.split(more[1]) == ["marft", "train", "--resume", str(run.root), "--iterations", "4"]
    assert main(shlex.split(more[1])[1:]) == 0
    made, resumed = [line["command"] for line in run.commands()]
    assert shlex.split(made)[:4] == ["marft", "train", "--env", "relay-v0"] and shlex.split(made)[-1] == NAME
    page = run.report_file.read_text(encoding="utf-8")
    first = page.index("marft train --env relay-v0")
    assert first < page.index("marft train --resume") and "# from iteration 2" in page
    assert shlex.split(resumed)[2:4] == ["--resume", str(run.root)]


def test_a_resume_is_not_told_as_the_command_that_made_the_run(here: Path) -> None:
    """A run made by the library's API, or by an earlier version, has no commands until it is resumed by one."""
    run = RunFolder.open(NAME)
    run.commands_file.unlink()
    assert main(["train", "--resume", NAME, "--iterations", "4"]) == 0
    page = report.render(run)
    made, resumed = page.index("marft train --config"), page.index("marft train --resume")
    assert made < resumed and "# from iteration 2" in page[resumed:]


def test_commands_are_read_without_a_last_line_that_was_cut_and_checked_otherwise(here: Path) -> None:
    run = RunFolder.open(NAME)
    (made,) = run.commands()
    run.add_command("marft train --resume a", 3)
    whole = run.commands_file.read_bytes()
    run.commands_file.write_bytes(whole[:-9])  # the disk was full, or the machine went down
    assert run.commands() == [made] and "marft train --env" in report.render(run)
    run.add_command("marft train --resume b", 4)
    assert [line["command"] for line in run.commands()] == [made["command"], "marft train --resume b"]
    first, second = run.commands_file.read_text().splitlines()
    for bad in (first[:-9], "[]", "{}", first.replace('"iteration": 0', '"iteration": "x"'), "\\xff"):
        run.commands_file.write_text(f"{second}\n{bad}\n{second}\n")
        with pytest.raises(DataError, match=r"commands\.jsonl, line 2"):
            run.commands()
    run.commands_file.write_bytes(b"\xff\n" + whole)
    with pytest.raises(DataError, match=r"commands\.jsonl, line 1"):
        run.commands()


def test_printed_commands_can_be_typed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs" / NAME / "report.html").unlink()
    assert main(["show", NAME]) == 0
    shown = re.search(r"(marft show .*)", capsys.readouterr().out)
    assert shown and main(shlex.split(shown[1])[1:]) == 0
    _, message = fails(["train", "--env", "relay-v0", "--models", "hf/tiny", *QUICK, "--name", NAME], capsys)
    assert shlex.quote(str(Path("runs") / NAME)) in message


def test_show_is_ten_lines_or_all_numbers_with_what_they_are_or_json(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", NAME]) == 0
    assert capsys.readouterr().out.count("\n") <= 13
    assert main(["show", NAME, "--all"]) == 0
    told = capsys.readouterr().out
    assert "Mean return of the team" in told and "policy/" in told
    assert main(["show", NAME, "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["iteration"] == RunFolder.open(NAME).metrics()[-1]["iteration"] and known["eval/n"] == 12


def test_draws_are_not_called_held_out_problems(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.open(NAME)
    assert (
        run.evaluation_set() == EvaluationSetFacts(12, 4, held_out=False)
        and str(run.evaluation_set()) == "12 episodes of 4 instances"
    )
    assert main(["eval", NAME, "--episodes", "9"]) == 0
    assert "on           9 episodes of " in capsys.readouterr().out
    page = report.render(run)
    assert "12 episodes of 4 instances" in page and "eld-out" not in page and "eld out" not in page
    assert re.search(r"not solved after training: \d of 4 instances \(\d+ of 12 episodes\)", page)


def test_a_split_is_held_out(model: Path, tmp_path: Path) -> None:
    _, run = train(
        settings(
            model, tmp_path / "runs", env="math-solo-v0", env_kwargs={"levels": [0]}, iterations=0, eval_episodes=7
        )
    )
    assert str(run.evaluation_set()) == "7 held-out problems"
    _, run = train(settings(model, tmp_path / "runs", iterations=0, eval_episodes=7))
    assert "held" not in str(run.evaluation_set()) and "7 episodes of " in str(run.evaluation_set())


# Asked first ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("argv", "message"), [
    (["eval", NAME, "--swap", "plannr"], "Did you mean 'planner_0'"),
    (["eval", NAME, "--checkpoint", "9"], "Expected last, best or one of"),
    (["eval", NAME, "--env", "xor-v0"], "has no policy"), (["eval", NAME, "--episodes", "0"], "expected at least 1"),
    (["eval", NAME, "--episodes", "1", "--swap", "planner"], "at least two episodes"),
    (["play", "math-dual-v0", "--team", NAME], "nobody plays 'reasoner_0' of math-dual-v0"),
    (["play", "math-dual-v0", "--agent", "actor_0", "--team", NAME], f"marft play relay-v0 --team 'runs/{NAME}'"),
    (["play", "relay-v0", "--episodes", "0"], "expected at least 1"),
])  # fmt: skip
def test_names_are_checked_before_anything_is_played(
    argv: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, told = fails(argv, capsys)
    assert message in told
    assert "untrained" not in before and "sees:" not in before and "seed" not in before


@pytest.mark.parametrize(("typed", "message"), [
    (["--lora-r", "4", "--iterations", "3"], "Type: --lora-r 2"),
    (["--policies", "shared", "--iterations", "3"], "has no policy 'shared'"), (["grpo"], "marft train grpo --start"),
    (["--env", "xor-v0"], "--env xor-v0"), (["--start", "runs/other"], "A run that goes on has begun"),
])  # fmt: skip
def test_a_resume_that_cannot_be_leaves_the_run_as_it_was(
    typed: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.open(NAME)
    before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file() and path.name != ".lock"}
    algo = [word for word in typed[:1] if not word.startswith("-")]
    _, told = fails(["train", *algo, "--resume", NAME, *typed[len(algo) :]], capsys)
    assert message in told
    assert before == {path: path.read_bytes() for path in before}
    assert main(["eval", NAME, "--episodes", "2"]) == 0


# Disks and files --------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file of this process may grow beyond ``size`` bytes: real failed writes, without a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def test_a_full_disk_is_one_line_and_nothing_is_lost(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Entropy: this model solves nothing, and without a gradient there is no step, and nothing of Adam's to write.
    wide = ["--lora-r", "64", "--eval-episodes", "2", "--record-episodes", "0", "--name", "wide"]
    wide += ["--entropy-coef", "0.1"]
    assert main(["train", "--env", "relay-v0", "--models", "hf/tiny", *QUICK, *wide]) == 0
    run = RunFolder.open("wide")
    files = [file for file in run.checkpoints.rglob("*") if file.is_file()]
    weights = max(f.stat().st_size for f in files if f.suffix == ".safetensors")
    state = max(f.stat().st_size for f in files if f.name == "state.pt")
    assert 2 * max(file.stat().st_size for file in run.root.rglob("*.jsonl")) + 4000 < weights < state
    kept = {file: file.read_bytes() for file in files}
    for size, cause in ((weights // 2, "safetensors"), ((weights + state) // 2, "torch")):
        with small_files(size):
            _, said = fails(["train", "--resume", "wide", "--iterations", "3"], capsys)
        last = said.splitlines()[-1]
        assert last.startswith("error: Cannot write ") and "step_000003" in last, (cause, said)
        assert "Make room" in last and "marft train --resume RUN" in last
        assert {file: file.read_bytes() for file in kept} == kept
        assert not list(run.checkpoints.glob(".tmp-*"))
    assert main(["train", "--resume", "wide", "--iterations", "3"]) == 0
    assert [line["iteration"] for line in run.metrics()] == [0, 1, 2, 3]


def test_a_folder_that_may_not_be_written_is_no_full_disk(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="may write to") as told, writing(tmp_path / "run"):
        raise PermissionError(13, "Permission denied")
    assert "room" not in str(told.value)
    with pytest.raises(RunError, match="MB are free") as told, writing(tmp_path / "run/deep/down"):
        raise OSError(28, "No space left on device")
    assert "Make room" in str(told.value)


def test_settings_with_the_mark_of_notepad_are_read(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xef\xbb\xbflora_r = 3\r\n")
    assert config.load(tmp_path / "mine.toml").lora_r == 3


def test_training_from_python_without_the_extra_prints_the_pip_command() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\nimport marft_algos\n"
        "try:\n    marft_algos.train\nexcept marft_algos.lazy.MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import marft_algos.lazy\n" + code], cwd=ROOT, capture_output=True, text=True
    )
    assert "pip install -e '.[train]'" in done.stdout, done.stderr
    assert callable(marft_algos.train)


def test_a_broken_module_of_a_user_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "brokenenv.py").write_text("import marft_envs\n\nmarft_envs.regster('a-v0', None)\n")
    (tmp_path / "unfinished.py").write_text("def make(:\n")
    (tmp_path / "needsmore.py").write_text("import no_such_package_at_all\n")
    for module, words in (
        ("brokenenv", ("AttributeError", "brokenenv.py, line 3", "regster")),
        ("unfinished", ("SyntaxError", "unfinished.py, line 1")),
        ("needsmore", ("ModuleNotFoundError", "needsmore.py, line 1", "no_such_package_at_all")),
    ):
        for command in (
            ["envs", f"{module}:a-v0"],
            ["check", f"{module}:make"],
            ["train", "--env", f"{module}:a-v0"],
            ["train", f"{module}:Mine"],
        ):
            _, message = fails(command, capsys)
            assert all(word in message for word in words), (command, message)


def test_a_grid_says_what_to_write() -> None:
    table = {"algorithms": ["marft"], "envs": ["relay-v0"], "token_budget": 100}
    with pytest.raises(ConfigError, match=re.escape('Write: algorithms = ["marft"]')):
        grid.build(table | {"algorithms": "marft"})
    with pytest.raises(ConfigError, match=re.escape("Write: seeds = [3]")):
        grid.build(table | {"seeds": 3})
    with pytest.raises(ConfigError, match=re.escape('baseline = "marft", or add "reinforce" to controls')):
        grid.build(table | {"controls": ["untrained"]})


def test_a_run_that_is_stopped_at_its_very_end_says_what_to_type(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "finish", lambda run: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["train", "--resume", NAME, "--iterations", "3"]) == 130
    hint = re.search(r"its report: (marft .*)", capsys.readouterr().out)
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert hint and main(shlex.split(hint[1])[1:]) == 0
    assert RunFolder.open(NAME).metrics()[-1]["iteration"] == 3


def test_one_step_a_batch_has_no_panels_of_zeros() -> None:
    def metrics(kl: float, clip: float) -> list[dict[str, float]]:
        own = {"policy/a/kl": kl, "policy/a/clip_share": clip, "policy/a/loss": 0.1}
        return [
            {"iteration": 0, "eval/success": 0.2, "eval/low": 0.1, "eval/high": 0.4},
            {"iteration": 1, "return": 0.3, **own},
        ]

    assert [p.title for p in plots.diagrams(metrics(3e-13, 0.0))] == ["return", "loss"]
    shown = plots.diagrams(metrics(0.01, 0.0))
    assert [p.title for p in shown] == ["return", "loss", "KL", "clip share"]
    axes = plots.figure(3, 2).add_subplot()
    plots.draw(axes, shown[3], plots.colors(shown))
    assert axes.get_ylim() == (0.0, 1.0), "a share of nothing, on the axis of shares"


def test_a_folder_that_is_refused_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        RunFolder.create(tmp_path, "taken", "stem")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path, "empty", "stem").checkpoints.is_dir()


def test_a_run_shows_itself(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run = RunFolder(tmp_path / "r")
    assert repr(run) == f"<RunFolder {tmp_path / 'r'}: there is no run here>"
    run.root.mkdir()
    _begun(run)
    assert repr(run) == f"<RunFolder {tmp_path / 'r'}: iteration 0, success –>"
    for i, success in enumerate((0.25, None, 0.75)):
        evaluated = {} if success is None else {"eval/success": success, "eval/low": 0.0, "eval/high": 1.0}
        run.append_metrics({"iteration": i, "time_elapsed": 1.0, "return": 0.5, **evaluated})
    assert repr(run).endswith("iteration 2, success 0.250 → 0.750>")
    assert list(run.to_pandas()["iteration"]) == [0, 1, 2]
    assert run.plot().axes[0].get_title(loc="left") and "<svg" in run._repr_html_()
    with pytest.raises(ConfigError, match="Expected USER/NAME"):
        RunFolder.open(run.root).push_to_hub("no-account")


def _begun(run: RunFolder) -> Path:
    run.write_config(config.build({"env": "relay-v0"}).to_toml())
    return run.root
