"""What a fault-injection test does: which process is hit, when, by what; how it is noticed; the required result."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.drills.disk import SmallDisk
from benchmarks.drills.stage import POLL_S, Process, Run

RANKS = ("--nproc", "2")
RAY = ("--rollouts", "ray", "--workers", "2")
STOPPED, ENDED, KILLED = 130, 1, -signal.SIGKILL
"""Exit codes: by a signal that asks; by an error that says how it goes on; by one that does not ask."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast an undisturbed run is, in seconds from its start."""

    seen: Mapping[str, float]
    """Role -> when its first process was there."""
    saved: Sequence[float]
    """When checkpoint 0, 1, … was there."""


@dataclass(frozen=True, slots=True)
class Strike:
    """Something that was done to a run, and when."""

    at: float
    what: str
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """When it is to happen: so many seconds after checkpoint ``after`` was there; -1: after the first process was."""

    after: int
    delay: float

    def comes(self, run: Run, role: str) -> bool:
        """Waits for it; returns False where the run has ended before."""
        begun = (lambda: run.those(role)) if self.after < 0 else (lambda: run.iteration >= self.after)
        if not run.until(begun):
            return False
        at = time.monotonic() + self.delay
        return run.until(lambda: time.monotonic() >= at) and run.code is None


def moments(count: int, rng: random.Random, pace: Pace, role: str, first: int = -1) -> list[Moment]:
    """Draws moments in different iterations of a run, the time before the first one among them.

    Args:
        count: How many.
        rng: Draws them.
        pace: Of the run.
        role: Of whom is to be hit.
        first: The earliest checkpoint after which it may happen.
    """
    drawn = []
    for after in sorted(rng.sample(range(first, len(pace.saved) - 1), count)):
        begins = pace.saved[after] if after >= 0 else pace.seen[role]
        drawn.append(Moment(after, rng.uniform(0.0, pace.saved[after + 1] - begins)))
    return drawn


Act = Callable[[Run, random.Random, Moment], Strike | None]
"""Does it, and returns when and what; none: the run was over."""
Notice = Callable[[Run, Strike], float | None]
"""Returns when the run noticed; none: it has not, yet."""


@dataclass(frozen=True)
class FaultTest:
    """One row of the table of docs/faults.md."""

    fails: str
    """What goes wrong."""
    then: str
    """What has to come of it, beside the weights of the undisturbed run."""
    kind: tuple[str, ...]
    """Which trainings it is about: ``RANKS`` or ``RAY``."""
    act: Act
    notice: Notice
    words: tuple[str, ...] = ()
    """More options of ``marft train``."""
    code: int = 0
    """With which the training ends; if it is not 0, the test lets it go on."""
    each: int = 1
    """How often it may happen in one run."""
    first: int = -1
    """The earliest checkpoint after which it happens."""
    algo: str = ""
    """The algorithm that goes wrong, of ``sabotage``."""
    calls: int = 0
    """It does so at one of its first so many calls."""
    says: tuple[str, ...] = ()
    """What the run has to say then."""
    disk: bool = False
    """The run lies on a small disk."""
    equal: bool = True
    """Whether the weights have to be those of the undisturbed run."""

    @property
    def role(self) -> str:
        """Who is hit."""
        return "worker" if self.kind == RAY else "rank"


# Who is hit, and how ----------------------------------------------------------------------------


def sends(role: str, number: signal.Signals) -> Act:
    """Sends a signal to one of a role's processes."""

    def act(run: Run, rng: random.Random, moment: Moment) -> Strike | None:
        if not moment.comes(run, role) or not run.until(lambda: run.those(role)) or not (there := run.those(role)):
            return None
        return _sent(run, rng.choice(sorted(there, key=lambda process: process.role)), number)

    return act


