"""Estimates chances of success by playing branches, with intervals that hold although sampling stops early.

A chance is looked at ``LOOKS`` times at most, after numbers of episodes that the half-width alone decides. Each look
has Clopper and Pearson's exact interval at level 1 − ``ALPHA`` / ``LOOKS``, so the intervals of all looks cover the
chance together with probability 1 − ``ALPHA`` or more (Bonferroni), and so does the one at which sampling stops,
whatever the rule that stops it. Here it stops as soon as the interval is as narrow as was asked for: a chance near 0 or
1 costs about a fifth of the episodes that one near ½ costs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
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
_GRID = 1 << 40
UNKNOWN = Interval(math.nan, 0.0, 1.0, 0)
"""A chance that nobody has looked at: the budget was spent before."""


@lru_cache(maxsize=4096)
def exact(successes: int, n: int, alpha: float = ALPHA / LOOKS) -> Interval:
    """Returns Clopper and Pearson's interval of a chance; it covers with probability 1 − alpha or more."""
    if not n:
        return UNKNOWN
    return Interval(successes / n, _low(successes, n, alpha), 1.0 - _low(n - successes, n, alpha), n)


def _low(successes: int, n: int, alpha: float) -> float:
    """Returns the chance at which so many successes or more have probability alpha / 2."""
    chances, tail = range(_GRID * successes // n), lambda i: 1 - binomial_cdf(successes - 1, n, i / _GRID)
    return bisect_left(chances, alpha / 2, key=tail) / _GRID


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


@dataclass(eq=False, slots=True)
class Query:
    """Asks for the chance that a branch ends in success, and keeps what is known of it."""

    branch: Branch
    cost: int = 0
    """Tokens that a play of it is expected to sample."""
    chance: Interval = UNKNOWN
    wins: int = 0
    played: int = 0


@dataclass
class Chances:
    """Plays branches until the chance of success of each is known well enough."""

    replayer: Replayer
    limits: ErrorLimits
    width: float
    """Half-width of the intervals."""
    budget: float | None = None
    """Tokens that may be sampled; None: as many as it takes."""
    tokens: int = 0
    """Sampled so far, as the engines count them."""
    read: int = 0
    """Of the prompts that they were sampled after."""
    episodes: int = 0
    spent: bool = False
    """Whether the budget ended it before all chances were known."""
    _drawn: Counter[int] = field(default_factory=Counter)

    def find(self, queries: Iterable[Query]) -> None:
        """Finds the chances asked for. Every play draws samples of its own, which no other play shares.

        Raises:
            InfrastructureError: Too many of the replays were lost.
        """
        wanted = list(queries)
        for look in looks(self.width):
            wanted = [query for query in wanted if half_width(query.chance) > self.width]
            jobs = [query for query in wanted for _ in range(look - query.played)]
            if jobs and self.budget and self.tokens + sum(query.cost for query in jobs) > self.budget:
                self.spent = True
                break
            for query, t in zip(jobs, self._play([query.branch for query in jobs]), strict=True):
                if t is not None:
                    query.played, query.wins = query.played + 1, query.wins + (t.success is True)
            for query in wanted:
                query.chance = exact(query.wins, query.played)

    def _play(self, branches: Sequence[Branch]) -> list[Trajectory | None]:
        drawn = []
        for branch in branches:
            self._drawn[branch.episode] += 1
            drawn.append(replace(branch, sample=self._drawn[branch.episode]))
        played = self.replayer.play(drawn, EVALUATION)
        check([], self.limits, "a blame", self.replayer.branches, self.replayer.lost)
        self.episodes += len(played)
        for t in (t for episode in played if episode is not None for t in episode.transitions):
            read, tokens = t.reply.usage or (len(t.request.prompt_ids), len(t.reply.action_ids))
            self.read, self.tokens = self.read + read, self.tokens + tokens
        return played
