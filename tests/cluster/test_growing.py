"""A run that begins on few nodes: workers join with new ones, go with lost ones, and change nothing of the weights."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from helpers.runs import quiet_display, settings, train
from helpers.tiny import save_tiny
from marft_algos.engines.base import EngineError
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer

ray = pytest.importorskip("ray", reason="needs the extra 'cluster'")
from ray.cluster_utils import Cluster  # noqa: E402

from marft_algos.extras.cluster.rollouts import RayRollouts  # noqa: E402

pytestmark = pytest.mark.slow
GROWING = {"rollouts": "ray", "workers": 1, "max_workers": 3, "chunk": 2, "worker_start": 600.0}
ENV = "helpers.cluster_targets:make_slow_letters"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One node with room for one worker."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # else workers starve on a busy machine
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
    _, alone = train(settings(model, tmp_path / "here", **common))
    trainer = Trainer(build(settings(model, tmp_path / "ray", **{**common, **GROWING})))
    found = trainer.rollouts
    assert isinstance(found, RayRollouts)
    nodes: list[Any] = []
    ready: list[int] = []

    def until(number: int) -> None:
        """Hears what workers say until so many are ready."""
        end = time.monotonic() + 240
        while (count := sum(seat.facts is not None for seat in found._seats)) != number and time.monotonic() < end:
            found._listen({}, Counter())
        ready.append(count)

    def change(iteration: int) -> None:
        if iteration == 0:
            until(1)
            nodes.append(cluster.add_node(num_cpus=1))
        elif iteration == 1:
            until(2)
        elif iteration == 3:
            cluster.remove_node(nodes[0])  # which is noticed when its worker is given a chunk

    update = trainer.learner.update

    def updated(*args: Any) -> Any:
        change(args[1])
        return update(*args)

    trainer.learner.update = updated  # type: ignore[method-assign]
    folder = trainer.start()
    with quiet_display(6) as display:
        trainer.train(folder, display)
    assert ready == [1, 2] and files(folder) == files(alone)
    players = {player["name"].split(" on ")[0] for line in folder.metrics() for player in line.get("time_players", ())}
    assert len(players) == 2, "who joined has played, too"
    assert sum(line.get("engine/chunks_redone", 0) for line in folder.metrics()) >= 1


def test_a_run_that_needs_more_workers_than_come_says_how_many_came(cluster: Any, tmp_path: Path) -> None:
    config = settings(
        save_tiny(tmp_path / "tiny"), tmp_path, env=ENV, **{**GROWING, "workers": 2, "worker_start": 120.0}
    )
    with pytest.raises(EngineError, match=r"1 worker was ready within 120 s \(2 needed, 3 asked for\)"):
        Trainer(build(config))
