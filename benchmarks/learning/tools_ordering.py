"""Rewards of tool use are ordered on every task: gold > part of it > silence >= farmers, under all seven teams.

    python -m benchmarks tools_ordering [--data FOLDER] [--bfcl FOLDER] [--step 1] [--teams solo …] [--json]

On every task whose gold changes the state, the team plays the gold calls; the gold up to each write that is not its
last; nothing; and three farmers: up to twelve different reads that work, one of them twelve times, and handing the word
to and fro (the only agent of ``solo`` and the executors of ``dual`` and ``debate`` do that by calls that fail). FOLDER
holds ``tools/tau``; ``--bfcl`` names the folder of the ``bfcl-eval`` package where it is not installed. What is not
there is left out, and the report says so. Every agent's observation is rendered before it acts. ``--step n`` takes
every n-th task.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from marft_envs.errors import MissingExtraError
from marft_envs.families.tools import TEAMS
from marft_envs.families.tools.bfcl import BfclDomain, grading
from marft_envs.families.tools.depot import Depot
from marft_envs.families.tools.tau import TauDomain
from tests.helpers.tools_ordering import Shape


def shapes(team: str, data: Path | None, bfcl: Path | None) -> Iterator[tuple[str, Shape | str]]:
    """Yields what is measured -> a team on it, or why there is none."""
    for split in ("train", "test"):
        yield f"depot {split}", Shape(team, Depot(dual=team == "dual_control"), split)
    for split in ("train", "dev"):
        yield f"tau {split}", "no --data" if data is None else Shape(team, TauDomain(data / "tools" / "tau"), split)
    try:
        yield "bfcl", Shape(team, BfclDomain(package=bfcl), "all", (grading._copied, grading._same))
    except MissingExtraError as error:
        yield "bfcl", str(error)


def swept(shape: Shape, step: int) -> dict[str, object]:
    """Returns how many tasks and parts were compared, and on how many tasks something is out of order."""
    tasks = parts = 0
    wrong: list[str] = []
    for problem in list(shape.task.problems)[::step]:
        compared, disagreements = shape.judged(problem)
        tasks += compared >= 0
        parts += max(compared, 0)
        wrong += [f"{problem.id}: {', '.join(disagreements)}"] if disagreements else []
    return {"tasks": tasks, "parts": parts, "out of order": len(wrong), "first": wrong[:3]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with tools/tau")
    parser.add_argument("--bfcl", type=Path, help="folder of the bfcl-eval package, if it is not installed")
    parser.add_argument("--step", type=int, default=1, help="every n-th task")
    parser.add_argument("--teams", nargs="+", choices=TEAMS, default=list(TEAMS), help="some teams (all)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args()
    tables: dict[str, dict[str, object]] = {}
    for team in args.teams:
        for name, shape in shapes(team, args.data, args.bfcl):
            row = {"left out": shape} if isinstance(shape, str) else swept(shape, args.step)
            tables.setdefault(team, {})[name] = row
            if not args.json:
                print(f"{team:<14}{name:<14}{', '.join(f'{key} {value}' for key, value in row.items())}", flush=True)
    if args.json:
        print(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
