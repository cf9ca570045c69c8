"""A training that a test disturbs: in a folder of its own, watched, and ended with everything that it has started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marft_envs.errors import MarftError

ROOT = Path(__file__).resolve().parents[2]
MARK = "MARFT_DRILL"
"""Environment variable that all processes of a run inherit: its folder. Nothing without it is ever touched."""
ITERATIONS = 6
"""Each a second of playing and learning, of the embedded model."""
SIZE = ("--iterations", str(ITERATIONS), "--episodes-per-iteration", "16", "--eval-episodes", "8")
RUN = (*SIZE, "--eval-every", "0", "--save-every", "1", "--reduction-slots", "8", "--chunk", "4", "--name", "run")
"""What all trainings have in common, the undisturbed one too."""
PLAN, STRUCK, DEADLY = "plan", "struck", "deadly"
"""Files of a run's folder: at which call ``sabotage`` strikes; when it has; which episode is deadly from then on."""
POLL_S = 0.1
LIMIT_S = 1500.0
"""What one training may take."""


class StageError(MarftError, RuntimeError):
    """A training did something that no test has asked for."""


@dataclass(slots=True)
class Process:
    """A process of a run, and when it was there."""

    pid: int
    role: str
    """``rank 0``, ``rank 1``, …, ``worker``, or empty."""
    first: float
    last: float
    title: str = ""


@dataclass(slots=True)
class Line:
    """Something that the run has printed, and when."""

    at: float
    text: str


