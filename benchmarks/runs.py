"""Many training runs, a few side by side, each a process of its own; finished ones are not run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft_algos.config import settings as config
from marft_algos.runs.folder import RunFolder
from marft_algos.runs.intervals import Interval


@dataclass(frozen=True)
class Job:
    """One ``marft train``."""

    name: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        """What a user types to repeat it."""
        return " ".join(["marft", "train", *self.arguments])


@dataclass(frozen=True)
class Done:
    """A finished run."""

    job: Job
    run: RunFolder
    seconds: float
    """Of training and evaluation, without starting Python."""

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Its metrics.jsonl."""
        return self.run.metrics()

    @property
    def tokens(self) -> int:
        """Tokens sampled for training."""
        return sum(int(m.get("tokens", 0)) for m in self.metrics)


def run_all(jobs: Sequence[Job], folder: Path, parallel: int) -> dict[str, Done]:
    """Runs what has not been run, ``parallel`` at a time; returns every job's run by name.

    Raises:
        RuntimeError: A run failed; its output is in ``<name>.log``. The others are kept, and a rerun goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(parallel) as pool:
        codes = list(pool.map(lambda job: _run(job, folder), jobs))
    failed = [job.name for job, code in zip(jobs, codes, strict=True) if code]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(jobs)} runs failed; see {folder / failed[0]}.log. Rerun to go on.")
    return {job.name: _done(job, folder) for job in jobs}


def _run(job: Job, folder: Path) -> int:
    if _finished(folder / job.name):
        return 0
    where = ["--resume", str(folder / job.name)]
    if not (folder / job.name / "config.toml").exists():
        where = [*job.arguments, "--runs-dir", str(folder), "--name", job.name]
    started = time.monotonic()
    with (folder / f"{job.name}.log").open("w") as log:
        code = subprocess.run(
            [sys.executable, "-m", "marft_algos", "train", *where],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            check=False,
        ).returncode
    print(f"{'failed' if code else 'done'}: {job.name} in {time.monotonic() - started:.0f} s", flush=True)
    return code


def swapped_messages(done: Done) -> str:
    """Returns what a trained team loses when everybody reads the reasoner's words about another problem."""
    command = [sys.executable, "-m", "marft_algos", "eval", str(done.run.root), "--swap", "reasoner_0"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("difference")][-1]


def peak_memory(words: Sequence[str], log: Path) -> int:
    """Runs ``marft`` in a process of its own; returns its largest resident set in bytes.

    Args:
        words: Of the command, behind ``marft``.
        log: File that takes its output.

    Raises:
        RuntimeError: It failed; its output is in the message.
    """
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "marft_algos", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"marft {' '.join(words)} failed:\n{log.read_text()}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _finished(root: Path) -> bool:
    if not (root / "report.html").exists():
        return False
    metrics, settings = RunFolder(root).metrics(), config.load(root / "config.toml")
    if not metrics:
        return False
    spent = settings.token_budget is not None and metrics[-1].get("tokens_total", 0) >= settings.token_budget
    return spent or metrics[-1]["iteration"] == settings.iterations


def _done(job: Job, folder: Path) -> Done:
    run = RunFolder(folder / job.name)
    return Done(job, run, float(run.metrics()[-1]["time_elapsed"]))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def points(gain: Interval) -> str:
    """``+11.0 [+6.6, +15.6]``: a difference of shares, in points."""
    return gain.points("")


def share(found: Interval) -> str:
    """``0.842 [0.807, 0.872]``: a share, without what it is about."""
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
