"""Intervals for accuracies and for paired differences, pass@k and pass^k; numpy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft_envs.errors import ConfigError

Z95 = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""
RESAMPLES = 20_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int
    infrastructure_errors: int | None = None
    """Episodes beside these n that were lost to infrastructure errors; None where that is not known."""
    agreeing_seeds: int = 0
    """Seeds whose outcomes are all the same, so that the bounds are over problems alone; 0: they differ."""

    def __str__(self) -> str:
        lost = "" if self.infrastructure_errors is None else f", infrastructure errors {self.infrastructure_errors}"
        return f"{self.score()}, n = {self.n}{lost}"

    def score(self) -> str:
        """Writes a score: ``0.830 [0.795, 0.860]``, without n; without bounds where there are none."""
        bounds = "" if math.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]{self.seeds}"
        return f"{self.mean:.3f}{bounds}"

    def points(self, unit: str = " points", scale: int = 100, digits: int | None = None) -> str:
        """Writes a difference of scores in percentage points: ``+28.0 points [+25.1, +31.0]``; of others at scale 1."""
        places = digits or (1 if scale > 1 else 3)
        # Differences of equal scores are 0 up to rounding, whose sign is the processor's.
        mean, low, high = (f"{round(scale * x, 9) + 0.0:+.{places}f}" for x in (self.mean, self.low, self.high))
        return f"{mean}{unit}" + ("" if math.isnan(self.low) else f" [{low}, {high}]{self.seeds}")

    @property
    def seeds(self) -> str:
        """Says, where all seeds agree, in what share of seeds that may be so: Clopper and Pearson's, n of n."""
        n = self.agreeing_seeds
        return f" over problems; {n} of {n} seeds [{0.025 ** (1 / n):.3f}, 1.000]" if n else ""


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval of a proportion; holds its level for small n and near 0 and 1."""
    if n == 0:
        return Interval(math.nan, 0.0, 1.0, 0)
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At 0 and n the bound is exactly 0 or 1; rounding must not put it beside.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(p, low, high, n)


def student_cdf(t: float, df: float) -> float:
    """Computes P(T ≤ t) of Student's t with any real number of degrees of freedom.

    With t = √df · tan θ the density is proportional to cos^(df − 1) θ, which Gauss and Legendre's rule integrates.
    """
    angle = math.atan(abs(t) / math.sqrt(df))
    theta = 0.5 * angle * (_NODES + 1.0)
    constant = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    half = constant * 0.5 * angle * float(_WEIGHTS @ np.cos(theta) ** (df - 1))
    return 0.5 + math.copysign(half, t)


def mean(outcomes: Sequence[float]) -> Interval:
    """Averages outcomes: with Wilson's interval if all are 0 or 1, else the bootstrap's."""
    if all(x in (0.0, 1.0) for x in outcomes):
        return wilson(int(sum(outcomes)), len(outcomes))
    return _bootstrap(np.asarray(outcomes, dtype=np.float64))


def paired(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Averages ``after - before`` on the same problems, with the interval of a paired bootstrap.

    Where all differences are the same, it is that of the share of problems in which they may not be, for scores in
    [0, 1]: Wilson's, of none of n. Other numbers have none then.
    """
    a, b = (np.asarray(side, dtype=np.float64) for side in (before, after))
    if len(a) and np.ptp(b - a):
        return _bootstrap(b - a)
    if not len(a) or min(*a, *b) < 0 or max(*a, *b) > 1:
        return Interval(float(b[0] - a[0]) if len(a) else math.nan, math.nan, math.nan, len(a))
    mean, share = float(b[0] - a[0]), wilson(0, len(a)).high
    return Interval(mean, max(mean - share, -1.0), min(mean + share, 1.0), len(a))


def _bootstrap(x: np.ndarray) -> Interval:
    """Bootstraps the mean; a resample is a multinomial draw over the distinct values."""
    values, counts = np.unique(x, return_counts=True)
    draws = np.random.default_rng(0).multinomial(len(x), counts / len(x), size=RESAMPLES)
    low, high = np.quantile(draws @ values / len(x), [0.025, 0.975])
    return Interval(float(x.mean()), float(low), float(high), len(x))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Returns the unbiased estimate of pass@k: the chance that one of k samples drawn from n passes, if c of n pass.

    ``1 - C(n - c, k) / C(n, k)`` (Chen et al. 2021, arXiv 2107.03374, section 2.1), as a product that cannot overflow.

    Args:
        n: Samples of one problem.
        c: Those that passed.
        k: Samples drawn, at most n.

    Raises:
        ConfigError: Unless 0 <= c <= n and 1 <= k <= n.
    """
    _check_draws("pass@k", n, c, k)
    return 1.0 if n - c < k else 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Returns the unbiased estimate of pass^k: the chance that all of k samples drawn from n pass, if c of n pass.

    ``C(c, k) / C(n, k)`` (Yao et al. 2024, arXiv 2406.12045, section 3). Arguments and errors are those of
    :func:`pass_at_k`.
    """
    _check_draws("pass^k", n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def _check_draws(name: str, n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigError(f"{name} needs 0 <= c <= n and 1 <= k <= n; got n = {n}, c = {c}, k = {k}.")