def kills_rank(run: Run, rng: random.Random, moment: Moment) -> Strike | None:
    """Kills a rank at a random moment, or, every third time, rank 0 while it writes a checkpoint."""
    if rng.random() > 1 / 3:
        return sends("rank", signal.SIGKILL)(run, rng, moment)
    if not run.until(lambda: run.iteration >= moment.after and run.those("rank 0")):
        return None
    (first, *_) = run.those("rank 0")
    if not run.until(lambda: run.writing, every=0.001):
        return None
    return _sent(run, first, signal.SIGKILL, " in the middle of a checkpoint")


def kills_all_workers(run: Run, rng: random.Random, moment: Moment) -> Strike | None:
    """Kills every worker that there is, and every one that takes its place."""
    strike = sends("worker", signal.SIGKILL)(run, rng, moment)
    while strike is not None and run.code is None:
        for process in run.those("worker"):
            run.send(process.pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return strike


def to_launcher(number: signal.Signals) -> Act:
    """Sends a signal to the process that was started, when there are ranks."""

    def act(run: Run, rng: random.Random, moment: Moment) -> Strike | None:
        if not moment.comes(run, "rank"):
            return None
        return _sent(run, Process(run.pid, "the launcher", 0.0, 0.0), number)

    return act


def by_itself(run: Run, rng: random.Random, moment: Moment) -> Strike | None:
    """Waits until an algorithm of ``sabotage`` has struck, and the run has ended."""
    run.wait()
    at = run.struck()
    return None if at is None else Strike(at, f"at call {run.planned()}")


def fills_disk(run: Run, rng: random.Random, moment: Moment) -> Strike | None:
    """Fills the run's disk, but for a few bytes."""
    if not moment.comes(run, "rank"):
        return None
    left, iteration = rng.choice((0, rng.randrange(4096), rng.randrange(200_000))), run.iteration
    SmallDisk.fill(run.view, left)
    return Strike(time.monotonic(), f"{left} bytes left after checkpoint {iteration}")


def _sent(run: Run, to: Process, number: signal.Signals, when: str = "") -> Strike | None:
    what = f"{number.name} to {to.role}{when or _after(run)}"
    return Strike(time.monotonic(), what, to.pid) if run.send(to.pid, number) else None


def _after(run: Run) -> str:
    return f" after checkpoint {run.iteration}" if run.iteration >= 0 else " before the first checkpoint"


# How it is noticed ------------------------------------------------------------------------------


def by_words(*texts: str) -> Notice:
    """The run says one of these."""
    return lambda run, strike: run.when(*texts, since=strike.at)


def by_ranks(run: Run, strike: Strike) -> float | None:
    """The launcher ends the other ranks, and starts new ones."""
    ranks = [process for process in run.seen.values() if process.role.startswith("rank") and process.pid != strike.pid]
    fresh = [process.first for process in ranks if process.first > strike.at]
    if not fresh:
        return None
    gone = [process.last for process in ranks if process.first <= strike.at < process.last <= min(fresh)]
    return min(gone + fresh)


def by_end(run: Run, strike: Strike) -> float | None:
    """All of its processes have ended."""
    return run.ended


PLACE = "takes its place", "it is left out"
AGAIN = ("is played again",)
ALGO = "benchmarks.drills.sabotage:"

FAULT_TESTS: dict[str, FaultTest] = {
    "kill-worker": FaultTest(
        "a worker is killed (SIGKILL, out of memory)",
        "another one takes its place, and its chunk is played by a free worker",
        RAY,
        sends("worker", signal.SIGKILL),
        by_words(*PLACE),
        each=3,
    ),
    "freeze-worker": FaultTest(
        "a worker hangs (SIGSTOP)",
        "the same, after --worker-timeout (here 20 s); its process is ended",
        RAY,
        sends("worker", signal.SIGSTOP),
        by_words(*PLACE),
        ("--worker-timeout", "20"),
        first=0,
    ),
    "no-workers": FaultTest(
        "every worker is killed, and every one that takes its place",
        "the run ends with an error once all are left out, and goes on with --resume",
        RAY,
        kills_all_workers,
        by_words(*PLACE),
        code=ENDED,
    ),
    "deadly-chunk": FaultTest(
        "every worker that plays a certain episode dies of it",
        "after --retries (here 1) its chunk is lost and kept for replay; beyond --max-error-rate the run ends, and"
        " goes on with --resume",
        RAY,
        by_itself,
        by_words(*PLACE),
        ("--retries", "1"),
        calls=30,
        code=ENDED,
        algo=f"{ALGO}Deadly",
        says=("marft replay",),
    ),
    "damaged-episode": FaultTest(
        "a byte of a worker's episodes changes on the way",
        "its sha256 tells; the chunk is played again",
        RAY,
        by_itself,
        by_words(*AGAIN),
        calls=30,
        algo=f"{ALGO}DamagesEpisodes",
    ),
    "damaged-weights": FaultTest(
        "a byte of the weights changes on the way to a worker",
        "their sha256 tells; they are put into the store again, and the chunk is played again",
        RAY,
        by_itself,
        by_words(*AGAIN),
        calls=20,
        algo=f"{ALGO}DamagesWeights",
    ),
    "lost-store": FaultTest(
        "the store has lost the weights before a worker has read them",
        "they are put there again, and the chunk is played again",
        RAY,
        by_itself,
        by_words(*AGAIN),
        calls=40,
        algo=f"{ALGO}Loses",
    ),
    "kill-rank": FaultTest(
        "a rank is killed (SIGKILL), while it writes a checkpoint, too",
        "all ranks start again from the last checkpoint",
        RANKS,
        kills_rank,
        by_ranks,
        each=3,
    ),
    "freeze-rank": FaultTest(
        "a rank hangs (SIGSTOP)",
        "the others give up after --collective-timeout (here 20 s), and all ranks start again from the last checkpoint",
        RANKS,
        sends("rank", signal.SIGSTOP),
        by_ranks,
        ("--collective-timeout", "20"),
    ),
    "hang-rank": FaultTest(
        "a rank hangs in a call that does not return",
        "the same; what it hangs in is printed",
        RANKS,
        by_itself,
        by_ranks,
        ("--collective-timeout", "20"),
        calls=40,
        algo=f"{ALGO}Hangs",
        says=("sabotage.py",),
    ),
    "broken-rank": FaultTest(
        "a rank dies again and again, as one does whose GPU is lost",
        "after three restarts half as many ranks go on",
        RANKS,
        by_itself,
        by_ranks,
        calls=30,
        algo=f"{ALGO}Breaks",
        says=("Half as many go on: 1 of 2",),
    ),
    "corrupt-rank": FaultTest(
        "a bit of one rank's weights changes in its memory",
        "at the next checkpoint the run ends and names the ranks; it goes on from the checkpoint before",
        RANKS,
        by_itself,
        by_words("do not hold the same weights"),
        calls=40,
        code=ENDED,
        algo=f"{ALGO}Flips",
        says=("rank 0", "rank 1"),
    ),
    "out-of-memory": FaultTest(
        "memory runs out on a rank in an update",
        "all ranks compute half as much at once from there on; results differ by rounding",
        RANKS,
        by_itself,
        by_words("Memory ran out with"),
        calls=40,
        algo=f"{ALGO}Scarce",
        equal=False,
    ),
    "sigterm": FaultTest(
        "the launcher is asked to stop (SIGTERM, Ctrl-C, a node that is drained)",
        "all ranks stop behind the same iteration, which is saved; it goes on with --resume",
        RANKS,
        to_launcher(signal.SIGTERM),
        by_end,
        code=STOPPED,
    ),
    "kill-launcher": FaultTest(
        "the launcher is killed",
        "its ranks stop behind the iteration, which is saved; it goes on with --resume",
        RANKS,
        to_launcher(signal.SIGKILL),
        by_end,
        code=KILLED,
    ),
    "full-disk": FaultTest(
        "the disk of the run is full",
        "the run ends with an error, what was saved is whole; when there is room, it goes on with --resume",
        RANKS,
        fills_disk,
        by_words("Cannot write"),
        code=ENDED,
        first=0,
        disk=True,
        says=("No space left", "What was saved before is intact"),
    ),
}
