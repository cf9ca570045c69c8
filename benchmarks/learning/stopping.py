"""When should a team stop talking? A stop with a cost of tokens against fixed lengths, and against the optimum.

::

    python -m benchmarks stopping --optimum
    marft bench run examples/configs/bench_stop.toml --out runs/stop --jobs 2
    python -m benchmarks stopping runs/stop

The optimum is Wald's: dynamic programming over the readings that speak for 1 less those for 0. A word has two tokens,
its digit and its end, and an answer before the last word three: a word and a half. ``saved`` are tokens, against a
fixed talk of the same score.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.runs import points, table
from marft_algos.extras.bench.folder import BenchFolder
from marft_algos.extras.bench.statistics import Outcomes, enough, estimate
from marft_algos.extras.bench.tables import complete

RELIABILITY, LONGEST = 0.8, 8


class Value(NamedTuple):
    """What a rule is worth: score less cost, words said, score."""

    net: float
    words: float
    score: float


def majority(reliability: float, readings: int) -> float:
    """Returns how often the majority of so many readings is right; one of two equals is drawn."""
    q, n = reliability, readings
    chances = ((comb(n, k) * q**k * (1 - q) ** (n - k), 2 * k - n) for k in range(n + 1))
    return sum(p * (1.0 if lead > 0 else 0.5 if lead == 0 else 0.0) for p, lead in chances)


def best_fixed(reliability: float, longest: int, cost: float) -> Value:
    """Returns the best number of words that is fixed beforehand, at a cost a word."""
    return max(Value(majority(reliability, n) - cost * n, n, majority(reliability, n)) for n in range(1, longest + 1))


def needed(reliability: float, score: float) -> tuple[float, float]:
    """Returns the tokens of a fixed talk of this score, and how fast they rise with it.

    A word has two, its digit and its end. Only odd numbers of words are worth having; between two of them a team draws.
    """
    words = range(1, 2 * LONGEST + 2, 2)
    scores = [majority(reliability, n) for n in words]
    if score <= scores[0]:
        return 2.0, 0.0
    after = min(bisect_left(scores, score), len(scores) - 1)
    rise = 4 / (scores[after] - scores[after - 1])
    return 2 * words[after] - rise * (scores[after] - score), rise


def optimum(reliability: float, longest: int, cost: float, answer: float = 0.0) -> Value:
    """Returns the best rule that stops by what it reads, at a cost a word; an early answer has ``answer`` more."""

    @cache
    def value(n: int, lead: int) -> Value:
        odds = (reliability / (1 - reliability)) ** lead
        sure = odds / (1 + odds)
        right, more = max(sure, 1 - sure), answer if n < longest else 0.0
        stop = Value(right - cost * more, more, right)
        if n == longest:
            return stop
        one = sure * reliability + (1 - sure) * (1 - reliability)
        on = [one * a + (1 - one) * b for a, b in zip(value(n + 1, lead + 1), value(n + 1, lead - 1), strict=True)]
        go = Value(on[0] - cost, on[1] + 1, on[2])
        return go if n == 0 or go.net > stop.net + 1e-12 else stop

    return value(0, 0)


Row = Mapping[str, Any]


def finished(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Returns (environment, algorithm) -> the finished runs of talks, by seed."""
    settings: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row["seed"])):
        if row["status"] == "done" and row["problems"][0].startswith("stop/") and row["algorithm"] != "untrained":
            settings.setdefault((row["env"], row["algorithm"]), []).append(row)
    return settings


def matrix(runs: Sequence[Row], name: str) -> Outcomes:
    """Returns a number of every episode, [seeds, episodes]; nan for an infrastructure error."""
    return np.array([run[name] for run in runs], np.float64)


def net(runs: Sequence[Row], cost: float) -> Outcomes:
    """Returns what episodes are worth: their score less the cost of their tokens."""
    return matrix(runs, "outcomes") - cost * matrix(runs, "eval_lengths")


def saved(runs: Sequence[Row], reliability: float) -> Outcomes:
    """Returns a talk's tokens less those of a fixed talk of the runs' score, as a share of these, [seeds, episodes].

    An episode's part in the score is counted at the cost of tokens there (the delta method), so that the mean is the
    share of the mean score, and the spread that of both.
    """
    scores, tokens = matrix(runs, "outcomes"), matrix(runs, "eval_lengths")
    mean = float(np.nanmean(scores))
    fixed, rise = needed(reliability, mean)
    return (tokens - fixed - rise * (scores - mean)) / fixed


def against(ours: Sequence[Row], theirs: Sequence[Row], cost: float) -> list[str]:
    """Writes score, tokens and net of a rival, and the differences to it, paired by seed and episode."""
    mine, other = net(ours, cost), net(theirs, cost)
    tokens = [matrix(runs, "eval_lengths") for runs in (ours, theirs)]
    gaps = [matrix(ours, "outcomes") - matrix(theirs, "outcomes"), mine - other]
    said = [points(estimate(complete(gap), difference=True)) if enough(complete(gap)) else "–" for gap in gaps]
    shares = tokens[0].mean(1) / tokens[1].mean(1) - 1
    spread = f"{100 * shares.mean():+.0f} % ({100 * shares.min():+.0f} to {100 * shares.max():+.0f})"
    return [f"{matrix(theirs, 'outcomes').mean():.3f}", f"{tokens[1].mean():.1f}", f"{other.mean():.3f}", *said, spread]


def main() -> None:
    """Prints what a talk is worth under every rule, or the table of one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder of the benchmark")
    parser.add_argument("--optimum", action="store_true", help="what the best rules are worth, by calculation")
    parser.add_argument("--price", type=float, default=0.01, help="of a token, as the teams were charged")
    parser.add_argument("--reliability", type=float, default=RELIABILITY, help="how often a reading is right")
    args = parser.parse_args()
    if args.optimum or args.folder is None:
        lines = []
        for cost in (0.005, 0.01, 0.02, 0.05):
            both = best_fixed(args.reliability, LONGEST, cost), optimum(args.reliability, LONGEST, cost, answer=0.5)
            share = 1 - 2 * both[1].words / needed(args.reliability, both[1].score)[0]
            lines.append([f"{cost}", *(f"{number:.3f}" for value in both for number in value), f"{100 * share:.0f} %"])
        head = ["cost a word", *(f"{who}: {what}" for who in ("fixed", "stopping") for what in Value._fields), "saved"]
        print(table(head, lines))
        return
    settings = finished(BenchFolder(args.folder).rows())
    for key, runs in settings.items():
        line = (
            f"{'/'.join(key)}: {matrix(runs, 'outcomes').mean():.3f}, {matrix(runs, 'eval_lengths').mean():.1f} tokens"
        )
        gap = complete(saved(runs, args.reliability))
        print(f"{line}; {points(estimate(gap, difference=True))} % of a fixed talk's" if enough(gap) else line)
    lines, firsts = [], dict[tuple[str, ...], tuple[str, list[Row]]]()
    for key, runs in settings.items():  # the first of each set of problems is compared with the others
        name, first = firsts.setdefault(tuple(runs[0]["problems"]), ("/".join(key), runs))
        if first is not runs:
            lines.append([f"{name} less {'/'.join(key)}", *against(first, runs, args.price)])
    if lines:
        head = ["first less rival", "rival's score", "tokens", "net", "score, points", "net, points", "tokens"]
        print(table(head, lines))


if __name__ == "__main__":
    main()
