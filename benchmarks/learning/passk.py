r"""pass@k of trained teams, and of two algorithms' difference, over seeds and problems.

::

    marft eval --engines runs/passes/runs/KEY --env math-dual-v0 --env-kwargs 'levels=[0]' \
        --samples 64 --episodes 150 --jobs 256 --out evals/m4-0
    python -m benchmarks passk evals/* --store benchmarks/results/passk.json
    python -m benchmarks passk benchmarks/results/passk.json

Each folder is an evaluation of one run, named ROW-SEED, on the same problems with as many samples each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.runs import points, table
from marft_algos.evaluation.resumable import powers
from marft_algos.extras.bench.statistics import enough, estimate
from marft_algos.runs.intervals import pass_at_k
from marft_envs.errors import ConfigError, check_known, reading
from marft_envs.records.trajectory import read

Counts = Mapping[str, Sequence[int]]
"""Evaluation -> how many samples of each problem were right."""


def counted(folders: Sequence[Path]) -> tuple[int, Counts]:
    """Returns samples a problem, and the counts of each evaluation.

    Raises:
        ConfigError: A folder is none of an evaluation; one is of other problems, or has not all samples of them.
    """
    found: dict[str, dict[str, int]] = {}
    samples = set[int]()
    for folder in folders:
        played, right = Counter[str](), Counter[str]()
        with reading(f"Cannot read '{folder}'", "Expected a file of counts, or folders of evaluations (marft eval)."):
            for episode in read(folder / "episodes.jsonl"):
                key = f"{episode.seed} {episode.task_id}"
                played[key] += 1
                right[key] += bool(episode.success)
        samples |= set(played.values())
        found[folder.name] = {key: right[key] for key in sorted(played)}
    if len(samples) != 1 or len({tuple(one) for one in found.values()}) != 1:
        raise ConfigError(
            "The evaluations differ in problems or samples. Expected the same, and no infrastructure errors."
        )
    return samples.pop(), {name: [*one.values()] for name, one in found.items()}


def rows(samples: int, counts: Counts, baseline: str) -> list[list[str]]:
    """Returns the table, its head first: pass@k of each row in points, and the difference to the baseline's seeds.

    A row that was played once, such as the untrained team, is set against each seed of the baseline.

    Raises:
        ConfigError: No evaluation is of the baseline.
    """
    seeds: defaultdict[str, dict[str, Sequence[int]]] = defaultdict(dict)
    for name in sorted(counts):
        row, _, seed = name.partition("-")
        seeds[row][seed] = counts[name]
    check_known([baseline], seeds, "No evaluation is of the row '{}'.")
    others = [row for row in seeds if row != baseline]
    paired = [row for row in others if len(seeds[row]) == 1 or seeds[row].keys() == seeds[baseline].keys()]
    body = []
    for k in powers(samples):
        shares = {
            row: np.array([[pass_at_k(samples, c, k) for c in one] for one in runs.values()])
            for row, runs in seeds.items()
        }
        gaps = [[shares[row] - shares[baseline]] for row in paired]
        told = [f"{share.mean():.3f}" for share in shares.values()]
        body.append([str(k), *told, *(points(estimate(g, difference=True)) if enough(g) else "–" for g in gaps)])
    return [["k", *seeds, *(f"{row} less {baseline}" for row in paired)], *body]


def main() -> int:
    """Prints the table; with ``--store``, keeps the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", type=Path, nargs="+", help="folders, or one file of stored counts")
    parser.add_argument("--baseline", default="r4", help="row that differences are to")
    parser.add_argument("--store", type=Path, help="file for the counts")
    args = parser.parse_args()
    if args.evaluations[0].is_file():
        stored = json.loads(args.evaluations[0].read_text(encoding="utf-8"))
        samples, counts = stored["samples"], stored["right"]
    else:
        samples, counts = counted(args.evaluations)
    if args.store:
        args.store.write_text(json.dumps({"samples": samples, "right": counts}) + "\n", encoding="utf-8")
    head, *body = rows(samples, counts, args.baseline)
    print(table(head, body))
    return 0


if __name__ == "__main__":
    sys.exit(main())
