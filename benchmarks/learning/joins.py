"""Which joins a tree of readers is shown and asked, by the digits of their numbers, and what each kind costs it.

::

    python -m benchmarks joins --ledgers 236    # as many as SmolLM2's tree was shown (docs/should-i-train-a-team.md)

The expert reads ledgers of eight windows of the training split. A tree solves a ledger if every page and every join is
right; if that hangs on the digits alone,

    score = mean over ledgers of  page^pages · one^n1 · mixed^n2 · two^n3

with page from the chain, which adds small payments alone (.960 of ledgers of 16 pages), one and two from the joins of a
pilot (.98 and .26), and mixed, joins of a number of one digit and one of two, as the tree's stored score says.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

import marft_envs
from benchmarks.runs import table
from marft_envs.records import experts

LENGTH, CHAIN, STORED = 8, 0.960, 0.087
ONE, TWO = 0.98, 0.26
KINDS = {"1 1": "one digit each", "1 2": "one digit and two", "2 2": "two digits each"}
"""Digits of both numbers, the shorter one first -> what a row is called."""


def joined(text: str) -> str:
    """Returns the digits of the two numbers that a reply adds: ``12-3=9. …`` has ``1 2``."""
    first, second = (len(number.lstrip("+-")) for number in re.findall(r"[+-]?\d+", text)[:2])
    return " ".join(map(str, sorted((first, second))))


def counted(ledgers: int, split: str) -> list[Counter[str]]:
    """Returns the joins of each ledger, by kind."""
    env = marft_envs.make("docs-tree-v0", kinds="total", level=0, lengths=LENGTH, split=split)
    played = (experts.play(env, seed).turns for seed in range(ledgers))
    return [Counter(joined(turn.text) for turn in turns if turn.role == "reducer") for turns in played]


def score(joins: Sequence[Counter[str]], mixed: float, two: float = TWO) -> float:
    """Returns the share of ledgers that a tree solves whose joins of the last two kinds are right so often."""
    rates = np.array([ONE, mixed, two])
    return CHAIN * float(np.mean([np.prod(rates ** [each[kind] for kind in KINDS]) for each in joins]))


def implied(joins: Sequence[Counter[str]]) -> float:
    """Returns how often mixed joins are right if the tree has its stored score: found by halving."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if score(joins, middle) < STORED else (low, middle)
    return low


def main() -> int:
    """Prints how often each kind is shown, and what is implied by the stored score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=236, help="of the training split, and as many of the test split")
    args = parser.parse_args()
    shown, asked = (counted(args.ledgers, split) for split in ("train", "test"))
    total = sum(shown, Counter[str]())
    rows = [[name, str(total[kind]), f"{total[kind] / total.total():.3f}"] for kind, name in KINDS.items()]
    print(table(["numbers joined", "shown", "share"], [*rows, ["all", str(total.total()), ""]]))
    mixed = implied(asked)
    print(f"\nmixed joins right, of a tree that solves {STORED} of test ledgers: {mixed:.2f}")
    for name, rates in (("two-digit", (mixed, ONE)), ("mixed", (ONE, TWO)), ("both", (ONE, ONE))):
        print(f"score if {name} joins were right as often as those of one digit: {score(asked, *rates):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
