"""Worker processes: killed at the deadline, replaced, never confused."""

from __future__ import annotations

import copy
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marft_envs.errors import ConfigError
from marft_envs.workers.pool import NODE, share
from marft_envs.workers.untrusted import (
    WorkerCrashed,
    WorkerError,
    WorkerLate,
    WorkerOutOfMemory,
    WorkerPool,
    WorkerStartError,
    WorkerTimeout,
)


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with WorkerPool("helpers.worker_targets:work", deadline=1.0, memory_mb=512) as pool:
        pool.warm_up()
        yield pool


def usable(pool: WorkerPool) -> bool:
    return pool.call({"do": "echo", "value": "alive"}) == "alive"


@pytest.mark.parametrize("value", [None, 1.5, "é\ud800\u202e\0\n", [1, {"a": []}], "x" * 2_000_000])
def test_values_come_back_unchanged(pool: WorkerPool, value: object) -> None:
    assert pool.call({"do": "echo", "value": value}) == value


def test_the_process_is_kept_between_calls(pool: WorkerPool) -> None:
    assert pool.call({"do": "pid"}) == pool.call({"do": "pid"}) != os.getpid()


def test_an_exception_is_reported_and_the_process_kept(pool: WorkerPool) -> None:
    before = pool.call({"do": "pid"})
    with pytest.raises(WorkerError, match="ValueError: no such thing"):
        pool.call({"do": "raise"})
    with pytest.raises(WorkerError, match="TypeError"):
        pool.call({"do": "unjsonable"})
    assert pool.call({"do": "pid"}) == before


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_late_answer_is_killed_by_the_deadline(pool: WorkerPool) -> None:
    pool.warm_up()
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(WorkerTimeout, match="CPU time"):
        pool.call({"do": "spin"})
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert 0.9 < spent.ru_utime + spent.ru_stime - start.ru_utime - start.ru_stime < 3.0, "its import included"
    assert usable(pool)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_kept_from_the_processor_keeps_its_time() -> None:
    """A deadline is the worker's CPU time: stopped for twice as long as that, it answers all the same."""
    with WorkerPool("helpers.worker_targets:work", deadline=0.8) as pool:
        pid, answers = pool.call({"do": "pid"}), []
        before = cpu_of(pid)
        thread = threading.Thread(target=lambda: answers.append(pool.call({"do": "work", "seconds": 0.4})))
        thread.start()
        while cpu_of(pid) == before:
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.6)
        os.kill(pid, signal.SIGCONT)
        thread.join(20)
        assert answers == ["worked"] and pool.call({"do": "pid"}) == pid


def test_the_first_call_has_all_its_time_however_long_the_worker_took_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time\nfrom helpers.worker_targets import work\ntime.sleep(1)\n"
    (tmp_path / "slow_start.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with WorkerPool("slow_start:work", deadline=1.0) as pool:
        assert pool.call({"do": "work", "seconds": 0.7}) == "worked"


def test_a_worker_that_only_waits_meets_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft_envs.workers.untrusted.WALL", 2.0)
    with WorkerPool("helpers.worker_targets:work", deadline=0.2) as pool:
        pool.warm_up()
        start = time.monotonic()
        with pytest.raises(WorkerLate, match=r"0\.4 s") as caught:
            pool.call({"do": "sleep", "seconds": 30})
        assert caught.value.fault == "machine"
        assert 0.3 < time.monotonic() - start < 5 and usable(pool)


def sleeping(pool: WorkerPool) -> tuple[threading.Thread, list[BaseException]]:
    """A call of another thread that sleeps for long, and what ends it."""
    caught: list[BaseException] = []

    def body() -> None:
        try:
            pool.call({"do": "sleep", "seconds": 30})
        except WorkerError as error:
            caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, caught


def test_a_timeout_works_off_the_main_thread(pool: WorkerPool) -> None:
    thread, caught = sleeping(pool)
    thread.join(10)
    assert isinstance(caught[0], WorkerTimeout) and usable(pool)


def test_children_of_a_late_worker_die_with_it(pool: WorkerPool, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(WorkerTimeout):
        pool.call({"do": "family", "file": str(note)})
    child = int(note.read_text())
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split(")")[1].split()[0] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("a grandchild outlived its worker")


def test_printing_does_not_corrupt_the_protocol(pool: WorkerPool) -> None:
    assert pool.call({"do": "print"}) == "honest"
    assert usable(pool)


def test_a_worker_has_no_standard_input(pool: WorkerPool) -> None:
    assert pool.call({"do": "stdin"}) == ""
    assert usable(pool)


def test_death_is_reported_with_its_cause(pool: WorkerPool) -> None:
    with pytest.raises(WorkerCrashed, match="exit status 3"):
        pool.call({"do": "exit"})
    assert usable(pool)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
def test_memory_is_limited(pool: WorkerPool) -> None:
    with pytest.raises(WorkerOutOfMemory, match="MemoryError"):
        pool.call({"do": "hog", "megabytes": 2000})
    assert usable(pool)


def test_threads_share_a_pool() -> None:
    with WorkerPool("helpers.worker_targets:work", size=2, deadline=10.0) as pool, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda value: pool.call({"do": "echo", "value": value}), range(200)))
        pids = set(threads.map(lambda _: pool.call({"do": "pid"}), range(50)))
    assert answers == list(range(200)) and 1 <= len(pids) <= 2


