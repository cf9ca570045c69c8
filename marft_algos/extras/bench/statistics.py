"""Intervals for benchmarks in which several seeds are scored on the same problems; numpy only.

A setting of a benchmark has outcomes Y [S, P]: that of seed s on problem p, problems in the same order for every seed
and every algorithm. Seeds and problems are both samples, and they are crossed:

    Y[s, p] = μ + seed[s] + problem[p] + rest[s, p]
    Var(mean) = σ²_seed / S + σ²_problem / P + σ²_rest / (S P)

The two-level bootstrap resamples seeds, then problems (jointly for all seeds). With five seeds its percentiles are too
near: a resample of S seeds has (S − 1)/S of their variance, and the normal's tails stand in for Student's. So its
deviations are stretched to the width that the analysis of variance gives:

    V  = [max(MS_seed, MS_rest) + max(MS_problem, MS_rest) − MS_rest] / (S P)
    df = Satterthwaite's, from S − 1, P − 1 and (S − 1)(P − 1)
    interval = mean + (t_df · √V) / (z · sd of the resamples) · (percentiles of the resamples − their mean)

(Owen, "The pigeonhole bootstrap", 2007, on crossed resampling; Satterthwaite, 1946, on the degrees of freedom.)
``docs/benchmarking.md`` derives it; ``python -m benchmarks statistics`` measures coverage and power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from marft_algos.runs.intervals import Z95, Interval, student_cdf, wilson
from marft_envs.errors import ConfigError

Outcomes = NDArray[np.float64]
"""[seeds, problems]"""
Statistic = Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
"""Scores of runs [R, n] and their weights [n] -> [R]."""
MIN_SEEDS = 3
"""Below it there is no interval: the spread of two seeds says next to nothing (t = 12.7 with one degree of freedom)."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of a mean, and how well it is known."""

    variance: float
    df: float


@lru_cache(maxsize=4096)
def student_quantile(p: float, df: float) -> float:
    """Finds the t with ``student_cdf(t, df) == p``, for p > 1/2; the normal's from a million degrees of freedom."""
    df = min(df, 1e6)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < p:
        high *= 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_cdf(middle, df) < p else (low, middle)
    return 0.5 * (low + high)


def spread(outcomes: Outcomes) -> Spread:
    """Estimates Var(mean) of crossed seeds and problems, and its degrees of freedom; see the head of this file."""
    seeds, problems = outcomes.shape
    rows, columns, mean = outcomes.mean(1), outcomes.mean(0), outcomes.mean()
    rest = outcomes - rows[:, None] - columns + mean
    df_rest = (seeds - 1) * (problems - 1)
    ms_rest = float((rest**2).sum()) / df_rest
    ms_seed, ms_problem = problems * float(rows.var(ddof=1)), seeds * float(columns.var(ddof=1))
    terms = [(ms_seed, seeds - 1)] if ms_seed > ms_rest else []
    terms += [(ms_problem, problems - 1)] if ms_problem > ms_rest else []
    terms += [(ms_rest * (1 - len(terms)), df_rest)]
    total = sum(ms for ms, _ in terms)
    shaky = sum(ms**2 / df for ms, df in terms)
    return Spread(total / outcomes.size, total**2 / shaky if shaky else math.inf)


