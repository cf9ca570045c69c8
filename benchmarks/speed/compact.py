"""What agents read of each other, as raw text and as records, on the same episodes.

    python -m benchmarks compact [--tasks 200] [--split test] [--json]

The scripted oracle plays Depot's tasks, spread evenly over all levels, with compact messages. Of everything that an
agent was passed on from others (their actions, and what came of them; its own turns, the policy and the tools apart)
words and marks are counted in both forms, and characters in a second pass. The oracle writes no thoughts, makes no
mistakes and reads nothing twice; what records save beyond that is not in these figures.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable

from marft_envs.families.tools import CompactMessages, make, oracle
from marft_envs.families.tools.compact import pieces

TEAMS = ("trio", "router", "supervisor")


def counted(team: str, split: str, tasks: int, count: Callable[[str], int]) -> dict[str, float]:
    """Returns what an episode passes on between agents, in both forms, on average; all episodes must score 1."""
    env = CompactMessages(make(team, split=split, limit=tasks), count)
    sums = Counter[str]()
    panel = env.unwrapped.task.eval_panel(tasks)
    for task_id in panel:
        episode = oracle.play(env, 0, {"task_id": task_id})
        assert episode.success, task_id
        sums.update({form: episode.metrics[f"peer_tokens_{form}"] for form in ("raw", "compact")})
    return {form: total / len(panel) for form, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="tasks per team")
    parser.add_argument("--split", default="test", help="train or test")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args()
    units: dict[str, Callable[[str], int]] = {"words and marks": pieces, "characters": len}
    counts = {
        team: {unit: counted(team, args.split, args.tasks, count) for unit, count in units.items()} for team in TEAMS
    }
    if args.json:
        print(json.dumps(counts, indent=1))
        return
    print(f"{args.tasks} tasks of depot {args.split}; per episode, passed on from others")
    print(f"{'team':<14}{'unit':<18}{'raw':>10}{'compact':>10}{'compact/raw':>14}")
    for team, rows in counts.items():
        for unit, row in rows.items():
            print(f"{team:<14}{unit:<18}{row['raw']:>10.0f}{row['compact']:>10.0f}{row['compact'] / row['raw']:>14.2f}")


if __name__ == "__main__":
    main()
