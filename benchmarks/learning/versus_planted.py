"""``marft versus`` on five planted cases: is the verdict right where the answer is known?

::

    python -m benchmarks versus_planted --seeds 0 1 2 --out runs/versus_planted   # goes on where it was stopped
    python -m benchmarks versus_planted --out runs/versus_planted --write   # the table, and results/versus_planted.json

Trials that stand in that file are not run again.

The cases are those of ``examples/planted.py``. Each number is a whole trial: sweeps, three seeds of the team, of the
team without D and of the single agent, on seeds that no other trial has. What counts as right stands in ``CASES``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runs import table
from marft_algos.extras.bench.versus import report, run
from marft_algos.extras.bench.versus.trial import Trial
from marft_algos.jsonl import drop_cut_line
from marft_algos.runs.disk import write_whole
from marft_algos.runs.intervals import wilson

ENV = "examples.planted:planted-v0"
SETTINGS: Mapping[str, Any] = {
    "preset": "toy",
    "episodes_per_iteration": 64,
    "eval_every": 0,
    "save_every": 0,
    "record_every": 0,
    "record_episodes": 0,
    "eval_episodes": 48,  # of two to four different states
    "warm_start": 16,  # without demonstrations, one run in ten says one digit for ever
}
TOKEN_BUDGET = 4000
"""Of ``dear``, 32 iterations of the team and two of the single agent, whose tokens are then 1.03 times the team's."""
STORED = Path(__file__).parents[1] / "results" / "versus_planted.json"
SWEPT_APART = 500
"""Between a trial's seeds and those of its sweep; a thousand is between two trials."""


@dataclass(frozen=True)
class Case:
    """A trial whose verdict is known."""

    team_needed: str
    dependency: str
    rival: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 2e-3
    """One, to be cheap: the sweep chooses among algorithms."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Settings of both algorithms."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of every run than ``SETTINGS``."""

    def trial(self, name: str, number: int) -> Trial:
        """Makes the trial with this number."""
        first = 1000 * number
        given = {
            "env_kwargs": {"case": name},
            "seeds": tuple(range(first, first + 3)),
            "sweep_seeds": (first + SWEPT_APART,),
            "team_algorithms": ("marft",),
            "algorithms": ("marft", "reinforce"),  # which all learn these tasks: what is tested is the verdict
            "lr": (self.lr,),
            "margin": 0.1,
            "algorithm": {key: dict(self.algorithm) for key in ("marft", "reinforce")},
            "settings": {**SETTINGS, **self.settings},
        }
        return Trial(ENV, TOKEN_BUDGET, **{**given, **self.rival})


CASES: Mapping[str, Case] = {
    "spare": Case("no team needed", "D does not matter", {"single_team": ("solver_0",)}),
    "halves": Case("team needed", "D does not matter", {"single_team": ("planner_0",)}),
    "relay": Case("team needed", "D matters", {"single_team": ("solver_0",)}),
    "shown": Case("no team needed", "D matters", {"single_team": ("planner_0",)}),
    "dear": Case(
        "too costly",
        "D does not matter",
        {"single": ENV, "single_kwargs": {"solo": True}},
        lr=1e-3,
        # Adam's first steps are the largest, and two would do.
        algorithm={"lr_warmup": 32},
        # Of 32 demonstrations an iteration, the last few decide how strong the habit is: 6 of 60 teams kept it.
        settings={"episodes_per_iteration": 32, "max_new_tokens": 68, "warm_episodes": 256},
    ),
}


def one(name: str, number: int, root: Path) -> dict[str, Any]:
    """Runs one trial, or goes on with it; returns its row. Its folder is removed, the verdict stays."""
    case, folder, started = CASES[name], root / f"{name}-{number}", time.monotonic()
    trial = case.trial(name, number)
    record = run.run(trial, folder)
    found = report.write(trial, folder, f"python -m benchmarks versus_planted --cases {name} --seeds {number}")
    row = {
        "case": name,
        "number": number,
        "verdict": found.team_needed,
        "dependency": found.dependency,
        "right": found.team_needed == case.team_needed,
        "dependency_right": found.dependency == case.dependency,
        "chosen": record["chosen"],
        "seconds": time.monotonic() - started,
        **{key: asdict(found)[key] for key in ("comparisons", "retrained", "after", "sheets")},
    }
    shutil.rmtree(folder)
    return row


def summary(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Makes the table: how many verdicts were right, and what the wrong ones said."""
    out = []
    for name, case in CASES.items():
        mine = [r for r in rows if r["case"] == name]
        for key, wanted, right in (
            ("verdict", case.team_needed, "right"),
            ("dependency", case.dependency, "dependency_right"),
        ):
            hits, n = sum(r[right] for r in mine), len(mine)
            share = wilson(hits, n) if n else None
            wrong = ", ".join(f"{r['number']}: {r[key]}" for r in mine if not r[right])
            bounds = f"[{share.low:.2f}, {share.high:.2f}]" if share else "–"
            out.append([name, wanted, f"{hits} of {n}", bounds, wrong])
    return out


def main() -> None:
    """Runs trials that are missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/versus_planted"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/versus_planted.json")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.jsonl"
    with file.open("ab+") as lines:
        rows = [json.loads(line) for line in drop_cut_line(lines).splitlines()]
    if STORED.is_file():
        here = {(r["case"], r["number"]) for r in rows}
        rows += [r for r in json.loads(STORED.read_text(encoding="utf-8")) if (r["case"], r["number"]) not in here]
    for number in args.seeds:
        for name in args.cases:
            if any((r["case"], r["number"]) == (name, number) for r in rows):
                continue
            rows.append(one(name, number, args.out))
            with file.open("ab") as lines:
                lines.write(json.dumps(rows[-1]).encode() + b"\n")
    rows.sort(key=lambda r: (list(CASES).index(r["case"]), r["number"]))
    print(table(["case", "known", "right", "95 %", "wrong: trial, verdict"], summary(rows)))
    if args.write:
        write_whole(STORED, json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    main()
