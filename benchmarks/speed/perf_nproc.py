"""Tokens that are trained on, a second of wall time: one process, two ranks, and workers on Ray; and what was foretold.

::

    python -m benchmarks nproc --out runs/nproc                       # SmolLM2: some ten minutes of two idle cores
    python -m benchmarks nproc --out runs/nproc --preset quickstart --iterations 6    # the embedded model

Runs take turns, each ``--rounds`` times, and the first iteration of each is not counted. With equal lanes and chunks
all of them train the same weights, which is checked. The simulation of ``scale_sim`` is given rates that were measured
in one process (its rollouts at two sizes of a chunk, and its updates), and foretells the others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import Done, Job, run_all, table
from benchmarks.speed.scale_sim import Load, Rates, colocated

RESULT = Path(__file__).parents[1] / "results" / "nproc.json"
WAYS: dict[str, tuple[str, ...]] = {
    "one process": (),
    "two ranks": ("--nproc", "2"),
    "two workers on Ray": ("--rollouts", "ray", "--workers", "2"),
}
HEADER = ("", "rollout, s", "update, s", "tokens/s", "of one process", "foretold", "foretold / measured")
HALF = "one process, half chunks"


@dataclass(frozen=True)
class Speed:
    """What the counted iterations of some runs of one way took."""

    tokens: float
    """An iteration, replies only."""
    rollout: float
    """Seconds of an iteration."""
    update: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / (self.rollout + self.update)


def speed(runs: Sequence[Done]) -> Speed:
    """Returns the medians over all counted iterations."""
    lines = [line for run in runs for line in run.metrics if line["iteration"] > 1]
    keys = ("tokens", "time_rollout", "time_update")
    return Speed(*(statistics.median(float(line[key]) for line in lines) for key in keys))


def rates(whole: Speed, half: Speed, episodes: int, chunk: int, turns: int) -> tuple[Rates, Load]:
    """Derives the simulation's rates from one process at two sizes of a chunk.

    A chunk of n rows takes ``turns * length * (step + row * n)`` seconds.
    """
    length = whole.tokens / (episodes * turns)
    paces = [s.rollout / (episodes / n * turns * length) for s, n in ((whole, chunk), (half, chunk // 2))]
    row = max(2 * (paces[0] - paces[1]) / chunk, 0.0)
    step = max(paces[0] - row * chunk, 1e-9)
    made = Rates(step=step, row=row, train=whole.tokens / whole.update, publish=0.0, switch=0.0)
    return made, Load(episodes, turns, length, sigma=0.0, wait=0.0)


def foretold(rates: Rates, load: Load, chunk: int) -> dict[str, float]:
    """Returns what the simulation says of each way, in tokens a second of all of it."""
    tokens = load.episodes * load.turns * load.tokens
    more = {"slots": chunk, "iterations": 1}
    one, two = (n * colocated(n, load, rates, **more).speed for n in (1, 2))
    playing = tokens / two - tokens / rates.train / 2  # two play, and one learns
    ray = tokens / (playing + tokens / rates.train)
    return dict(zip(WAYS, (one, two, ray), strict=True))


def weights(run: Done) -> str:
    """Returns the digest of a run's last adapters."""
    digest = hashlib.sha256()
    for file in sorted(run.run.checkpoints.glob("step_*/policies/*/*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def main() -> None:
    """Measures what has not been measured, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--preset", default="smollm2")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/nproc.json")
    args = parser.parse_args()
    common = (
        *("--preset", args.preset, "--env", "math-dual-v0", "--env-kwargs", "levels=[0]", "--lanes", "8"),
        *("--iterations", f"{args.iterations}", "--episodes-per-iteration", f"{args.episodes}", "--eval-episodes", "2"),
        *("--keep", "last", "--record-episodes", "0"),
        *(("--warm-start", "0") if args.preset == "smollm2" else ()),
    )
    found: dict[str, list[Done]] = {}
    for number in range(args.rounds):
        for way, words in {**WAYS, HALF: ()}.items():
            chunk = args.chunk // 2 if way == HALF else args.chunk
            name = f"{way.replace(' ', '-').replace(',', '')}-{number}"
            job = Job(name, (*common, "--chunk", f"{chunk}", *words))
            found.setdefault(way, []).append(run_all([job], args.out, 1)[name])
    speeds = {way: speed(runs) for way, runs in found.items()}
    digests = {weights(run) for way in WAYS for run in found[way]}
    made, load = rates(speeds["one process"], speeds[HALF], args.episodes, args.chunk, turns=2)
    said = foretold(made, load, args.chunk)
    one = speeds["one process"].rate
    rows = []
    for way in WAYS:
        s = speeds[way]
        seen = [f"{s.rollout:.1f}", f"{s.update:.1f}", f"{s.rate:.1f}", f"{s.rate / one:.2f}"]
        rows.append([way, *seen, f"{said[way]:.1f}", f"{said[way] / s.rate:.2f}"])
    print(table(HEADER, rows))
    same = "equal" if len(digests) == 1 else "NOT EQUAL"
    print(f"weights: {same}; {args.rounds} rounds of {args.iterations - 1} counted iterations")
    if args.write:
        RESULT.write_text(json.dumps({"preset": args.preset, "weights": same, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
