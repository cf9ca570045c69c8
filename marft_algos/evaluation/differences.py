"""Paired differences of a metric over tasks: p-values and intervals that hold at small n, and power; numpy only.

The difference is B - A, of every task the mean over its episodes. Its standard error, and what is Student's t over it:

* **Numbers** (tokens, seconds, cost): that of the mean over tasks.
* **Shares**, where every episode gives 0 or 1: the same with two tasks more, in one of which an episode was won, in the
  other lost (Bonett, J. Educ. Behav. Stat. 37, 2012, with Student's t). So n tasks without any difference have an
  interval, too. Numbers whose differences are all the same have it with the largest number in an episode's place.
* **Percentiles** over episodes: the bootstrap's, which draws tasks. They need five tasks beyond them.

Of shares two exact tests have to agree. That the difference is above 0 takes McNemar's exact test, where every task is
one episode. That B is less than δ worse takes the binomial: a team that loses a share δ of its tasks and wins none has
to lose as few as this in at most ``ALPHA`` of the comparisons. ``python -m benchmarks gate`` simulates them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from marft_algos.runs.intervals import Interval, student_cdf

Values = Sequence[Sequence[float]]
"""Of every task, a number for each of its episodes."""
ALPHA = 0.05
"""Of a one-sided test."""
BEYOND = 5
"""Tasks above a percentile, without which it has no interval."""
_RESAMPLES = 500
_HALVINGS = 60
_NORMAL = NormalDist()
_SHOWN = _NORMAL.inv_cdf(1 - ALPHA)
_POWER = _NORMAL.inv_cdf(0.8)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """B - A of one metric; equal ones are one column under several names."""

    before: float
    after: float
    n: int
    """Tasks."""
    centre: float
    """Of its interval."""
    error: float
    """Standard error; NaN: nothing is known of it."""
    df: int
    correlation: float
    """Of A and B over tasks; NaN: one of them is the same on all."""
    column: int
    """Hash of all numbers."""
    differing: int
    """Tasks in which A and B differ."""
    share: bool = False
    won: int | None = None
    """Tasks of one episode that B alone has solved, as ``lost`` those that A alone has; None: no such metric."""
    lost: int | None = None

    @classmethod
    def of(cls, before: Values, after: Values, percentile: int = 0) -> PairedDifference:
        """Compares two teams on the same tasks, in order: their means, or a percentile of their episodes."""
        if percentile:
            return cls._of_percentiles(before, after, percentile)
        a, b = (np.array([math.fsum(episodes) / len(episodes) for episodes in side]) for side in (before, after))
        d, every = b - a, np.array([x for side in (before, after) for episodes in side for x in episodes])
        share = bool(np.isin(every, (0.0, 1.0)).all())
        span = 2 * len(d) / len(every) if share else float(np.abs(every).max())
        single = share and all(len(episodes) == 1 for side in (before, after) for episodes in side)
        if share or len(d) < 2 or np.ptp(d) <= 1e-9 * span:
            d = np.append(d, (span, -span))
        error = math.sqrt(d.var(ddof=1) / len(d)) or math.nan
        related = float(np.corrcoef(a, b)[0, 1]) if min(np.ptp(a), np.ptp(b)) > 0 else math.nan
        signs = (int((b > a).sum()), int((b < a).sum())) if single else (None, None)
        of = float(a.mean()), float(b.mean()), len(a), float(d.mean()), error, len(d) - 1, related
        return cls(*of, *_column(before, after), share, *signs)

    @classmethod
    def _of_percentiles(cls, before: Values, after: Values, percentile: int) -> PairedDifference:
        n, found = len(before), []
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), _RESAMPLES)
        for side in (before, after):
            episodes, task = np.concatenate(side), np.repeat(np.arange(n), [len(each) for each in side])
            order = np.argsort(episodes)
            weights = drawn[:, task[order]].cumsum(1)
            at = (weights >= percentile / 100 * weights[:, -1:]).argmax(1)
            found.append((float(np.percentile(episodes, percentile)), episodes[order][at]))
        (old, old_drawn), (new, new_drawn) = found
        known = n * (100 - percentile) >= 100 * BEYOND
        error = (float((new_drawn - old_drawn).std()) if known else 0.0) or math.nan
        return cls(old, new, n, new - old, error, max(n - 1, 1), math.nan, *_column(before, after, percentile))

    @property
    def mean(self) -> float:
        """B - A."""
        return self.after - self.before

    def reversed(self) -> PairedDifference:
        """Returns A - B."""
        return replace(self, before=self.after, after=self.before, centre=-self.centre, won=self.lost, lost=self.won)

    def p_above(self, bound: float) -> float:
        """Returns the p-value of a difference of ``bound`` at most: small where it is shown to be above."""
        if math.isnan(self.error):
            return 1.0
        p = student_cdf((bound - self.centre) / self.error, self.df)
        if self.share and bound < 0:
            return max(p, binomial_cdf(math.floor(-self.mean * self.n + 1e-6), self.n, min(-bound, 1.0)))
        if self.won is not None and self.lost is not None and bound >= 0:
            return max(p, binomial_cdf(self.lost, self.won + self.lost, 0.5))
        return p

    def lower(self, alpha: float = ALPHA) -> float:
        """Returns the largest bound that the difference is shown to be above, one-sided; NaN: none is."""
        low, high = self.centre - (2.0 if self.share else 1e4 * self.error), self.centre
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p_above(middle) <= alpha else (low, middle)
        return max(low, -1.0) if self.share else low

    def interval(self, level: float = 0.95) -> Interval:
        """Returns it with its two-sided interval."""
        low, high = (side.lower((1 - level) / 2) for side in (self, self.reversed()))
        return Interval(self.mean, low, -high, self.n)


def resolution(error: float) -> float:
    """Returns the difference that is shown in 80 % of the comparisons with this standard error."""
    return (_SHOWN + _POWER) * error


def passing(margin: float, error: float) -> float:
    """Returns how often a team that is equal is shown to be less than ``margin`` worse, at this standard error."""
    return _NORMAL.cdf(margin / error - _SHOWN)


def holm(p_values: Mapping[PairedDifference, float]) -> dict[PairedDifference, float]:
    """Adjusts p-values of distinct columns for their number (Holm, 1979)."""
    adjusted, largest = dict[PairedDifference, float](), 0.0
    for rank, (column, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(p_values) - rank)))
        adjusted[column] = largest
    return adjusted


def _column(before: Values, after: Values, percentile: int = 0) -> tuple[int, int]:
    pairs = [(tuple(a), tuple(b)) for a, b in zip(before, after, strict=True)]
    return hash((*pairs, percentile)), sum(a != b for a, b in pairs)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Returns P(X ≤ k) of n trials with probability p."""
    if k < 0 or p >= 1:
        return float(k >= n)
    logs = (
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p)
        for i in range(min(k, n) + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))
