"""Plays fault-injection tests: the undisturbed run once, then as many disturbed ones as are asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.drills.disk import SmallDisk
from benchmarks.drills.faults import FAULT_TESTS, FaultTest, Pace, Strike, moments
from benchmarks.drills.stage import ITERATIONS, POLL_S, Run, StageError, running

WITHIN_S = 60.0
"""A failure has to be noticed within so many seconds."""
NEEDED_S = 15.0
"""Where a run has ended so many seconds after it was hit, nobody need have noticed: what was hit had done its part."""
TRIES = 5
"""So often a test is begun again where the run was over before its moment."""


@dataclass(frozen=True)
class Hit:
    """One time that something happened to a run."""

    what: str
    after_s: float
    """Seconds from the run's start."""
    noticed_s: float | None
    """Seconds from then until it was noticed; none: nobody needed any more what was hit."""


@dataclass
class Result:
    """What came of one run that was disturbed."""

    hits: list[Hit]
    codes: list[int]
    """Exit codes: of the run, and of what it went on with."""
    seconds: float
    """Of all of it."""
    equal: bool
    """Whether weights, value heads and optimisers are those of the undisturbed run, to the bit."""
    faults: list[str] = field(default_factory=list)
    """What did not hold."""


class Rehearsal:
    """Plays fault-injection tests in a folder.

    Args:
        folder: For what the runs write.
        seed: Of the moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed, self._count = folder, seed, 0
        self._digest = ""
        self._paces: dict[tuple[str, ...], Pace] = {}

    def play(self, name: str, number: int, most: int) -> Result:
        """Disturbs one run.

        Args:
            name: Of the test.
            number: Of the run; with the seed it says when it happens.
            most: How often it may happen, if the test may do so several times in a run.

        Raises:
            StageError: The undisturbed run is not what it should be, or the moment does not come.
        """
        fault_test = FAULT_TESTS[name]
        pace = self._pace(fault_test.kind)
        for attempt in range(TRIES):
            rng = random.Random(f"{self._seed}/{name}/{number}/{attempt}")
            if (result := self._once(fault_test, pace, min(most, fault_test.each), rng)) is not None:
                return result
        raise StageError(f"{name}: {TRIES} runs were over before the moment that was drawn for them.")

    @property
    def digest(self) -> str:
        """The digest of the undisturbed run of one process."""
        if not self._digest:
            with running(self._new(())) as run:
                self._whole(run)
                self._digest = run.digest()
        return self._digest

    def _pace(self, kind: tuple[str, ...]) -> Pace:
        """Plays a run undisturbed, and looks when its processes and checkpoints are there."""
        if kind not in self._paces:
            seen, saved = dict[str, float](), list[float]()
            with running(self._new(kind)) as run:
                while run.code is None:
                    for process in run.look().values():
                        seen.setdefault(process.role.split(" ")[0], time.monotonic() - run.started)
                    saved += [time.monotonic() - run.started] * (run.iteration + 1 - len(saved))
                    time.sleep(POLL_S)
                self._whole(run)
                if run.digest() != self.digest:
                    raise StageError(f"The undisturbed run of {' '.join(kind)} has other weights than one process's.")
            self._paces[kind] = Pace(seen, saved[: ITERATIONS + 1])
        return self._paces[kind]

    def _new(self, words: tuple[str, ...], **more: Any) -> Run:
        self._count += 1
        folder = self._folder / f"{self._count:03d}"
        folder.mkdir()
        return Run(folder, words, **more)

    def _whole(self, run: Run) -> None:
        if code := run.wait():
            raise StageError(f"The undisturbed run ended with {code}:\n{run.said()}")

    def _once(self, fault_test: FaultTest, pace: Pace, most: int, rng: random.Random) -> Result | None:
        run, began = self._new((*fault_test.kind, *fault_test.words), algo=fault_test.algo), time.monotonic()
        if fault_test.calls:
            run.plan(rng.randint(1, fault_test.calls))
        with _placed(run, fault_test):
            with running(run):
                strikes = list(_struck(run, fault_test, pace, most, rng))
                codes = [run.wait()]
                hits = [_hit(run, fault_test, strike) for strike in strikes]
            if not hits:
                return None
            assert run.ended is not None
            over = run.ended - strikes[-1].at < NEEDED_S
            faults = list(_faults(fault_test, codes[0], hits, over, run))
            if codes[0] and codes[0] == fault_test.code:
                codes.append(self._goes_on(run))
                faults += [f"it went on, and ended with {codes[1]}:\n{run.said()}"] if codes[1] else []
            equal = codes[-1] == 0 and run.digest() == self.digest
        if fault_test.equal and not equal:
            faults.append("the weights are not those of the undisturbed run")
        return Result(hits, codes, round(time.monotonic() - began, 1), equal, faults)

    def _goes_on(self, run: Run) -> int:
        """Lets a run go on, with what was wrong fixed."""
        SmallDisk.free(run.view)
        run.fix()
        with running(run):
            return run.wait()


def _struck(run: Run, fault_test: FaultTest, pace: Pace, most: int, rng: random.Random) -> Iterator[Strike]:
    """Strikes at random moments, each after the one before was noticed."""
    for moment in moments(most, rng, pace, fault_test.role, fault_test.first):
        if (strike := fault_test.act(run, rng, moment)) is None:
            return
        yield strike
        if most > 1:
            run.until(lambda at=strike: run.look() is None or fault_test.notice(run, at) is not None)  # type: ignore[misc]


def _hit(run: Run, fault_test: FaultTest, strike: Strike) -> Hit:
    at = fault_test.notice(run, strike)
    return Hit(strike.what, round(strike.at - run.started, 2), None if at is None else round(at - strike.at, 2))


def _faults(fault_test: FaultTest, code: int, hits: list[Hit], over: bool, run: Run) -> Iterator[str]:
    if code != fault_test.code and not (over and code == 0):
        yield f"it ended with {code}, not with {fault_test.code}:\n{run.said()}"
    words = " ".join(line.text for line in run.lines)
    for text in fault_test.says if code == fault_test.code else ():
        if text not in " ".join(words.split()):
            yield f"it did not say '{text}':\n{run.said()}"
    for hit in hits:
        if hit.noticed_s is None and not (over and hit is hits[-1]):
            yield f"nobody noticed '{hit.what}':\n{run.said()}"
        if hit.noticed_s is not None and hit.noticed_s > WITHIN_S:
            yield f"'{hit.what}' was noticed after {hit.noticed_s:g} s, not within {WITHIN_S:g} s"


@contextmanager
def _placed(run: Run, fault_test: FaultTest) -> Iterator[None]:
    """Gives the run a small disk, if the test needs one."""
    with ExitStack() as stack:
        if fault_test.disk:
            disk = stack.enter_context(SmallDisk(run.folder))
            run.first, run.disk = disk.first, disk.view
        yield
