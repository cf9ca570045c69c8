"""What a cluster costs beside the playing: a call, 80 MB of adapters to three workers, an episode, and the driver.

::

    python -m benchmarks wire [--write]        # half a minute; needs the extra 'cluster'

A cluster of this machine is made. *Call*: an actor that does nothing. *Adapters*: packed with their sha256, put into
the store once, taken and checked by three workers of a node at the same time. *Episode*: of the quickstart, pickled as
a worker sends it, with its sha256, and read, in CPU time. *Driver*: CPU time of the process that deals the chunks
while they are played, over the CPU time of the whole iteration, workers included.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.runs import table
from marft_algos.cluster.rollouts import RayRollouts
from marft_algos.cluster.worker import HashedBytes, RayWorker, pack
from marft_algos.config import presets, settings
from marft_algos.rollout.panel import Played, cut
from marft_algos.runs.loggers import Display
from marft_algos.training.parts import build
from marft_algos.training.trainer import Trainer

RESULT = Path(__file__).parents[1] / "results" / "wire.json"
BOUNDS = {
    "a call, ms": 2.0,
    "80 MB put, ms": None,
    "80 MB to three workers, ms": 250.0,
    "an episode, kB": 2.0,
    "an episode, CPU ms": 0.1,
    "driver, % of CPU": 2.0,
}
"""What was wanted; None: it is part of the next."""


class Taker:
    """A worker that only takes."""

    def nothing(self) -> None:
        """Answers."""

    def take(self, refs: list[Any]) -> int:
        """Fetches and checks what was put."""
        import ray

        return len(ray.get(refs[0]).checked("weights"))


def median(work: Callable[[], Any], times: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Returns the median seconds of some repetitions, after one that is not counted."""
    work()
    spent = []
    for _ in range(times):
        started = clock()
        work()
        spent.append(clock() - started)
    return statistics.median(spent)


def calls_and_adapters(ray: Any, repeats: int) -> dict[str, float]:
    """Measures what goes through Ray."""
    takers = [ray.remote(num_cpus=0)(Taker).remote() for _ in range(3)]
    ray.get([taker.nothing.remote() for taker in takers])
    packed = pack({"adapter": torch.randn(20_000_000)})
    times: list[tuple[float, float]] = []
    for _ in range(repeats + 1):
        started = time.monotonic()
        ref = ray.put(packed)
        put = time.monotonic() - started
        ray.get([taker.take.remote([ref]) for taker in takers])
        times.append((put, time.monotonic() - started))
    return {
        "a call, ms": 1e3 * median(lambda: ray.get(takers[0].nothing.remote()), 200),
        "80 MB put, ms": 1e3 * statistics.median(put for put, _ in times[1:]),
        "80 MB to three workers, ms": 1e3 * statistics.median(both for _, both in times[1:]),
    }


def episodes(config: settings.TrainConfig) -> dict[str, float]:
    """Measures episodes as a worker sends them."""
    worker = RayWorker(config, 32)
    try:
        (chunk,) = cut(build(config).problems.train(config.seed, 0, 32), 32, 0)
        packed, _ = worker.play(chunk)
        played: Played = pickle.loads(packed.data)
        there_and_back = lambda: pickle.loads(HashedBytes.of(pickle.dumps(played)).checked("episodes"))  # noqa: E731
        spent = median(there_and_back, 20, time.process_time)
    finally:
        worker.close()
    return {"an episode, kB": len(packed.data) / 32e3, "an episode, CPU ms": 1e3 * spent / 32}


def driver(config: settings.TrainConfig) -> dict[str, float]:
    """Measures the process that deals the chunks, in a short run with two workers."""
    trainer = Trainer(build(config))
    assert isinstance(trainer.rollouts, RayRollouts)
    dealt, play = 0.0, trainer.rollouts.play

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal dealt
        started = time.process_time()
        try:
            return play(*args, **kwargs)
        finally:
            dealt += time.process_time() - started

    trainer.rollouts.play = timed  # type: ignore[method-assign]
    run = trainer.start()
    with Display(config.iterations, 0, "wire") as display:
        trainer.train(run, display)
    lines = run.metrics()
    whole = sum(line["time_cpu"] + line.get("time_played", 0.0) for line in lines)
    return {"driver, % of CPU": 100 * dealt / whole}


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/wire.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        short = {"runs_dir": folder, "iterations": 4, "eval_episodes": 8, "eval_every": 0, "chunk": 8, "lanes": 8}
        config = settings.build({**presets.get("quickstart"), **short})
        found = episodes(config)
        import ray

        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # as ``connect`` has it
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        ray.init("local", num_cpus=4, include_dashboard=False, **quiet)
        found |= calls_and_adapters(ray, args.repeats)
        found |= driver(settings.build({"rollouts": "ray", "workers": 2}, config))
        ray.shutdown()
    rows = [[name, f"{found[name]:.2f}", "" if most is None else f"{most:g}"] for name, most in BOUNDS.items()]
    print(table(["", "measured", "wanted at most"], rows))
    print(f"load of the machine, one minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if args.write:
        RESULT.write_text(
            json.dumps({name: round(found[name], 3) for name in BOUNDS} | {"load": os.getloadavg()[0]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