def mean_of_runs(scores: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Averages runs: environments count alike, whatever number of seeds each has."""
    return scores @ weights


def iqm(scores: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Averages the runs without ⌊n/4⌋ at either end, as rliable has it (arXiv 2108.13264)."""
    cut = scores.shape[-1] // 4
    ordered = np.sort(scores, axis=-1)
    return ordered[..., cut : scores.shape[-1] - cut].mean(-1)


def estimate(per_env: Sequence[Outcomes], statistic: Statistic = mean_of_runs, *, difference: bool = False) -> Interval:
    """Estimates a statistic of runs, with its 95 % interval; one array per environment, environments fixed.

    Args:
        per_env: Outcomes [S, P], or differences of two algorithms' outcomes on the same seeds and problems.
        statistic: ``mean_of_runs`` or ``iqm``. The stretch is that of the mean in either case.
        difference: The outcomes are differences. Data cannot tell: those of two algorithms may all be 0 or more.

    Returns:
        ``n`` is the number of runs, ``agreeing_seeds`` that of seeds if no outcome differs between them. Bounds lie in
        [0, 1] for shares and in [-1, 1] for their differences. They are nan if an environment has fewer than
        ``MIN_SEEDS`` seeds: no interval can be given.

    Raises:
        ConfigError: No array, or one that is empty.
    """
    if not per_env or any(p.ndim != 2 or not p.size for p in per_env):
        raise ConfigError("There is nothing to estimate: expected outcomes [seeds, problems].")
    weights = np.concatenate([np.full(len(p), 1 / (len(p) * len(per_env))) for p in per_env])
    runs = np.concatenate([p.mean(1) for p in per_env])
    value = float(statistic(runs[None], weights)[0])
    if not enough(per_env):
        return Interval(value, math.nan, math.nan, len(runs))
    parts = [spread(p) for p in per_env]
    variance = sum(part.variance for part in parts) / len(per_env) ** 2
    least, most = _range(per_env, difference)
    agreeing = min(map(len, per_env)) if all((p == p[0]).all() for p in per_env) else 0
    if variance == 0:  # everything solved, or no outcome differs: bounds the share of exceptions
        rest = wilson(0, min(p.shape[1] for p in per_env)).high if math.isfinite(least) else math.nan
        return Interval(value, max(value - rest, least), min(value + rest, most), len(runs), agreeing_seeds=agreeing)
    df = sum(p.variance for p in parts) ** 2 / sum(p.variance**2 / p.df for p in parts if p.variance)
    resampled = np.concatenate([resample(p, stream) for stream, p in enumerate(per_env)], axis=1)
    around = statistic(resampled, weights)
    wide = float(mean_of_runs(resampled, weights).std())
    stretch = student_quantile(0.975, round(df, 1)) * math.sqrt(variance) / (Z95 * wide)
    low, high = (value + stretch * float(q - around.mean()) for q in np.quantile(around, [0.025, 0.975]))
    return Interval(value, max(low, least), min(high, most), len(runs), agreeing_seeds=agreeing)


def enough(per_env: Sequence[Outcomes]) -> bool:
    """Whether an interval can be given."""
    return min(len(p) for p in per_env) >= MIN_SEEDS and min(p.shape[1] for p in per_env) >= 2


def _range(per_env: Sequence[Outcomes], difference: bool) -> tuple[float, float]:
    """Where a mean can lie: shares of problems in [0, 1], their differences in [-1, 1], other outcomes anywhere."""
    low, high = min(p.min() for p in per_env), max(p.max() for p in per_env)
    if low >= -1 and high <= 1:
        return (-1.0 if difference or low < 0 else 0.0), 1.0
    return -math.inf, math.inf


def resample(outcomes: Outcomes, stream: int = 0) -> NDArray[np.float64]:
    """Scores [R, S] of resampled runs: S seeds drawn with replacement, P problems drawn once for all of them."""
    seeds, problems = _draws(*outcomes.shape, stream)
    return np.take_along_axis(problems @ outcomes.T, seeds, axis=1)


@lru_cache(maxsize=16)
def _draws(seeds: int, problems: int, stream: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draws, the same for equal shapes, seeds [R, S] and each problem's share [R, P]."""
    rng = np.random.default_rng([seeds, problems, stream])
    chosen = rng.integers(seeds, size=(RESAMPLES, seeds))
    return chosen, rng.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES) / problems


def probability_of_improvement(new: Sequence[Outcomes], old: Sequence[Outcomes]) -> Interval:
    """Estimates P(a run of ``new`` scores above a run of ``old``), ties half, averaged over environments.

    The interval is the percentiles of the two-level bootstrap, problems drawn jointly for both algorithms. Seeds are
    ``agreeing_seeds`` where no resample differs from another.
    """
    value = float(np.mean([_above(a.mean(1)[None], b.mean(1)[None])[0] for a, b in zip(new, old, strict=True)]))
    n = sum(len(p) for p in new)
    if not (enough(new) and enough(old)):
        return Interval(value, math.nan, math.nan, n)
    both = []
    for stream, (a, b) in enumerate(zip(new, old, strict=True)):
        chosen, shares = _draws(len(a), a.shape[1], stream)
        others = _draws(len(b), b.shape[1], len(new) + stream)[0]
        x, y = (np.take_along_axis(shares @ p.T, rows, axis=1) for p, rows in ((a, chosen), (b, others)))
        both.append(_above(x, y))
    low, high = np.quantile(np.mean(both, axis=0), [0.025, 0.975])
    return Interval(value, float(low), float(high), n, agreeing_seeds=int(low == high) * min(map(len, (*new, *old))))


def _above(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    gap = x[:, :, None] - y[:, None, :]
    return ((gap > 0) + 0.5 * (gap == 0)).mean((1, 2))


def profile(per_env: Sequence[Outcomes], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Computes the performance profile [3, levels]: share of runs that score each level, and its 95 % band."""
    runs = np.concatenate([p.mean(1) for p in per_env])
    share = (runs[:, None] >= levels).mean(0)
    if not enough(per_env):
        return np.stack([share, np.full_like(share, np.nan), np.full_like(share, np.nan)])
    resampled = np.concatenate([resample(p, stream) for stream, p in enumerate(per_env)], axis=1)
    band = np.quantile((resampled[:, :, None] >= levels).mean(1), [0.025, 0.975], axis=0)
    return np.stack([share, *band])


def departure(new: Outcomes, old: Outcomes) -> Interval:
    """``new − old`` on the same problems, with the 95 % interval that the spread of *seeds* gives: a regression check.

    The problems are the very same ones, so only seeds vary: Student's two-sample interval of the runs' scores, pooled.
    One new run is enough if the old ones are ``MIN_SEEDS``. P problems resolve no less than 1/P.
    """
    a, b = new.mean(1), old.mean(1)
    df = len(a) + len(b) - 2
    value = float(a.mean() - b.mean())
    if len(b) < MIN_SEEDS:
        return Interval(value, math.nan, math.nan, len(a))
    pooled = (((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum()) / df
    deviation = max(math.sqrt(float(pooled)), 1 / old.shape[1])
    half = student_quantile(0.975, df) * deviation * math.sqrt(1 / len(a) + 1 / len(b))
    least, most = _range([new, old], difference=True)
    return Interval(value, max(value - half, least), min(value + half, most), len(a))
