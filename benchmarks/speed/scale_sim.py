"""How fast would 2 to 1,024 GPUs train? A simulation by discrete events, whose rates are assumptions that you state.

::

    python -m benchmarks scale_sim --gpus 2 8 64 --wait 0.05 5

Colocated: all GPUs play, then all learn. Split: some play (workers) and some learn (ranks); with a staleness of k the
workers may be k iterations ahead, and of several splits the fastest is shown. A GPU that decodes n rows needs
``step + row * n`` seconds for one token of each; learning takes ``tokens / (train * ranks)`` seconds and ``publish``.
Lengths of replies are log-normal, and the environment's seconds between two turns exponential; with ``--sigma 0`` both
are constant. No figure here is a measurement.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.runs import table

PUBLISHED = (
    ("AReaL v0.3", "7B, replies up to 27k tokens, 192 H800", "57.7 to 25.4 h for 1,000 steps: 2.27"),
    ("AReaL v0.3", "1.5B, the same, 128 H800", "41.0 to 14.8 h: 2.77"),
    (
        "verl, fully async",
        "7B, up to 28k tokens, 32 / 64 / 128 H20",
        "400 steps: 2.66 / 1.92 / 2.35 times as fast",
    ),
    ("verl, one step off", "7B, up to 20k tokens, 16 H20", "749 to 520 s a step; 1.23 by its own count"),
    ("NeMo RL v0.4", "8B, 1,100 tokens, 16 H100", "1,562 to 2,161 tokens/s/GPU: 1.38"),
    ("prime-rl", "7B, adapters of rank 16, 8 H100, learner only", "42,355 tokens/s: 5,294 a GPU"),
)
"""System, load, and what its authors say of asynchronous over synchronous training; nobody measured it here. Sources:
docs/planning.md."""
SPLITS = (0.25, 0.5, 0.625, 0.75, 0.875)
"""Shares of workers that are tried."""


@dataclass(frozen=True)
class Rates:
    """Says how fast one GPU is; the defaults are derived, not measured."""

    step: float = 7.6e-3
    """Seconds of one token, without rows: 15.2 GB of weights (7B in bf16) at 2 TB/s, three fifths of an H100's."""
    row: float = 2.9e-5
    """Seconds that each row adds: keys and values of 1,000 tokens, 57 kB each, at 2 TB/s."""
    train: float = 9e3
    """Tokens a second and GPU: 6 * 7.6e9 operations a token at two fifths of an H100's 989 TFLOP/s."""
    publish: float = 0.2
    """Seconds until workers have new adapters: 323 MB (rank 32) over 10 Gb/s take 0.3, over 400 Gb/s 0.01."""
    switch: float = 1.0
    """Seconds in which colocated GPUs turn from playing to learning and back."""

    def pace(self, rows: int) -> float:
        """Returns the seconds of one token of so many rows."""
        return self.step + self.row * rows


@dataclass(frozen=True)
class Load:
    """Describes the episodes of an iteration."""

    episodes: int
    turns: int = 2
    tokens: float = 600.0
    """Mean of a turn's reply."""
    sigma: float = 0.5
    """Of the logarithm of the length; 0: all alike."""
    longest: int = 8192
    wait: float = 0.05
    """Mean seconds of the environment between two turns."""

    def draw(self, rng: random.Random) -> list[float]:
        """Draws the tokens of an episode's turns."""
        if not self.sigma:
            return [self.tokens] * self.turns
        mu = math.log(self.tokens) - self.sigma**2 / 2
        return [min(self.longest, max(1, round(rng.lognormvariate(mu, self.sigma)))) for _ in range(self.turns)]

    def pause(self, rng: random.Random) -> float:
        """Draws the environment's seconds between two turns."""
        return rng.expovariate(1 / self.wait) if self.sigma and self.wait else self.wait


@dataclass
class _Engine:
    """One GPU that decodes: all its rows advance together, so one clock in tokens serves them all."""

    tokens: float = 0.0
    """Tokens that a row would have got if it had been there from the start."""
    since: float = 0.0
    ends: list[tuple[float, int, list[float], int]] = field(default_factory=list)
    """Clock at which a row's turn ends, number of the episode, its turns, index of this one."""
    held: int = 0
    """Episodes, those waiting for their environment included."""
    stamp: int = 0


