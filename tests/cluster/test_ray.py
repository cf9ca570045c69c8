"""Workers on a Ray cluster: the episodes of one process, whatever happens to the workers."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cluster_targets import Owner
from helpers.runs import quiet_display, settings
from marft_algos.config.settings import TrainConfig
from marft_algos.engines.base import EngineError
from marft_algos.rollout.episodes import InfrastructureError
from marft_algos.runs import paths
from marft_algos.runs.folder import RunFolder
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer
from marft_envs import ConfigError

ray = pytest.importorskip("ray", reason="needs the extra 'cluster'")
from marft_algos.extras.cluster import connect, kept, rollouts  # noqa: E402
from marft_algos.extras.cluster.rollouts import RayRollouts  # noqa: E402
from marft_algos.extras.cluster.worker import HashedBytes  # noqa: E402
from marft_algos.ranks.consistency import ProcessFacts  # noqa: E402

RAY = {"rollouts": "ray", "workers": 2, "chunk": 3, "worker_start": 120.0}
ONE = {**RAY, "workers": 1}
"""Each worker imports torch: where one shows it, there is one."""
ENV = "helpers.cluster_targets:make_slow_letters"
pytestmark = pytest.mark.ci


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """A cluster of this machine that outlives runs: it is made once."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 waits for ever on a busy machine
    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def made(model: Path, folder: Path, **changes: Any) -> TrainConfig:
    return settings(model, folder, **{"env": ENV, "iterations": 2, "chunk": 3, **changes})


def files(run: RunFolder) -> dict[str, bytes]:
    """What a run's episodes and weights are, in bytes."""
    found = [*(run.root / "episodes").iterdir(), *run.root.glob("checkpoints/step_000002/**/*.safetensors")]
    assert len(found) >= 5
    return {str(path.relative_to(run.root)): path.read_bytes() for path in found}


def numbers(run: RunFolder) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith(("time_", "engine/"))} for line in run.metrics()]


def train(config: TrainConfig, then: Callable[[Trainer], None] | None = None) -> RunFolder:
    trainer = Trainer(build(config))
    run = trainer.start()
    if then is not None:
        then(trainer)
    with quiet_display(config.iterations) as display:
        trainer.train(run, display)
    return run


