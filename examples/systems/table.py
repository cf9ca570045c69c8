"""What full runs of the systems have shown: a table of kept results, made by a command.

python examples/systems/table.py                         # prints it, from benchmarks/results/systems.json
python examples/systems/table.py runs/systems --write    # takes in the full runs of a folder, and puts it into the page

A claim counts as reproduced if all its tests hold in every seed. A test compares a metric of the trained team, in the
last evaluation, with the untrained team, one agent, the team with the mechanism removed, or a number.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.runs import table
from examples.systems.run import HERE, system
from examples.systems.system import System, Test

RESULTS = HERE.parents[1] / "benchmarks/results/systems.json"
PAGE = HERE.parents[1] / "docs/systems.md"
MARKS = ("<!-- full runs: python examples/systems/table.py --write -->", "<!-- end of full runs -->")
HEADER = ("system, claim", "decided by", "untrained", "team", "one agent", "mechanism removed", "reproduced")
KEY = ("system", "seed", "who")


def merged(kept: Sequence[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Returns kept rows and the full runs of a folder, which replace those of the same system, seed and team."""
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if not row["iterations"]]
    now = {tuple(row[key] for key in KEY): dict(row) for row in (*kept, *rows)}
    return [now[key] for key in sorted(now)]


def stale(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the runs whose system has other settings now."""
    return [
        f"{row['system']} {row['who']} {row['seed']}"
        for row in rows
        if system(row["system"]).digest(row["who"]) != row["settings"]
    ]


def line(one: System, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a system's row: its first test's metric of every team, seed by seed, and the verdict."""
    found = {(row["who"], row["seed"]): row for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    metric = one.tests[0].metric

    def metrics(who: str, when: str = "after") -> str:
        rows = [found.get((who, s), {}).get(when, {}) for s in seeds]
        values = [row[metric] for row in rows if metric in row]  # one agent has no words between agents to count
        return ", ".join(f"{value:.2f}" for value in values) or "–"

    imitated = metrics("team", "imitated")
    asked = [seed for seed in seeds if all(_other(test, found, seed) is not None for test in one.tests)]
    held = [all(_holds(test, found, seed) for test in one.tests) for seed in asked]
    verdict = "yes" if all(held) else f"in {sum(held)} of {len(held)} seeds" if any(held) else "no"
    verdict = verdict if held else "cannot be asked"
    alone = metrics("single", "untrained").partition(",")[0]
    parts = [metrics("team", "untrained").partition(",")[0], *([] if imitated == "–" else [f"imitated {imitated}"])]
    untrained = "; ".join([*parts, *([] if alone == "–" else [f"one agent {alone}"])])
    decided = "; ".join(map(str, one.tests))
    trained = [metrics(who) for who in ("team", "single", "control")]
    return [f"**{one.title}**: {one.claim}", decided, untrained, *trained, verdict]


def _other(test: Test, found: Mapping[tuple[str, int], Mapping[str, Any]], seed: int) -> Mapping[str, float] | None:
    """Returns the metrics of the other side of a test; None where it was not run, or has nothing that could be less."""
    team, rival = found["team", seed], found.get((test.than, seed), {})
    other = {} if test.than == "zero" else team.get(test.than) or rival.get("after")
    return None if test.less and other and not other[test.metric] else other


def _holds(test: Test, found: Mapping[tuple[str, int], Mapping[str, Any]], seed: int) -> bool:
    return test.holds(found["team", seed]["after"], _other(test, found, seed) or {})


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Makes the table."""
    names = sorted({row["system"] for row in rows})
    return table(HEADER, [line(system(name), [row for row in rows if row["system"] == name]) for name in names])


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page with the table between its marks."""
    head, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    return f"{head}{MARKS[0]}\n{text(rows)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def main() -> None:
    """Prints the table, or writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="where run.py has put its results: its --out")
    parser.add_argument("--write", action="store_true", help="keep what was taken in, and put the table into the page")
    args = parser.parse_args()
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    for folder in args.folders:
        rows = merged(rows, folder)
    if args.write:
        RESULTS.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
        PAGE.write_text(page(rows), encoding="utf-8")
    print(text(rows))
    for name in stale(rows):
        print(f"stale: {name} was run with other settings; run it again")


if __name__ == "__main__":
    main()
