"""Estimates chances of success by playing branches, with intervals that hold although sampling stops early.

A chance is looked at ``LOOKS`` times at most, after numbers of episodes that the half-width alone decides. Each look
has Clopper and Pearson's exact interval at level 1 − ``ALPHA`` / ``LOOKS``, so the intervals of all looks cover the
chance together with probability 1 − ``ALPHA`` or more (Bonferroni), and so does the one at which sampling stops,
whatever the rule that stops it. Here it stops as soon as the interval is as narrow as was asked for: a chance near 0 or
1 costs about a fifth of the episodes that one near ½ costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from marft_algos.credit.branches import Branch
from marft_algos.evaluation.differences import binomial_cdf
from marft_algos.rollout.episodes import ErrorLimits, check
from marft_algos.rollout.replay import Replayer
from marft_algos.runs.intervals import Interval
from marft_algos.seeds import EVALUATION
from marft_algos.types import Trajectory

ALPHA = 0.05
LOOKS = 3
UNKNOWN = Interval(math.nan, 0.0, 1.0, 0)
"""A chance that nobody has looked at: the budget was spent before."""


@lru_cache(maxsize=4096)
def exact(successes: int, n: int, alpha: float = ALPHA / LOOKS) -> Interval:
    """Returns Clopper and Pearson's interval of a chance; it covers with probability 1 − alpha or more."""
    if not n:
        return UNKNOWN
    return Interval(successes / n, _low(successes, n, alpha), 1.0 - _low(n - successes, n, alpha), n)


def _low(successes: int, n: int, alpha: float) -> float:
    """Returns the chance at which so many successes or more have probability alpha / 2, by bisection."""
    low, high = 0.0, successes / n
    for _ in range(40 * (successes > 0)):
        p = (low + high) / 2
        low, high = (p, high) if 1 - binomial_cdf(successes - 1, n, p) < alpha / 2 else (low, p)
    return low


def half_width(interval: Interval) -> float:
    """Returns half of an interval's length."""
    return (interval.high - interval.low) / 2


@lru_cache(maxsize=16)
def looks(width: float) -> tuple[int, ...]:
    """Returns the numbers of episodes after which a chance is looked at.

    The first is the smallest that is enough for a chance of 0, the last the smallest that is enough for any.
    """
    first = next(n for n in range(1, 1 << 20) if half_width(exact(0, n)) <= width)
    last = next(n for n in range(first, 1 << 20) if half_width(exact(n // 2, n)) <= width)
    return first, round(math.sqrt(first * last)), last


def difference(a: Interval, b: Interval) -> Interval:
    """Returns a − b of independent estimates, with the interval of Newcombe's method 10 (Stat. Med. 17, 1998)."""
    mean = a.mean - b.mean
    low = mean - math.hypot(a.mean - a.low, b.high - b.mean)
    high = mean + math.hypot(a.high - a.mean, b.mean - b.low)
    return Interval(mean, max(low, -1.0), min(high, 1.0), min(a.n, b.n))


@dataclass(frozen=True, slots=True)
class Query:
    """Asks for the chance that a branch ends in success."""

    branch: Branch
    start: int
    """History index of its first turn."""
    cost: int
    """Tokens that a play of it is expected to sample."""


@dataclass
class Chances:
    """Plays branches until the chance of success of each is known well enough."""

    replayer: Replayer
    limits: ErrorLimits
    width: float
    """Half-width of the intervals."""
    budget: int | None = None
    """Tokens that may be sampled; None: as many as it takes."""
    tokens: int = 0
    """Sampled so far, as the engines count them."""
    read: int = 0
    """Of the prompts that they were sampled after."""
    episodes: int = 0
    spent: bool = False
    """Whether the budget ended it before all chances were known."""
    _drawn: dict[int, int] = field(default_factory=dict)

    def of(self, questions: Sequence[Query]) -> list[Interval]:
        """Returns the chance that each asks for; where nothing is sampled after its start, it is known after one look.

        Every play draws samples of its own, which no other play shares.

        Raises:
            InfrastructureError: Too many of the replays were lost.
        """
        wins, played, sampled = ([0] * len(questions) for _ in range(3))
        known, wanted = [UNKNOWN] * len(questions), list(range(len(questions)))
        for look in looks(self.width):
            jobs = [i for i in wanted for _ in range(look - played[i])]
            if self.budget is not None and self.tokens + sum(questions[i].cost for i in jobs) > self.budget:
                self.spent = self.spent or bool(jobs)
                break
            for i, t in zip(jobs, self._play([questions[i] for i in jobs]), strict=True):
                if t is not None:
                    played[i] += 1
                    wins[i] += t.success is True
                    sampled[i] += self._count(questions[i], t)
            for i in wanted:
                known[i] = exact(wins[i], played[i])
                if played[i] and not sampled[i]:
                    known[i] = Interval(known[i].mean, known[i].mean, known[i].mean, played[i])
            wanted = [i for i in wanted if half_width(known[i]) > self.width]
        return known

    def _play(self, questions: Sequence[Query]) -> list[Trajectory | None]:
        branches = []
        for branch in (question.branch for question in questions):
            sample = self._drawn[branch.episode] = self._drawn.get(branch.episode, 0) + 1
            branches.append(replace(branch, sample=sample))
        played = self.replayer.play(branches, EVALUATION)
        check([], self.limits, "a blame", self.replayer.branches, self.replayer.lost)
        self.episodes += len(played)
        return played

    def _count(self, question: Query, t: Trajectory) -> bool:
        """Counts the tokens of a play; returns whether anything was sampled in it."""
        given = question.branch.texts
        own = [turn for turn in t.episode.turns[question.start :] if not isinstance(given.get(turn.index), str)]
        for extras in (turn.extras or {} for turn in own):
            self.tokens += extras.get("tokens", 0)
            self.read += extras.get("prompt_tokens", 0)
        return bool(own)