class Fleet:
    """Plays episodes on several GPUs; time moves from event to event."""

    def __init__(self, gpus: int, slots: int, rates: Rates, load: Load, rng: random.Random) -> None:
        self.now, self.free = 0.0, gpus * slots
        self._rates, self._load, self._rng = rates, load, rng
        self._engines = [_Engine() for _ in range(gpus)]
        self._least = [(0, i) for i in range(gpus)]
        self._events: list[tuple[float, int, int, int, tuple[int, list[float], int] | None]] = []
        self._order = itertools.count()

    def start(self, number: int, turns: list[float]) -> None:
        """Starts an episode where fewest are held."""
        while True:  # entries of engines that have changed since are stale
            held, i = self._least[0]
            if self._engines[i].held == held:
                break
            heapq.heappop(self._least)
        self._hold(i, 1)
        self._put(i, number, turns, 0)

    def due(self) -> float:
        """Returns when the next event is; infinity if there is none."""
        while self._events:
            at, _, i, stamp, waiting = self._events[0]
            if waiting is not None or stamp == self._engines[i].stamp:
                return at
            heapq.heappop(self._events)
        return math.inf

    def step(self) -> tuple[int, float] | None:
        """Handles the next event; returns the number and the tokens of an episode that ended with it."""
        self.now = self.due()
        _, _, i, _, waiting = heapq.heappop(self._events)
        if waiting is not None:
            self._put(i, *waiting)
            return None
        self._advance(i)
        engine = self._engines[i]
        _, number, turns, turn = heapq.heappop(engine.ends)
        self._arm(i)
        if turn + 1 < len(turns):
            back = self.now + self._load.pause(self._rng)
            heapq.heappush(self._events, (back, next(self._order), i, 0, (number, turns, turn + 1)))
            return None
        self._hold(i, -1)
        return number, sum(turns)

    def _hold(self, i: int, more: int) -> None:
        self._engines[i].held += more
        self.free -= more
        heapq.heappush(self._least, (self._engines[i].held, i))

    def _put(self, i: int, number: int, turns: list[float], turn: int) -> None:
        self._advance(i)
        engine = self._engines[i]
        heapq.heappush(engine.ends, (engine.tokens + turns[turn], number, turns, turn))
        self._arm(i)

    def _advance(self, i: int) -> None:
        engine = self._engines[i]
        if engine.ends:
            engine.tokens += (self.now - engine.since) / self._rates.pace(len(engine.ends))
        engine.since = self.now

    def _arm(self, i: int) -> None:
        """Foretells the engine's next end; what was foretold before no longer holds."""
        engine = self._engines[i]
        engine.stamp += 1
        if engine.ends:
            left = max(engine.ends[0][0] - engine.tokens, 0.0) * self._rates.pace(len(engine.ends))
            heapq.heappush(self._events, (self.now + left, next(self._order), i, engine.stamp, None))


@dataclass(frozen=True)
class Outcome:
    """Says what a simulated run was like."""

    speed: float
    """Tokens learnt from, a second and GPU."""
    oldest: int
    """Most versions that an episode was old when it was learnt from."""
    learning: float
    """Share of its time in which the learner worked."""


def colocated(gpus: int, load: Load, rates: Rates, *, slots: int, iterations: int, seed: int = 0) -> Outcome:
    """Simulates GPUs that all play, then all learn."""
    rng, seconds, learning, tokens = random.Random(seed), 0.0, 0.0, 0.0
    for _ in range(iterations):
        fleet, begun, ended, made = Fleet(gpus, slots, rates, load, rng), 0, 0, 0.0
        while ended < load.episodes:
            while fleet.free and begun < load.episodes:
                fleet.start(begun, load.draw(rng))
                begun += 1
            if (done := fleet.step()) is not None:
                ended, made = ended + 1, made + done[1]
        learning += made / (rates.train * gpus)
        seconds += fleet.now + made / (rates.train * gpus) + rates.switch
        tokens += made
    return Outcome(tokens / seconds / gpus, 0, learning / seconds)