def test_after_a_kill_a_ready_worker_goes_first() -> None:
    with WorkerPool("helpers.worker_targets:work", size=2, deadline=0.5) as pool:
        pool.warm_up()
        ready = {slot.process.pid for slot in pool.slots if slot.process is not None}
        with pytest.raises(WorkerTimeout):
            pool.call({"do": "spin"})
        assert len(ready) == 2 and pool.call({"do": "pid"}) in ready


def test_pickling_drops_the_processes_and_deep_copies_share_them(pool: WorkerPool) -> None:
    assert copy.deepcopy({"pool": pool})["pool"] is pool
    with pickle.loads(pickle.dumps(pool)) as other:
        assert (other.target, other.size, other.deadline, other.memory_mb) == (pool.target, 1, 1.0, 512)
        assert other.call({"do": "pid"}) != pool.call({"do": "pid"})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_its_own_worker(pool: WorkerPool) -> None:
    mine = pool.call({"do": "pid"})
    child = os.fork()
    if child == 0:
        differs = pool.call({"do": "pid"}) != mine
        pool.close()
        os._exit(0 if differs else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.call({"do": "pid"}) == mine


def test_close_ends_a_call_in_flight_and_later_calls() -> None:
    pool = WorkerPool("helpers.worker_targets:work", deadline=30.0)
    pool.warm_up()
    thread, caught = sleeping(pool)
    time.sleep(0.2)
    pool.close()
    thread.join(5)
    assert isinstance(caught[0], WorkerCrashed)
    with pytest.raises(WorkerError, match="closed"):
        pool.call({"do": "pid"})


def test_a_target_that_cannot_be_imported_is_named() -> None:
    with (
        WorkerPool("no_such_module:work") as pool,
        pytest.raises(WorkerStartError, match="No module named 'no_such_module'"),
    ):
        pool.call(1)


@pytest.mark.parametrize("kwargs", [{"target": "module"}, {"size": 0}, {"deadline": 0.0}, {"memory_mb": 0}])
def test_settings_that_cannot_work_are_refused(kwargs: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        WorkerPool(**{"target": "json:dumps", **kwargs})  # type: ignore[arg-type]


def test_a_pool_that_could_not_start_says_so_every_time_and_starts_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with WorkerPool("comes_later:work") as pool:
        for start in (pool.warm_up, lambda: pool.call(1), pool.warm_up, lambda: pool.call(1)):
            with pytest.raises(WorkerStartError, match="No module named 'comes_later'"):
                start()
        (tmp_path / "comes_later.py").write_text("def work(value):\n    return value\n", encoding="utf-8")
        assert pool.call(1) == 1


def test_callers_take_turns_in_the_order_in_which_they_came() -> None:
    order: list[int] = []
    with WorkerPool("helpers.worker_targets:work", deadline=10.0) as pool:
        pool.warm_up()

        def ask(number: int) -> None:
            pool.call({"do": "work", "seconds": 0.1})
            order.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join()
    assert order == sorted(order)


def test_no_worker_outlives_its_parent() -> None:
    code = (
        "from marft_envs.workers.untrusted import WorkerPool\n"
        "pool = WorkerPool('helpers.worker_targets:work')\n"
        "print(pool.call({'do': 'pid'}))\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        **os.environ, "PYTHONPATH": paths,
    })  # fmt: skip
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


@pytest.mark.parametrize(
    ("size", "express", "processes", "expected"),
    [
        (4, True, None, (4, True)),
        (4, True, "1", (4, True)),
        (8, True, "2", (3, True)),  # 2 · (3 + 1) = 8
        (8, False, "2", (4, False)),
        (2, True, "4", (1, False)),  # one each, whatever the size
        (7, False, "2", (3, False)),
    ],
)
def test_processes_of_one_machine_share_the_size_of_a_pool(
    size: int, express: bool, processes: str | None, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.delenv(NODE, raising=False)
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert share(size, express=express) == expected
    monkeypatch.setenv(NODE, "1")  # what is said by name wins
    assert share(size, express=express) == (size, express)


def test_ranks_that_call_at_once_start_no_more_processes_than_one_would(tmp_path: Path) -> None:
    """Two ranks, eight callers each, a pool of four: four processes at work on the machine."""
    code = """
import os, pathlib, sys
from concurrent.futures import ThreadPoolExecutor
from marft_envs.workers.untrusted import WorkerPool
with WorkerPool("os:getpid", size=4) as pool, ThreadPoolExecutor(8) as callers:
    pool.call = lambda payload: pool._run(lambda process, _: (process.wait_ready(), process.pid)[1], 3)
    pool.warm_up()
    print(len({process for process in callers.map(pool.call, range(64))}), flush=True)
"""
    env = {**os.environ, "LOCAL_WORLD_SIZE": "2"}
    ranks = [subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) for _ in range(2)]
    counts = [int(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert all(1 <= count <= 2 for count in counts) and sum(counts) <= 4


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NODE, "several")
    with pytest.raises(ConfigError, match="MARFT_NODE_PROCESSES is 'several'"):
        WorkerPool("json:dumps")