@dataclass
class Run:
    """A training of its own processes.

    Args:
        folder: Of its own, empty; the run's is ``run`` below it.
        words: Options of ``marft train``, behind those of all tests.
        first: Words before the command: where it runs.
        algo: The algorithm, if not the preset's.
        disk: Where its folder is seen from here, if it is on a disk of its own.
    """

    folder: Path
    words: Sequence[str]
    first: Sequence[str] = ()
    algo: str = ""
    disk: Path | None = None
    ended: float | None = None
    """When it had ended, and all of its processes with it."""
    lines: list[Line] = field(default_factory=list)
    seen: dict[int, Process] = field(default_factory=dict)
    started: float = 0.0
    _process: subprocess.Popen[str] | None = None

    @property
    def view(self) -> Path:
        """Its folder, seen from here."""
        return self.disk or self.folder

    @property
    def root(self) -> Path:
        """The folder of the training, seen from here."""
        return self.view / "run"

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Run:
        """Starts it; or, if it has begun, goes on with it."""
        begun = (self.root / "config.toml").is_file()
        what = ["--resume", str(self.folder / "run")] if begun else [*filter(None, [self.algo]), *RUN]
        where = [] if begun else ["--runs-dir", str(self.folder)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        environ["RAY_ADDRESS"] = "local"  # never a cluster of somebody else's
        path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])  # of the algorithms that go wrong
        environ |= {
            MARK: str(self.folder),
            "PYTHONPATH": os.pathsep.join(path),
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        self.started, self.ended = time.monotonic(), None
        self._process = subprocess.Popen(
            [*self.first, sys.executable, "-m", "marft_algos", "train", *what, *where, *self.words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env=environ,
        )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            self.lines.append(Line(time.monotonic(), text.rstrip("\n")))

    # Processes --------------------------------------------------------------------------------------

    def look(self) -> dict[int, Process]:
        """Returns the run's processes that are there now."""
        now, there = time.monotonic(), {}
        for pid, environ, title in _marked(self.folder):
            process = self.seen.setdefault(pid, Process(pid, "", now, now))
            process.last, process.title = now, title
            process.role = _role(environ, title) or process.role
            there[pid] = process
        return there

    def those(self, role: str) -> list[Process]:
        """Returns the processes that are there now and have a role; ``rank``: any rank."""
        return [process for process in self.look().values() if process.role.startswith(role)]

    def send(self, pid: int, number: signal.Signals) -> bool:
        """Sends a signal to one of the run's processes; returns False if it has ended meanwhile."""
        try:
            handle = os.pidfd_open(pid)  # from here on the number means this process and no other
        except ProcessLookupError:
            return False
        try:
            if pid != self.pid and pid not in {found for found, _, _ in _marked(self.folder, pid)}:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)

    def end(self) -> None:
        """Ends all that is left of it."""
        for _ in range(100):
            left = [pid for pid, _, _ in _marked(self.folder)]
            if not left:
                break
            for pid in left:
                self.send(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        if self._process is not None:
            self._process.wait(30)

    # Waiting ----------------------------------------------------------------------------------------

    @property
    def code(self) -> int | None:
        """The exit code; none: it runs."""
        assert self._process is not None
        return self._process.poll()

    def until(self, there: Callable[[], object], every: float = POLL_S) -> bool:
        """Waits until something is so; returns False where the run has ended before.

        Args:
            there: Is asked every so often.
            every: Seconds.

        Raises:
            StageError: It takes too long.
        """
        limit = time.monotonic() + LIMIT_S
        while not there():
            if self.code is not None:
                return bool(there())
            if time.monotonic() > limit:
                raise StageError(f"A training has not ended within {LIMIT_S:g} s. It said:\n{self.said()}")
            time.sleep(every)
        return True

    def wait(self) -> int:
        """Watches its processes until it has ended, and the last of them with it; returns the exit code.

        Raises:
            StageError: It takes too long.
        """
        self.until(lambda: self.look() is None)
        limit = time.monotonic() + LIMIT_S
        while any(process.role for process in self.look().values()):
            if time.monotonic() > limit:
                raise StageError(f"Processes of a training outlive it by {LIMIT_S:g} s: {self.look()}")
            time.sleep(POLL_S)
        code, self.ended = self.code, time.monotonic()
        assert code is not None
        return code

    def said(self, last: int = 30) -> str:
        """Returns the last lines."""
        return "\n".join(line.text for line in self.lines[-last:])

    def when(self, *texts: str, since: float = 0.0) -> float | None:
        """Returns when a line first had one of these texts in it, from some moment on."""
        lines = list(self.lines)
        return next((line.at for line in lines if line.at >= since and any(t in line.text for t in texts)), None)

    @property
    def iteration(self) -> int:
        """Iterations that are saved."""
        folders = (self.root / "checkpoints").glob("step_*")
        return max((int(folder.name.removeprefix("step_")) for folder in folders), default=-1)

    def plan(self, call: int) -> None:
        """Lets an algorithm of ``sabotage`` strike at one of its calls."""
        (self.folder / PLAN).write_text(str(call), encoding="utf-8")

    def planned(self) -> str:
        """Returns at which."""
        return (self.folder / PLAN).read_text(encoding="utf-8")

    def struck(self) -> float | None:
        """Returns when it has; none: it has not."""
        file = self.folder / STRUCK
        return time.monotonic() - (time.time() - float(file.read_text(encoding="utf-8"))) if file.is_file() else None

    def fix(self) -> None:
        """Lets nothing more happen."""
        for name in (PLAN, DEADLY):
            (self.folder / name).unlink(missing_ok=True)

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return any((self.root / "checkpoints").glob(".tmp-step_*"))

    def digest(self) -> str:
        """Returns the digest of the last checkpoint: weights, value heads, optimisers.

        Raises:
            StageError: It is not that of the last iteration.
        """
        import safetensors.torch

        from marft_algos.ranks import consistency
        from marft_algos.runs import checkpoint
        from marft_envs import artefacts

        if self.iteration != ITERATIONS:
            raise StageError(f"A training has ended after iteration {self.iteration} of {ITERATIONS}:\n{self.said()}")
        path = checkpoint.pick(self.root / "checkpoints")
        state = checkpoint.load_state(path)
        artefacts.check(path, "policies")
        files = sorted((path / "policies").rglob("*.safetensors"))
        adapters = {str(file.relative_to(path)): safetensors.torch.load_file(file) for file in files}
        return consistency.digest([adapters, state["learner"], state["critics"]])


@contextlib.contextmanager
def running(run: Run) -> Iterator[Run]:
    """Starts a run, and ends all of it in any case."""
    try:
        yield run.start()
    finally:
        run.end()


def _marked(folder: Path, pid: int | None = None) -> Iterator[tuple[int, list[bytes], str]]:
    """Yields processes that have inherited a run's mark: number, environment, command line."""
    mark = f"{MARK}={folder}".encode()
    numbers = [entry for entry in os.listdir("/proc") if entry.isdecimal()] if pid is None else [str(pid)]
    for number in numbers:
        try:
            environ = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
            if mark in environ:
                title = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(number), environ, title
        except OSError:
            continue  # it has ended, or is another user's


def _role(environ: Sequence[bytes], title: str) -> str:
    if title.startswith("ray::_Actor"):
        return "worker"
    if "marft_algos.cli.rank" in title:
        rank = next((word for word in environ if word.startswith(b"RANK=")), b"")
        return f"rank {rank.decode().removeprefix('RANK=')}" if rank else ""
    return ""
