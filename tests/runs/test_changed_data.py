"""Problems that changed since a run began, and names that no file of a run can hold: noticed before it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import marft_envs
from helpers.runs import settings, train
from marft_algos.cli import main
from marft_algos.config import settings as configs
from marft_algos.config.evaluation import EvalConfig
from marft_algos.evaluation.players import Players
from marft_algos.evaluation.resumable import ResumableEvaluation
from marft_algos.rollout.episodes import Prompts
from marft_algos.runs import start
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs.errors import ConfigError
from marft_envs.problems import rows

Row = dict[str, Any]


def write(path: Path, change: Callable[[list[Row]], Any] = lambda known: None) -> str:
    known: list[Row] = [{"id": f"a{i}", "problem": f"Compute ${i}+2$.", "answer": str(i + 2)} for i in range(12)]
    known = change(known) or known
    path.write_text("".join(json.dumps(row) + "\n" for row in known), encoding="utf-8")
    return str(path)


def written(run: RunFolder) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file() and path.name != ".lock"}


def refused(run: RunFolder, model: Path, changes: Mapping[str, Any]) -> str:
    """What going on with a run is refused with; nothing in its folder is another then."""
    before = written(run)
    with pytest.raises(ConfigError, match="has changed since") as raised:
        Trainer(build(settings(model, run.root.parent, **{**changes, "iterations": 2}))).resume(run)
    assert written(run) == before
    assert f"marft train --start {run.root}" in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(("change", "said"), [
    (lambda known: [row | {"id": f"b{i}"} for i, row in enumerate(known)], "had 12 rows, and has 12 now; 'a0'"),
    (lambda known: known[3].update(problem="Compute $3+9$."), "12 now; 'a3' was another"),
    (lambda known: known[5].update(answer="8"), "12 now; 'a5' was another"),
    (lambda known: known[:8], "and has 8 now; 'a8'"),
    (lambda known: [*known, {"problem": "Compute $1$.", "answer": "1"}], "and has 13 now"),
    (lambda known: known[::-1], "and has 12 now."),
], ids=["ids", "text", "answer", "fewer", "more", "order"])  # fmt: skip
def test_changed_rows_are_noticed_before_a_run_goes_on(
    change: Any, said: str, large: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "LARGE", 0 if large else rows.LARGE)
    changes = {"env": "math-solo-v0", "env_kwargs": {"data": write(tmp_path / "rows.jsonl")}, "iterations": 1}
    _, run = train(settings(model, tmp_path, name="run", **changes))
    write(tmp_path / "rows.jsonl", change)
    message = refused(run, model, changes)
    assert f"{tmp_path / 'rows.jsonl'} had" in message
    assert said in message
    write(tmp_path / "rows.jsonl")
    Trainer(build(settings(model, tmp_path, **{**changes, "iterations": 2}))).resume(run)


def test_other_training_problems_may_be_named_and_other_problems_of_evaluation_not(model: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", lambda known: [row | {"id": f"b{i}"} for i, row in enumerate(known)])
    apart = write(tmp_path / "held_out.jsonl", lambda known: [row | {"id": f"c{i}"} for i, row in enumerate(known)])
    held_out = {"data": apart}
    changes = {"env": "math-solo-v0", "env_kwargs": {"data": write(tmp_path / "rows.jsonl")}, "eval_kwargs": held_out}
    _, run = train(settings(model, tmp_path, name="run", **changes, iterations=0))
    Trainer(build(settings(model, tmp_path, **{**changes, "env_kwargs": {"data": other}}))).resume(run)
    assert "What evaluation draws" in refused(run, model, {**changes, "eval_kwargs": {"data": other}})
    (run.root / "data.json").unlink()  # of a run that was made before there was such a file
    Trainer(build(settings(model, tmp_path, **changes))).resume(run)
    assert json.loads((run.root / "data.json").read_text())["training"]["rows"] == 12


def test_a_changed_corpus_is_noticed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("Ann works for Bob.")
    asked = [{"id": f"q{i}", "question": "Who?", "answer": "Bob"} for i in range(8)]
    data = write(tmp_path / "asked.jsonl", lambda known: asked)
    changes = {"env": "rag-solo-v0", "env_kwargs": {"data": data, "corpus": str(tmp_path / "notes")}}
    _, run = train(settings(model, tmp_path, name="run", **changes, iterations=0))
    (tmp_path / "notes/a.txt").write_text("Ann works for Cleo.")
    assert f"({tmp_path / 'notes'}) is another one" in refused(run, model, changes)


@pytest.mark.ci
def test_what_is_made_here_is_not_hashed_and_a_hash_is_the_same_in_every_process() -> None:
    for env_id in ("math-dual-v0", "code-dual-v0", "rag-solo-v0", "docs-solo-v0", "relay-v0"):
        assert rows.digest(marft_envs.make(env_id).unwrapped.task) == {}, env_id
    code = (
        "import marft_envs; from marft_envs.problems.rows import digest;"
        "print(digest(marft_envs.make('tools-solo-v0', domain='documents').unwrapped.task)['sha256'])"
    )
    said = {subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}) for seed in "12"}
    assert len(said) == 1


def test_changed_demonstrations_are_noticed(tmp_path: Path) -> None:
    shown = tmp_path / "shown.jsonl"
    shown.write_text("1\n")
    config = configs.build({"algo": "sft", "algorithm": {"demonstrations": str(shown)}})
    run = RunFolder.create(tmp_path, "run", "")
    start.check_data(run, config, {})
    start.check_data(run, config, {})
    shown.write_text("2\n")
    with pytest.raises(ConfigError, match=f"the file {shown} is another one"):
        start.check_data(run, config, {})


def test_an_evaluation_does_not_go_on_with_other_rows(tmp_path: Path) -> None:
    def opened(sha256: str) -> None:
        data = {"rows": 2, "sha256": sha256} if sha256 else {}
        known = (
            EvalConfig("math-solo-v0", out=str(tmp_path / "out")),
            Players({}, {"actor_0": "embedded"}, {}, {"max_new_tokens": 512}),
        )
        ResumableEvaluation(*known, Prompts([3, 4], [{}, {}]), [], data).open()

    opened("a")
    opened("a")
    with pytest.raises(ConfigError, match="holds an evaluation with another 'data'"):
        opened("b")


def test_paths_that_are_no_utf8_are_refused_before_a_folder_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Latin-1, from an old disk: of a file of data, of the folder of runs, of the folder that one is in."""
    name = os.fsdecode(b"gr\xf6\xdfe")
    Path(name).mkdir()
    row = json.dumps({"problem": "Compute $1+2$.", "answer": "3"}) + "\n"
    for folder in (here, Path(name)):
        (folder / "rows.jsonl").write_text(row * 8)
    few = ["--iterations", "0", "--eval-episodes", "1", "--name", "a"]
    for words in (["--data", f"{name}/rows.jsonl"], ["--runs-dir", name]):
        assert main(["train", *words, *few]) == 1
        assert "gr\\udcf6\\udcdfe" in capsys.readouterr().err
    monkeypatch.chdir(name)
    assert main(["train", "--data", "rows.jsonl", *few]) == 1
    assert "rename the file or folder" in capsys.readouterr().err
    assert not list(here.rglob("runs"))
    assert not list(Path().rglob("checkpoints"))
