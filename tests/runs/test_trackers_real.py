"""The packages themselves hold what metrics.jsonl holds: a training of one iteration, read back by each one's own reader.

A package that is not installed is a skip: ``pip install -e '.[wandb,mlflow,trackio]'``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import runs

Points = dict[tuple[int, str], float]
"""(iteration, key) -> number."""


def tensorboard(root: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(root / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {(e.step, key): e.value for key in events.Tags()["scalars"] for e in events.Scalars(key)}


def mlflow(root: Path) -> Points:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    (kept,) = client.search_runs([client.get_experiment_by_name("marft").experiment_id])
    assert kept.info.status == "FINISHED" and kept.data.tags["what/return"].endswith("[reward]")
    histories = {key: client.get_metric_history(kept.info.run_id, key) for key in kept.data.metrics}
    return {(m.step, key): m.value for key, history in histories.items() for m in history}


def trackio(root: Path) -> Points:
    # In a process of its own: the package looks for its folder when it is imported.
    code = (
        "import json; from trackio.sqlite_storage import SQLiteStorage as S; "
        f"print(json.dumps(S.get_logs('marft', {root.name!r})))"
    )
    env = os.environ | {"TRACKIO_DIR": str(root.parent / "trackio")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    logs = json.loads(done.stdout.splitlines()[-1])
    return {(log["step"], key): value for log in logs for key, value in log.items() if key not in ("step", "timestamp")}


def wandb(root: Path) -> Points:
    """Reads the records of an offline run, which are framed as LevelDB frames its log, with the package's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (root / "wandb").glob("offline-run-*/*.wandb")
    deadline = time.monotonic() + 60
    while b"" in (records := [*framed(file)]) or not any(Record.FromString(r).HasField("exit") for r in records):
        assert time.monotonic() < deadline, "wandb's own process goes on writing for a moment after finish()"
        time.sleep(0.2)
    points: Points = {}
    for record in map(Record.FromString, records):
        items = {(item.nested_key[0] if item.nested_key else item.key): item.value_json for item in record.history.item}
        step = int(items.pop("_step", record.history.step.num))
        points |= {(step, key): json.loads(text) for key, text in items.items() if not key.startswith("_")}
    return points


def framed(file: Path) -> Iterator[bytes]:
    """The records of a log of LevelDB: blocks of 32 KiB, in which a chunk has a checksum, a length and a kind."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block is padding
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last chunk of one
            yield whole
            whole = b""


READERS: dict[str, Callable[[Path], Points]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}
NEEDS = {"mlflow": ("mlflow", "sqlalchemy", "alembic")}


def metrics(root: Path) -> Points:
    lines: list[dict[str, Any]] = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return {
        (line["iteration"], key): float(value)
        for line in lines
        for key, value in line.items()
        if isinstance(value, int | float) and key != "iteration" and math.isfinite(value)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_a_tracker_holds_what_metrics_jsonl_holds(name: str, model: Path, tmp_path: Path) -> None:
    for package in NEEDS.get(name, (name,)):
        pytest.importorskip(package, reason=f"'{package}' is not installed: pip install -e '.[{name}]'")
    argv = ["train", "--env", "relay-v0", "--models", str(model), *runs.QUICK, "--iterations", "1"]
    variables = ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_DIR", "TRACKIO_SPACE_ID")
    env = {key: value for key, value in os.environ.items() if key not in variables}
    # In a process of its own, as it is typed: what a package flushes at the end of the process is there then.
    words = [sys.executable, "-m", "marft_algos", *argv, "--name", "tracked", "--loggers", name]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    wanted, kept = metrics(tmp_path / "runs/tracked"), READERS[name](tmp_path / "runs/tracked")
    assert kept.keys() == wanted.keys() and len(wanted) > 30
    # TensorBoard keeps float32.
    assert all(math.isclose(kept[point], wanted[point], rel_tol=1e-6, abs_tol=1e-12) for point in wanted)
