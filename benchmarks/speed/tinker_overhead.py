"""What a Tinker server costs an iteration beside training here: requests, bytes, seconds; round trips of a 7B model.

::

    python -m benchmarks tinker_overhead           # a stand-in on this machine, the same tiny model
    python -m benchmarks tinker_overhead --url http://127.0.0.1:8000 --models FOLDER

The second part is arithmetic: round trips that wait for each other, and bytes over a line; nothing of the server's.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from rich.console import Console

import marft_algos
from benchmarks.runs import table
from marft_algos.config import settings
from marft_algos.runs.loggers import Display
from marft_algos.training.trainer import Trainer

TOKEN_OUT = {"forward": 16, "step": 24}
"""Bytes of a token on the way there: id, target, and one or three numbers."""
TOKEN_BACK = 4
EPISODES, TURNS, PROMPT, REPLY, EPOCHS, MINIBATCHES = 64, 2, 1500, 500, 1, 1
"""Of the 7B model's iteration: two policies, a turn each in an episode."""
LINE = 100e6 / 8
"""Bytes a second of the line that is assumed: 100 Mbit/s."""


def measured(config: settings.TrainConfig) -> dict[str, float]:
    """Trains, and returns seconds and requests of an iteration, the first left out."""
    trainer = Trainer(marft_algos.build(config))
    run = trainer.start()
    with run.locked(""):
        trainer.train(run, Display(config.iterations, 0, "overhead", Console(quiet=True)))
    lines = [line for line in run.metrics() if "time_update" in line][1:]
    names = ("time_rollout", "time_update", "engine/line_requests", "engine/line_bytes_out", "engine/line_bytes_in")
    return {name: sum(line.get(name, 0.0) for line in lines) / len(lines) for name in names}


def arithmetic(trip: float) -> dict[str, float]:
    """Returns what round trips and bytes add to an iteration of the 7B model, in seconds.

    Work takes one request to begin and one to fetch. Connections stay open, but a server closes those of an iteration
    before: opening them is a round trip, and with TLS another. Forward passes are left out of the first minibatch
    where the server's samplers score as its trainer does; here they are counted.
    """
    tokens = EPISODES * TURNS * (PROMPT + REPLY)
    work = 2 * trip
    steps = TURNS * EPOCHS * MINIBATCHES
    waits = {"connections": 2 * trip, "replies": TURNS * work, "publishing": TURNS * work}
    waits |= {"forward": steps * work, "step": steps * work}
    out = EPISODES * TURNS * PROMPT * 6 + tokens * EPOCHS * sum(TOKEN_OUT.values())  # prompts are JSON
    back = EPISODES * TURNS * REPLY * 8 + tokens * EPOCHS * TOKEN_BACK * 2
    return {**waits, "bytes": (out + back) / LINE}


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="", help="of a server; a stand-in on this machine")
    parser.add_argument("--models", default="embedded")
    parser.add_argument("--iterations", type=int, default=3)
    args = parser.parse_args()
    shape: dict[str, Any] = {"algo": "grpo", "env": "relay-v0", "iterations": args.iterations, "eval_episodes": 4}
    shape |= {
        "models": args.models,
        "episodes_per_iteration": 8,
        "max_new_tokens": 8,
        "lora_alpha": 32,
        "eval_every": 0,
    }
    shape |= {"device": "cpu", "algorithm": {"group_size": 4, "max_grad_norm": None}}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = args.url
        if not url:
            from tests.helpers.tinker_server import serving

            url = stack.enter_context(serving(args.models)).url
        config = settings.build({**shape, "runs_dir": folder, "name": "here"})
        found = {"here": measured(config)}
        began = time.monotonic()
        found["server"] = measured(dataclasses.replace(config, tinker={"url": url}, name="there"))
    units = {"time_rollout": "s", "time_update": "s", "engine/line_requests": "", "engine/line_bytes_out": "B"}
    units |= {"engine/line_bytes_in": "B"}
    rows = [[name, *(f"{found[who][name]:.3g} {unit}" for who in found)] for name, unit in units.items()]
    print(table(["an iteration", *found], rows))
    print(f"the server's run took {time.monotonic() - began:.0f} s, its probe and {args.iterations} iterations")
    trips = {f"{trip * 1000:.0f} ms": arithmetic(trip) for trip in (0.02, 0.2)}
    rows = [[name, *(f"{each[name]:.2f} s" for each in trips.values())] for name in next(iter(trips.values()))]
    rows.append(["together", *(f"{sum(each.values()):.2f} s" for each in trips.values())])
    what = f"7B, {EPISODES} episodes of {TURNS} turns, {PROMPT} + {REPLY} tokens"
    print(table([what, *trips], rows))


if __name__ == "__main__":
    main()
