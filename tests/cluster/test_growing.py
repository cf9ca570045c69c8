"""A run that begins on few nodes: workers join with new ones, go with lost ones, and change nothing of the weights."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import quiet_display, settings
from helpers.tiny import save_tiny
from marft_algos.engines.base import EngineError
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer

ray = pytest.importorskip("ray", reason="needs the extra 'cluster'")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
GROWING = {"rollouts": "ray", "workers": 1, "max_workers": 3, "chunk": 2, "worker_start": 600.0}
ENV = "helpers.cluster_targets:make_slow_letters"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One node with room for one worker."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def files(run: RunFolder) -> dict[str, bytes]:
    found = [*(run.root / "episodes").iterdir(), *run.root.glob("checkpoints/step_000006/**/*.safetensors")]
    assert len(found) >= 5
    return {str(path.relative_to(run.root)): path.read_bytes() for path in found}


def test_workers_join_and_go_while_the_run_goes_on(cluster: Any, tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "tiny")
    common: dict[str, Any] = {"env": ENV, "iterations": 6, "chunk": 2, "save_every": 1}
    alone = run(settings(model, tmp_path / "here", **common))
    trainer = Trainer(build(settings(model, tmp_path / "ray", **{**common, **GROWING})))
    seats = trainer.rollouts._seats  # type: ignore[attr-defined]
    ready: list[int] = []

    def count() -> int:
        return sum(seat.facts is not None for seat in seats)

    def until(number: int) -> None:
        end = time.monotonic() + 90
        while count() != number and time.monotonic() < end:
            time.sleep(0.05)
        ready.append(count())

    def change() -> None:
        until(1)
        node = cluster.add_node(num_cpus=1)
        until(2)
        cluster.remove_node(node)
        until(1)

    update, changing = trainer.learner.update, threading.Thread(target=change)

    def updated(*args: Any) -> Any:
        result = update(*args)
        if args[1] == 0:
            changing.start()
        elif args[1] < 5:
            time.sleep(1.0)  # so that all of it happens before the last iteration
        return result

    trainer.learner.update = updated  # type: ignore[method-assign]
    folder = trainer.start()
    with quiet_display(6) as display:
        trainer.train(folder, display)
    changing.join()
    assert ready[:2] == [1, 2] and files(folder) == files(alone)


def test_a_run_that_needs_more_workers_than_come_says_how_many_came(cluster: Any, tmp_path: Path) -> None:
    config = settings(
        save_tiny(tmp_path / "tiny"), tmp_path, env=ENV, **{**GROWING, "workers": 2, "worker_start": 120.0}
    )
    with pytest.raises(EngineError, match=r"1 worker was ready within 120 s \(2 needed, 3 asked for\)"):
        Trainer(build(config))


def run(config: Any) -> RunFolder:
    trainer = Trainer(build(config))
    folder = trainer.start()
    with quiet_display(config.iterations) as display:
        trainer.train(folder, display)
    return folder
