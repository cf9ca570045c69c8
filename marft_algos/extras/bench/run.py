"""Runs a grid: every run a process of its own, a few at a time, none twice; a failed one is a row with its error."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from marft_algos.extras.bench.folder import BenchFolder, Stage
from marft_algos.extras.bench.grid_runs import GridRun, expand
from marft_algos.extras.bench.sweep import chosen
from marft_envs.errors import ConfigError

if TYPE_CHECKING:
    from marft_algos.extras.bench.grid import Grid

Say = Callable[[str], None]

_LONGEST_TEMPORARY = 107 - len("/pymp-xxxxxxxx/listener-xxxxxxxx")
"""Bytes of the longest path of a socket (Linux), less what ``multiprocessing`` puts behind the folder."""


def run(grid: Grid, folder: BenchFolder, stages: Sequence[Stage], jobs: int, say: Say) -> BenchFolder:
    """Runs the stages of a grid, in order; see :meth:`marft_algos.extras.bench.Grid.run`."""
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; expected at least 1.")
    _check_temporary()
    folder.prepare(grid.table())
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a process: the server hands it to all
    # Its interpreter would put the current folder first, whose files must not stand in for modules of the library.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    for stage in stages:
        grid_runs = expand(grid, stage, chosen(grid, folder) if stage == "main" else None)
        folder.write_stage(stage, [grid_run.row() for grid_run in grid_runs])
        _Stage(folder, grid_runs, say).run(jobs)
    return folder


def _check_temporary() -> None:
    """Checks that a socket in the folder of temporary files has a path that the kernel takes.

    Raises:
        ConfigError: It has not, and no run could be started.
    """
    temporary = tempfile.gettempdir()
    if (length := len(os.fsencode(temporary))) > _LONGEST_TEMPORARY:
        raise ConfigError(
            f"The folder of temporary files has a name of {length} bytes; runs are started over a socket in it, whose "
            f"path leaves room for {_LONGEST_TEMPORARY}. It is {temporary}. Next: TMPDIR=/tmp marft bench run …"
        )


def worker_process(root: str, key: str, log: str) -> None:
    """Makes a run in this process: everything it prints goes to the log."""
    with open(log, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from marft_algos.extras.bench import worker

    sys.exit(worker.main([root, key]))


class _Stage:
    """The runs of a stage while they are made."""

    def __init__(self, folder: BenchFolder, grid_runs: Sequence[GridRun], say: Say) -> None:
        self.folder, self.say = folder, say
        self.grid_runs = {grid_run.key: grid_run for grid_run in grid_runs if not grid_run.skipped}
        for why in sorted({f"{c.algorithm} · {c.env}: {c.skipped}" for c in grid_runs if c.skipped}):
            say(f"skipped: {why}")
        self.stopped = False
        self._children: set[Any] = set()
        # Children are forked from a server that has imported torch once and run nothing.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["marft_algos.extras.bench.worker"])
        self._lock, self._done = threading.Lock(), 0

    def run(self, jobs: int) -> None:
        """Trained runs first, then those made of them."""
        parts = [[c for c in self.grid_runs.values() if (c.kind == "train") is first] for first in (True, False)]
        for part in parts:
            with ThreadPoolExecutor(jobs) as pool:
                try:
                    for future in [pool.submit(self._grid_run, grid_run) for grid_run in part]:
                        future.result()
                except BaseException:
                    self._stop()
                    raise

    def _stop(self) -> None:
        """Lets no further run start, and ends those that run: they go on from their last checkpoint."""
        self.stopped = True
        with self._lock:
            for child in self._children:
                child.terminate()

    def _grid_run(self, grid_run: GridRun) -> None:
        folder, key = self.folder, grid_run.key
        if folder.complete(grid_run.row()):
            self._report(grid_run, "there already")
            return
        if self.stopped:
            return
        parts = [*grid_run.sources, *filter(None, [grid_run.reference])]
        if lacking := [part for part in parts if not folder.result_file(part).is_file()]:
            self._fail(grid_run, f"made of {', '.join(lacking)}, which failed")
            return
        started = time.monotonic()
        code = self._process(key)
        if code == 0:
            self._report(grid_run, f"{folder.result(key)['score']:.3f} in {time.monotonic() - started:.0f} s")
        elif not self.stopped:
            self._fail(grid_run, _last_words(folder, key, code))

    def _process(self, key: str) -> int:
        where = (str(self.folder.root), key, str(self.folder.log_file(key)))
        child = self._context.Process(target=worker_process, args=where)
        with self._lock:
            if self.stopped:
                return 1
            child.start()
            self._children.add(child)
        multiprocessing.connection.wait([child.sentinel])
        # An exit status can be read once, and starting a process reads those of all others: not beside each other.
        with self._lock:
            child.join()
            self._children.discard(child)
        return child.exitcode or 0

    def _report(self, grid_run: GridRun, what: str) -> None:
        with self._lock:
            self._done += 1
            self.say(f"[{self._done}/{len(self.grid_runs)}] {grid_run.title}: {what}")

    def _fail(self, grid_run: GridRun, why: str) -> None:
        self.folder.error_file(grid_run.key).write_text(why + "\n", encoding="utf-8")
        self._report(grid_run, f"failed: {why} (log: {self.folder.log_file(grid_run.key)})")


def _last_words(folder: BenchFolder, key: str, code: int) -> str:
    """Returns the last line that a failed process wrote, which is where Python puts the error."""
    lines = folder.log_file(key).read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f"exit code {code}: {last}"[:500]
