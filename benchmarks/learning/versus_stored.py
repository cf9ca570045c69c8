"""What ``marft versus`` would say at equal sampled tokens, from a benchmark that has been run: teams, and `single`.

::

    mkdir -p runs && tar -xf benchmarks/results/core.tar.xz -C runs
    python -m benchmarks versus_stored runs/core math-dual-v0

The team's algorithm is the one that its sweep scored best among those named, as the single agent's was. Only sampled
tokens were a budget there, and no team was trained without D: the other halves of a verdict are not in such a folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.runs import table
from marft_algos.extras.bench import sweep, tables
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.versus import verdict
from marft_algos.extras.bench.versus.trial import SINGLE_AGENTS
from marft_envs.errors import ConfigError


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a benchmark's folder")
    parser.add_argument("env", help="the team's environment")
    parser.add_argument("--algorithms", nargs="+", default=list(SINGLE_AGENTS))
    parser.add_argument("--margin", type=float, default=0.05)
    args = parser.parse_args()
    folder = BenchFolder(args.folder)
    rows = [r for r in folder.rows() if r["env"] == args.env and r["status"] == "done"]
    single = [r for r in rows if r["algorithm"].startswith("single")]
    if not single:
        raise ConfigError(
            f"'{folder.root}' has no finished row 'single' in '{args.env}'. Put \"single\" into controls."
        )
    tried = sweep.tried(folder.rows("sweep"))
    scores = {
        name: max((means for means in by_rate.values() if means is not None), default=(-1.0, 0.0))
        for (name, env), by_rate in tried.items()
        if env == args.env and name in args.algorithms
    }
    body = []
    for name in sorted(scores, key=lambda name: scores[name], reverse=True):
        team = [r for r in rows if r["algorithm"] == name and not r["credit"]]
        found = verdict.compare(tables.gaps(team, single) if team else None, args.margin)
        swept = f"{100 * scores[name][0]:.1f} ({100 * scores[name][1]:.1f})"
        body.append([name, swept, tables.points(found.difference, signed=True), found.word])
    print(table(["team trained by", "in the sweep", f"less {single[0]['algorithm']}", "at equal sampled tokens"], body))
    print(f"The sweep's choice for the team is the first line; {len(single)} seeds, δ = {100 * args.margin:g} points.")


if __name__ == "__main__":
    main()