def split(
    gpus: int,
    workers: int,
    staleness: int,
    load: Load,
    rates: Rates,
    *,
    slots: int,
    iterations: int,
    arrival: bool = False,
    seed: int = 0,
) -> Outcome:
    """Simulates workers that play while ranks learn.

    Args:
        gpus: Of workers and ranks together.
        workers: Those of them that play.
        staleness: Iterations that the start of an episode may be ahead of the learner.
        load: The episodes.
        rates: Of a GPU.
        slots: Episodes that a worker holds at once.
        iterations: To learn from, after as many that are not counted.
        arrival: Learn from episodes as they end, so that slow ones grow older than ``staleness``; off: as they began.
        seed: Of lengths and waits.
    """
    rng, size = random.Random(seed), load.episodes
    fleet = Fleet(workers, slots, rates, load, rng)
    counts, tokens, born = defaultdict[int, int](int), defaultdict[int, float](float), dict[int, int]()
    oldest_start = dict[int, int]()
    version = begun = ended = oldest = 0
    busy = math.inf  # when the learner is done with what it learns from
    first = counted = worked = 0.0
    while version < 2 * iterations:
        while fleet.free and begun < (version + staleness + 1) * size:
            born[begun] = version
            fleet.start(begun, load.draw(rng))
            begun += 1
        if busy <= fleet.due():
            fleet.now, busy = busy, math.inf
            version += 1
            if version == iterations:
                first = fleet.now
        elif (done := fleet.step()) is not None:
            number, made = done
            batch = ended // size if arrival else number // size
            counts[batch] += 1
            tokens[batch] += made
            start = born.pop(number)
            oldest_start[batch] = min(oldest_start.get(batch, start), start)
            ended += 1
        if busy == math.inf and counts[version] == size and version < 2 * iterations:
            took = tokens[version] / (rates.train * (gpus - workers)) + rates.publish
            busy = fleet.now + took
            oldest = max(oldest, version - oldest_start[version])
            if version >= iterations:
                counted, worked = counted + tokens[version], worked + took
    seconds = fleet.now - first
    return Outcome(counted / seconds / gpus, oldest, worked / seconds)


def fastest(gpus: int, staleness: int, load: Load, rates: Rates, **more: int | bool) -> tuple[Outcome, int]:
    """Returns the fastest of several splits, and its number of workers."""
    counts = sorted({min(max(round(share * gpus), 1), gpus - 1) for share in SPLITS})
    outcomes = [(split(gpus, workers, staleness, load, rates, **more), workers) for workers in counts]  # type: ignore[arg-type]
    return max(outcomes, key=lambda pair: pair[0].speed)


def rows(args: argparse.Namespace) -> list[list[str]]:
    """Simulates what the table shows."""
    rates = Rates(args.step, args.row, args.train, args.publish, args.switch)
    shown = []
    for wait, gpus in itertools.product(args.wait, args.gpus):
        load = Load(args.episodes * gpus, args.turns, args.tokens, args.sigma, args.longest, wait)
        more = {"slots": args.slots, "iterations": args.iterations, "seed": args.seed}
        together = colocated(gpus, load, rates, **more)
        cells = [f"{gpus}", f"{wait:g}", f"{together.speed:,.0f}"]
        for staleness in args.staleness:
            best, workers = fastest(gpus, staleness, load, rates, arrival=args.arrival, **more)
            cells.append(f"{best.speed / together.speed:.2f} ({workers}; {best.oldest})")
        shown.append(cells)
    return shown


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rates, load = Rates(), Load(1)
    parser.add_argument("--gpus", type=int, nargs="+", default=[2, 8, 64], help="1024 takes minutes")
    parser.add_argument("--wait", type=float, nargs="+", default=[0.05, 5.0], help="seconds between two turns")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--episodes", type=int, default=32, help="of an iteration, a GPU")
    parser.add_argument("--slots", type=int, default=64, help="episodes that a GPU holds at once")
    parser.add_argument("--turns", type=int, default=load.turns)
    parser.add_argument("--tokens", type=float, default=load.tokens, help="mean of a turn's reply")
    parser.add_argument("--sigma", type=float, default=load.sigma, help="of the logarithm of the length")
    parser.add_argument("--longest", type=int, default=load.longest)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--arrival", action="store_true", help="learn from episodes as they end")
    parser.add_argument("--seed", type=int, default=0)
    for name in ("step", "row", "train", "publish", "switch"):
        parser.add_argument(f"--{name}", type=float, default=getattr(rates, name))
    args = parser.parse_args(words)
    if min(args.gpus) < 2:
        parser.error("--gpus needs at least 2: one to play and one to learn")
    low = [name for name in ("episodes", "slots", "turns", "iterations", "step", "train") if getattr(args, name) <= 0]
    low += [name for name in ("row", "sigma", "publish", "switch") if getattr(args, name) < 0]
    if low or min(args.staleness) < 0 or min(args.wait) < 0 or args.tokens < 1:
        named = low or ["staleness, --wait or --tokens"]
        parser.error(f"--{named[0]} is too small; see --help")
    return args


def main() -> None:
    """Prints the table."""
    args = arguments()
    header = ["GPUs", "wait, s", "colocated, tokens/s/GPU", *(f"split, staleness {k}" for k in args.staleness)]
    print(table(header, rows(args)))
    print("\nSplit: times colocated (workers of the fastest split; versions that the oldest episode was old).")
    print(table(["published by", "load", "asynchronous against synchronous"], [list(row) for row in PUBLISHED]))


if __name__ == "__main__":
    main()