@pytest.fixture(scope="module")
def here(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run that this process plays by itself."""
    return train(made(model, tmp_path_factory.mktemp("here")))


def workers_of(trainer: Trainer) -> RayRollouts:
    assert isinstance(trainer.rollouts, RayRollouts)
    return trainer.rollouts


def while_playing(trainer: Trainer, do: Callable[[int], None]) -> None:
    """Does something to the process of a worker that plays a chunk, once, as soon as there is one."""
    found = workers_of(trainer)

    def watch() -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            for seat in found._seats:
                if seat.facts is not None and seat.chunk is not None:
                    do(seat.facts.pid)
                    return
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()


def same(run: RunFolder, here: RunFolder) -> None:
    """Checks that a run is that of one process, and that its figures tell what its workers did."""
    assert files(run) == files(here) and numbers(run) == numbers(here)
    last = run.metrics()[-1]
    assert last["engine/workers"] >= 1 and last["engine/publish_bytes"] > 0
    assert sum(player["tokens"] for player in last["time_players"]) == last["tokens_played"]
    assert 0 < last["time_wait"] <= last["time_rollout"] and last["time_publish"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_episodes_and_weights_are_those_of_one_process(
    workers: int, here: RunFolder, model: Path, tmp_path: Path
) -> None:
    same(train(made(model, tmp_path, **{**RAY, "workers": workers})), here)


@pytest.mark.parametrize(("sent", "settings_"), [
    (signal.SIGKILL, {"workers": 1}), pytest.param(signal.SIGKILL, {}, marks=pytest.mark.slow),
    pytest.param(signal.SIGSTOP, {"worker_timeout": 4.0}, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_worker_that_dies_or_freezes_costs_nothing(
    sent: signal.Signals, settings_: dict[str, Any], here: RunFolder, model: Path, tmp_path: Path
) -> None:
    """Slow: what two workers do, who both import torch; the test of staleness below plays with two."""
    hit: list[int] = []

    def do(pid: int) -> None:
        hit.append(pid)
        os.kill(pid, sent)

    run = train(made(model, tmp_path, **{**RAY, **settings_}), lambda trainer: while_playing(trainer, do))
    assert len(hit) == 1
    same(run, here)
    assert sum(line.get("engine/restarts", 0) for line in run.metrics()) + 1 >= 1
    for _ in range(100):
        if not Path(f"/proc/{hit[0]}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{hit[0]}").exists(), "a frozen process is ended, too"


@pytest.mark.slow
def test_what_arrives_damaged_is_played_again(
    here: RunFolder, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[str] = []
    checked = HashedBytes.checked

    def once(self: HashedBytes, what: str) -> bytes:
        if what.startswith("chunk 1 ") and not broken:
            broken.append(what)
            return checked(HashedBytes(self.data[:-1] + b"?", self.sha256), what)
        return checked(self, what)

    monkeypatch.setattr(HashedBytes, "checked", once)
    run = train(made(model, tmp_path, **RAY))
    assert len(broken) == 1 and files(run) == files(here)


@pytest.mark.slow
def test_what_arrives_damaged_every_time_is_an_error_and_no_outage(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = HashedBytes.checked

    def damaged(self: HashedBytes, what: str) -> bytes:
        return checked(HashedBytes(self.data[:-1] + b"?", self.sha256) if what.startswith("chunk 1 ") else self, what)

    monkeypatch.setattr(HashedBytes, "checked", damaged)
    with pytest.raises(EngineError, match=r"chunk 1 .*arrived damaged.*for the 3\. time, and --retries is 2"):
        train(made(model, tmp_path, **RAY, retries=2))


@pytest.mark.slow
def test_weights_that_the_store_has_lost_are_put_there_again(here: RunFolder, model: Path, tmp_path: Path) -> None:
    def lose(trainer: Trainer) -> None:
        found = workers_of(trainer)
        publish = found.publish

        def published(policies: Any, version: int) -> None:
            publish(policies, version)
            if version == 1:
                variables = connect.variables(found._config)
                owner = ray.remote(runtime_env={"env_vars": variables})(Owner).remote()
                for of in found._weights.values():
                    [of.ref] = ray.get(owner.put.remote(of.packed))
                ray.kill(owner)  # and with it what it has put into the store

        found.publish = published  # type: ignore[method-assign]

    run = train(made(model, tmp_path, **RAY), lose)
    assert files(run) == files(here)


@pytest.mark.slow
def test_a_chunk_that_ends_every_worker_is_lost_and_the_run_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = made(model, tmp_path, **RAY, retries=1, env="helpers.cluster_targets:make_deadly_letters", iterations=1)
    with pytest.raises(
        InfrastructureError, match=r"3 of the 12 episodes of iteration 1 were lost.*3 machine.*2 workers died"
    ):
        train(config)
    assert "ended 2 workers" in capsys.readouterr().out
    (folder,) = tmp_path.glob("*/lost/*")
    chunk, weights = kept.read(folder)
    assert len(chunk.prompts) == 3 and sorted(weights) == ["planner_0", "solver_0"]


@pytest.mark.slow
@pytest.mark.parametrize(("hired", "error"), [(True, "none was ready within 2 s"), (False, "all are left out")])
def test_a_run_without_workers_ends_and_says_how_it_goes_on(
    hired: bool, error: str, model: Path, tmp_path: Path
) -> None:
    def gone(trainer: Trainer) -> None:
        found = workers_of(trainer)
        for seat in found._seats:
            ray.kill(seat.actor)
            seat.call = seat.facts = None
            seat.actor = seat.actor if hired else None
        found._config = made(model, tmp_path, **{**RAY, "worker_start": 2.0})

    with pytest.raises(EngineError, match=rf"All workers are gone, and {error}.*--resume"):
        train(made(model, tmp_path, **RAY), gone)


@pytest.mark.parametrize(("changes", "error"), [
    ({"workers": 9}, "9 workers of 1 CPU each do not fit.*4 CPU.*--workers 4"),
    (
        {"engines": {"solver_0": {"kind": "vllm", "url": "http://127.0.0.1:9"}}},
        "cannot share the server that plays solver_0.*--worker-vllm FOLDER.*--rollouts here, with --nproc N",
    ),
])  # fmt: skip
def test_what_the_cluster_cannot_give_is_refused(
    changes: dict[str, Any], error: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=error):
        Trainer(build(made(model, tmp_path, **{**RAY, **changes})))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
def test_an_address_where_nobody_listens_is_an_error_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    with pytest.raises(EngineError, match=f"No Ray cluster listens at RAY_ADDRESS={address}: .*unset RAY_ADDRESS"):
        connect.connect(1)
    assert time.monotonic() - started < 30


def test_a_node_that_has_just_come_is_waited_for_and_a_cluster_that_is_full_is_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Late:
        told = iter([{}, {"memory": 1.0}, {"CPU": 2.0}])

        def available_resources(self) -> dict[str, float]:
            return next(self.told, {})

    assert connect.free(Late()) == {"CPU": 2.0}
    monkeypatch.setattr(connect, "REPORT_S", 0.3)
    full = Late()
    full.told = iter(())  # type: ignore[misc,assignment]
    assert connect.free(full) == {}


def test_a_worker_of_other_code_is_refused(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ProcessFacts.here()
    other = ProcessFacts(facts.host, facts.pid, facts.version, "0123456789ab", facts.torch, facts.python, "cpu")
    monkeypatch.setattr(rollouts.ProcessFacts, "here", lambda device="cpu": other)
    with pytest.raises(ConfigError, match=r"runs source files with the digest .*0123456789ab\. Expected the same"):
        Trainer(build(made(model, tmp_path, **ONE)))


def test_a_model_that_is_not_on_the_workers_machine_is_the_workers_error(model: Path, tmp_path: Path) -> None:
    parts = build(made(model, tmp_path, **ONE))
    parts.spec = dataclasses.replace(parts.spec, config=made(tmp_path / "elsewhere", tmp_path, **ONE))
    with pytest.raises(ConfigError, match=r"elsewhere.*\(on a node of the cluster\)"):
        Trainer(parts)


def test_workers_that_play_while_others_learn_play_what_one_process_would_have(model: Path, tmp_path: Path) -> None:
    """Staleness 2: which weights play an iteration follows from the plan, and not from who is faster."""
    behind = {"staleness": 2, "iterations": 4, "save_every": 1, "keep": "all"}
    run = train(made(model, tmp_path / "here", **behind))
    busy: list[bool] = []

    def watch(trainer: Trainer) -> None:
        update, seats = trainer.learner.update, workers_of(trainer)._seats

        def updated(*args: Any) -> Any:
            for _ in range(1 if busy else 2000):  # the first time there are two iterations to be played yet
                if any(seat.chunk is not None for seat in seats):
                    break
                time.sleep(0.005)
            busy.append(any(seat.chunk is not None for seat in seats))
            return update(*args)

        trainer.learner.update = updated  # type: ignore[method-assign]

    again = train(made(model, tmp_path / "ray", **{**RAY, **behind}), watch)
    assert busy[0], "the learner learnt while workers played"
    assert files(again) == files(run) and numbers(again) == numbers(run)

    resumed = tmp_path / "resumed"
    shutil.copytree(again.root, resumed)
    for step in sorted((resumed / "checkpoints").iterdir())[-2:]:
        shutil.rmtree(step)
    folder = RunFolder.open(resumed)
    trainer = Trainer(build(dataclasses.replace(paths.of_run(folder), workers=1)))
    trainer.resume(folder)
    with quiet_display(4) as display:
        trainer.train(folder, display)
    assert files(folder) == files(run)
