"""Trackers get every finite number of a run, described, into its folder; and every key of metrics.jsonl is in one table."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from helpers import runs
from marft_algos.cli import main
from marft_algos.runs import loggers, metrics, trackers
from marft_algos.runs.folder import RunFolder
from marft_envs.errors import ConfigError, MissingExtraError

ROOT = Path(__file__).resolve().parents[2]
LINES: list[dict[str, Any]] = [
    {"iteration": 0, "return": 0.25, "eval/success": 0.2, "note": "text"},
    {"iteration": 1, "return": 0.5, "policy/a_0/kl": float("nan"), "policy/a_0/loss": -1.5},
]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "tracked", "x")


def logged(name: str, run: RunFolder) -> None:
    tracker = loggers.make(name, run, 0)
    for line in LINES:
        tracker.log(line)
    tracker.close()


def test_tensorboard_reads_back_what_was_logged(run: RunFolder) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="extra track")
    logged("tensorboard", run)
    events = reader.EventAccumulator(str(run.root / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("return")] == [(0, 0.25), (1, 0.5)]
    assert "policy/a_0/kl" not in events.Tags()["scalars"], "what is no number has no curve"
    text = events.Tensors("what/policy/a_0/loss/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("Mean loss over the update")


class Recorder(types.ModuleType):
    """Stands in for a tracker's module, and keeps what it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[tuple[str, Any, Any]] = []
        self.config = self.info = self.entities = self
        self.run_id, self.MlflowClient = "id", lambda **words: self
        self.Metric = lambda key, value, time, step: (step, key, value)
        self.RunTag = lambda key, text: (key, text)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*args: Any, **words: Any) -> Any:
            self.told.append((name, args, words))
            return None if name == "get_experiment_by_name" else self

        return call


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_each_is_told_every_number_once_and_sends_nothing(
    name: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_DIR", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(variable, raising=False)
    module = Recorder(name)
    for stand_in in (name, "sqlalchemy", "alembic"):
        monkeypatch.setitem(sys.modules, stand_in, module)
    logged(name, run)
    if name == "mlflow":
        batches = [words for call, _, words in module.told if call == "log_batch"]
        assert [point for words in batches for point in words["metrics"]] == [
            (0, "return", 0.25),
            (0, "eval/success", 0.2),
            (1, "return", 0.5),
            (1, "policy/a_0/loss", -1.5),
        ]
        assert [key for words in batches for key, _ in words["tags"]] == [
            "what/return",
            "what/eval/success",
            "what/policy/a_0/loss",
        ]
    else:
        steps = [(words["step"], args) for call, args, words in module.told if call == "log"]
        assert steps == [
            (0, ({"return": 0.25, "eval/success": 0.2},)),
            (1, ({"return": 0.5, "policy/a_0/loss": -1.5},)),
        ]
    if name == "wandb":
        (start,) = [words for call, _, words in module.told if call == "init"]
        assert start["mode"] == "offline" and start["dir"] == str(run.root)


def test_mlflow_is_told_no_more_at_once_than_a_server_takes(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    module = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", module)
    tracker = loggers.make("mlflow", run, 0)
    tracker.log({"iteration": 0} | {f"policy/a_{i}/loss": float(i) for i in range(250)})
    batches = [words for call, _, words in module.told if call == "log_batch"]
    assert [len(words["metrics"]) for words in batches] == [len(words["tags"]) for words in batches] == [100, 100, 50]


def test_trackio_refuses_a_second_folder_in_one_process(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package would write into the first one, and say nothing."""
    monkeypatch.setenv("TRACKIO_DIR", "")
    monkeypatch.setitem(sys.modules, "trackio", Recorder("trackio"))
    loggers.make("trackio", run, 0)
    loggers.make("trackio", RunFolder.create(tmp_path, "beside", "x"), 0)
    with pytest.raises(ConfigError, match=r"one folder in a process.*TRACKIO_DIR"):
        loggers.make("trackio", RunFolder.create(tmp_path / "other", "x", "x"), 0)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "mine"))
    loggers.make("trackio", RunFolder.create(tmp_path / "other", "y", "x"), 0)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_one_that_is_not_installed_is_named_with_its_extra(
    name: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"pip install -e '\.\[{name}\]'"):
        loggers.make(name, run, 0)


def test_the_setting_offers_what_there_is() -> None:
    hint = runs.TrainConfig.__dataclass_fields__["loggers"].type
    assert all(f"'{name}'" in str(hint) for name in trackers.TRACKERS)


# The table ------------------------------------------------------------------------------------------


def test_every_key_that_runs_log_is_described(model: Path, here: Path) -> None:
    common = ["--env", "relay-v0", "--models", str(model), *runs.QUICK, "--iterations", "1"]
    assert main(["train", "marft", *common, "--pool", "1", "--kl-coef", "0.1", "--name", "a"]) == 0
    assert main(["train", "grpo", *common, "--group-size", "3", "--staleness", "1", "--name", "b"]) == 0
    keys = {
        key
        for file in Path("runs").glob("*/metrics.jsonl")
        for line in file.read_text().splitlines()
        for key in json.loads(line)
    }
    assert len(keys) > 50 and not [key for key in keys if metrics.describe(key) is None]


def test_names_in_keys_are_one_part_each() -> None:
    assert metrics.describe("policy/actor_0/kl") == metrics.METRICS["policy/*/kl"]
    assert metrics.describe("policy/kl") is None and metrics.describe("policy/a/b/kl") is None
    assert metrics.describe("eval/agent/actor_0/truncated") == metrics.METRICS["agent/*/truncated"]
    assert metrics.describe("task/depot/kept") == metrics.METRICS["task/*"]
    assert metrics.describe("somebody/elses") is None


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs/metrics.md").read_text(encoding="utf-8") == metrics.page(), (
        "type: python -m marft_algos.runs.metrics > docs/metrics.md"
    )
