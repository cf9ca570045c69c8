"""How a team grows: score, seconds and memory of 1 to 12 agents, with an adapter each and with one for all.

::

    marft bench run examples/configs/population.toml --out runs/population
    python -m benchmarks population runs/population --plot docs/images/population.png

Score and seconds are those of the grid's runs. The embedded model is smaller than the process around it, so memory is
measured again with a base of 126 MB of random weights (Qwen2, 8 layers, hidden 512): the same teams, one iteration of
4 episodes each, a process each, its peak over that of one agent. Generation in fours and updates row by row keep
activations alike, so that what grows is what the agents own. A second base model would show as 126 MB.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import shapes
from benchmarks.runs import peak_memory, table
from marft_algos.config.values import dumps
from marft_algos.extras.bench import tables
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.packed import MEMORY

SHAPE = shapes.tiny(512, 8)
SHORT = {
    "iterations": 1, "token_budget": None, "episodes_per_iteration": 4, "eval_every": 0, "eval_episodes": 4,
    "save_every": 0, "record_every": 0, "record_episodes": 0, "max_new_tokens": 16,
    "engine_batch": 4,
}  # fmt: skip
MICRO_TOKENS = 128
"""A row is longer than that, and goes alone."""
COLUMNS = ["agents", "adapters", "score", "gain", "seconds", "MiB, embedded", "MiB over one agent, base of 126 MB"]


def teams(env: str) -> tuple[int, str]:
    """``agents-4-own`` -> 4, own. One agent's adapter is its own."""
    _, agents, *kind = env.split("-")
    return int(agents), kind[0] if kind else "own"


def peak(model: Path, settings: Mapping[str, Any], folder: Path) -> float:
    """Largest memory of a process that trains this team for one iteration, MiB.

    Raises:
        RuntimeError: It failed; its output is in the message.
    """
    file = folder / "config.toml"
    config = {k: v for k, v in {**settings, **SHORT, "models": str(model)}.items() if v is not None}
    config["algorithm"] = {**settings["algorithm"], "micro_tokens": MICRO_TOKENS}
    file.write_text(dumps(config), encoding="utf-8")
    words = ["train", "--config", str(file), "--runs-dir", str(folder)]
    return peak_memory(words, folder / "log.txt") / 2**20


def memory(folder: BenchFolder) -> dict[str, float]:
    """MiB that each of the benchmark's teams needs with a larger base."""
    peaks = {}
    with tempfile.TemporaryDirectory() as name:
        model = shapes.save(Path(name) / "base", SHAPE)
        for row in folder.rows():
            if row["algorithm"] == "marft" and row["seed"] == 0:
                env = row["env"]
                inside = Path(name) / env
                inside.mkdir()
                peaks[env] = peak(model, folder.job(row["key"])["config"], inside)
                print(f"{env}: {peaks[env]:.0f} MiB", flush=True)
    return peaks


def rows(lines: Sequence[tables.Line], needed: Mapping[str, float]) -> list[list[str]]:
    """The table's rows, in the grid's order."""
    alone = needed["agents-1"]
    return [
        [
            *map(str, teams(line.env)),
            tables.score(line.mean),
            tables.points(line.difference),
            f"{line.seconds:.0f}",
            f"{line.memory / 2**20:.0f}",
            f"{needed[line.env] - alone:+.0f}",
        ]
        for line in lines
    ]


def draw(lines: Sequence[tables.Line], needed: Mapping[str, float], path: Path) -> None:
    """Score, seconds and memory over the number of agents."""
    figure = Figure(figsize=(9.6, 2.9), layout="constrained")
    panels = figure.subplots(1, 3)
    for kind in ("own", "shared"):
        of_kind = [x for x in lines if teams(x.env)[1] == kind or teams(x.env)[0] == 1]
        sizes = [teams(x.env)[0] for x in of_kind]
        scores = [x.mean for x in of_kind if x.mean is not None]
        around = [[s.mean - s.low for s in scores], [s.high - s.mean for s in scores]]
        name = "an adapter each" if kind == "own" else "one adapter"
        panels[0].errorbar(sizes, [s.mean for s in scores], yerr=around, marker="o", capsize=3, label=name)
        panels[1].plot(sizes, [x.seconds for x in of_kind], marker="o", label=name)
        panels[2].plot(sizes, [needed[x.env] for x in of_kind], marker="o", label=name)
    for panel, title in zip(panels, ("held-out score", "seconds of training", "peak MiB, base of 126 MB"), strict=True):
        panel.set(xlabel="agents", title=title, ylim=(0, None), xticks=[1, 2, 4, 8, 12])
    panels[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints the table, keeps the measured memory beside the runs, and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the benchmark")
    parser.add_argument("--plot", type=Path, help="default: population.png in the folder")
    args = parser.parse_args()
    folder = BenchFolder(args.folder)
    all_lines = [x for x in tables.lines(folder.rows(), "untrained") if x.env != tables.EVERYTHING]
    lines = [x for x in all_lines if x.algorithm == "marft" and x.mean is not None]
    kept = args.folder / MEMORY
    if not kept.is_file():
        kept.write_text(json.dumps(memory(folder), indent=1) + "\n", encoding="utf-8")
    needed = json.loads(kept.read_text(encoding="utf-8"))
    print(table(COLUMNS, rows(lines, needed)))
    draw(lines, needed, args.plot or args.folder / "population.png")


if __name__ == "__main__":
    main()
