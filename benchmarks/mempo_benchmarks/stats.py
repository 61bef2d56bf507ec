"""Intervals for means, shares and paired differences. Pure functions; chance comes from a seed alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from mempo_env.errors import ResultsError

Floats: TypeAlias = NDArray[np.float64]

LEVEL = 0.95
RESAMPLES = 5_000
_BLOCK = 2**22  # resampled questions held in memory at a time
_NORMAL = NormalDist()


class Interval(Struct, frozen=True):
    """An estimate and its interval; the bounds are None where one observation tells nothing of the spread."""

    value: float
    low: float | None
    high: float | None


def minus(interval: Interval) -> Interval:
    """The interval of the negated estimate."""
    low = None if interval.high is None else -interval.high
    high = None if interval.low is None else -interval.low
    return Interval(-interval.value, low, high)


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """The share of successes with Wilson's score interval; honest also at 0 and at 1.

    With p = successes / n and z the (1 + level) / 2 quantile of the normal distribution:

        (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Source: Wilson (1927), JASA 22(158), 209-212.

    Args:
        successes: In [0, n].
        n: Trials, at least 1.
        level: Coverage wanted, in (0, 1).
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"wanted successes in [0, n] and n of at least 1, got {successes} of {n}")
    p, z2 = successes / n, _NORMAL.inv_cdf((1 + level) / 2) ** 2
    centre = p + z2 / (2 * n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n)))
    low = 0.0 if successes == 0 else (centre - half) / (1 + z2 / n)
    high = 1.0 if successes == n else (centre + half) / (1 + z2 / n)
    return Interval(p, low, high)


def mean_intervals(
    values_NM: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> list[Interval]:
    """The mean of each column with its BCa bootstrap interval; rows (questions) are what is resampled.

    All columns share the resamples. With bootstrap means t_b and Q the inverse of the normal Phi:

        z0 = Q(share of t_b below the mean, ties half)     a = sum d^3 / (6 (sum d^2)^1.5),  d = x - mean(x)
        bounds = quantiles of t_b at Phi(z0 + (z0 + q) / (1 - a (z0 + q))),   q = Q((1 -+ level) / 2)

    Source: Efron (1987), JASA 82(397), 171-185; `a` is the jackknife estimate, in the form it has for a mean.
    A column whose values are all equal has the interval [mean, mean]: the bootstrap sees no spread.

    Args:
        values_NM: N observations (at least 1) of M quantities, finite.
        level: Coverage wanted, in (0, 1).
        resamples: Bootstrap resamples.
        seed: Of the resampling.

    Returns:
        One interval a column, without bounds if N is 1.
    """
    x_NM = np.asarray(values_NM, dtype=np.float64)
    if x_NM.ndim != 2 or len(x_NM) == 0 or not np.isfinite(x_NM).all():
        raise ValueError(f"wanted finite values of shape (N, M) with N of at least 1, got {x_NM.shape}")
    mean_M = x_NM.mean(axis=0)
    if len(x_NM) == 1:
        return [Interval(float(mean), None, None) for mean in mean_M]
    boot_BM = mean_M + _bootstrap_means(x_NM - mean_M, resamples, seed)
    boot_BM = boot_BM.clip(x_NM.min(axis=0), x_NM.max(axis=0))  # rounding may leave the range by a hair
    return [
        _bca(float(mean), d, boot, 1e-12 * float(np.abs(x).max()), level)
        for mean, d, x, boot in zip(mean_M, (x_NM - mean_M).T, x_NM.T, boot_BM.T, strict=True)
    ]


def bounded(interval: Interval, n: int, least: float, most: float, level: float = LEVEL) -> Interval:
    """The interval of a mean of n observations that lie in [least, most], also where all are equal.

    Of those the bootstrap makes a point, however few there are. But of all that might have been observed at
    least a share w = ((1 - level) / 2)^(1 / n) equals them, the exact bound where n of n do, and the rest may
    lie anywhere: the mean m is in [w m + (1 - w) least, w m + (1 - w) most].

    Source: Clopper and Pearson (1934), Biometrika 26(4), 404-413.
    """
    if interval.low is None or interval.low != interval.high:
        return interval
    w = ((1 - level) / 2) ** (1 / n)
    low, high = (w * interval.value + (1 - w) * bound for bound in (least, most))
    return Interval(interval.value, low, high)


def mean_interval(
    values_N: ArrayLike, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The mean of one quantity with its BCa bootstrap interval; see `mean_intervals`."""
    return mean_intervals(np.asarray(values_N, dtype=np.float64)[:, None], level, resamples, seed)[0]


def ratio_intervals(
    values_NM: ArrayLike,
    counts_N: ArrayLike,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval]:
    """The sum of each column over the sum of the counts, r = sum x / sum y, with its BCa bootstrap interval.

    As in `mean_intervals`, with the influence d = x - r y in the acceleration (Efron and Tibshirani 1993, An
    Introduction to the Bootstrap, ch. 22). Resamples without a count tell nothing and are left out.

    Args:
        values_NM: N observations (at least 1) of M quantities, finite.
        counts_N: What they are divided by, 0 or more, not all of them 0.
        level: Coverage wanted, in (0, 1).
        resamples: Bootstrap resamples.
        seed: Of the resampling.

    Returns:
        One interval a column, without bounds if N is 1.
    """
    x_NM, y_N = np.asarray(values_NM, dtype=np.float64), np.asarray(counts_N, dtype=np.float64)
    if x_NM.ndim != 2 or y_N.shape != x_NM.shape[:1] or (y_N < 0).any() or not y_N.any():
        raise ValueError(f"wanted values (N, M) and counts (N,) above 0, got {x_NM.shape} and {y_N.shape}")
    ratio_M = x_NM.sum(axis=0) / y_N.sum()
    if len(x_NM) == 1:
        return [Interval(float(ratio), None, None) for ratio in ratio_M]
    boot = _bootstrap_means(np.column_stack([x_NM, y_N]), resamples, seed)
    boot = boot[boot[:, -1] > 0]
    boot_BM = boot[:, :-1] / boot[:, -1:]
    return [
        _bca(float(ratio), x - ratio * y_N, boot, 1e-12 * float(np.abs(boot).max()), level)
        for ratio, x, boot in zip(ratio_M, x_NM.T, boot_BM.T, strict=True)
    ]


def runs_intervals(values_NM: ArrayLike, least: float = -math.inf, most: float = math.inf) -> list[Interval]:
    """The mean of each column over N runs (or streams) with Student's interval, clipped to [least, most].

        mean -+ t s / sqrt(N),  s^2 = sum (x - mean)^2 / (N - 1),  t the 0.975 quantile with N - 1 degrees

    A bootstrap of few runs is too narrow: they show it too little of the spread.

    Source: Student (1908), Biometrika 6(1), 1-25.

    Args:
        values_NM: N runs (at least 1) of M quantities, finite.
        least: What no mean can be below.
        most: What none can be above.

    Returns:
        One interval a column; without bounds if N is 1 or all are equal, which tells nothing of the spread.
    """
    x_NM = np.asarray(values_NM, dtype=np.float64)
    if x_NM.ndim != 2 or len(x_NM) == 0 or not np.isfinite(x_NM).all():
        raise ValueError(f"wanted finite values of shape (N, M) with N of at least 1, got {x_NM.shape}")
    n, mean_M = len(x_NM), x_NM.mean(axis=0)
    spread_M = np.ptp(x_NM, axis=0) > 1e-12 * np.abs(x_NM).max(axis=0)
    half_M = _student(n - 1) * x_NM.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else mean_M
    return [
        Interval(float(mean), max(float(mean - half), least), min(float(mean + half), most))
        if n > 1 and spread
        else Interval(float(mean), None, None)
        for mean, half, spread in zip(mean_M, half_M, spread_M, strict=True)
    ]


def runs_interval(values_N: ArrayLike, least: float = -math.inf, most: float = math.inf) -> Interval:
    """The mean of one quantity over runs with Student's interval; see `runs_intervals`."""
    return runs_intervals(np.asarray(values_N, dtype=np.float64)[:, None], least, most)[0]


@lru_cache
def _student(degrees: int) -> float:
    """The 0.975 quantile of Student's distribution with a whole number of degrees, at least 1.

    With t = sqrt(degrees) tan(angle), P(|T| < t) is a finite sum that grows with the angle (Abramowitz and
    Stegun 1964, 26.7.3 and 26.7.4); the angle is found by halving.
    """

    def within(angle: float) -> float:
        cos, odd = math.cos(angle), degrees % 2
        term, total = (cos if odd else 1.0), 0.0
        for k in range(2 + odd, degrees + 1, 2):
            total += term
            term *= cos * cos * (k - 1) / k
        total *= math.sin(angle)
        return 2 / math.pi * (angle + total) if odd else total

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < LEVEL else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def paired_differences(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval]:
    """The means of a - b over the questions that both answered, each with the BCa interval of that mean.

    Args:
        a: Question id to the values of M quantities.
        b: The same quantities for the same ids.
        level: Coverage wanted, in (0, 1).
        resamples: Bootstrap resamples.
        seed: Of the resampling.

    Returns:
        One interval for each of the M quantities.

    Raises:
        ResultsError: if the ids are not the same; names one that differs.
    """
    if a.keys() != b.keys() or not a:
        odd = sorted(a.keys() ^ b.keys())
        raise ResultsError(
            f"a paired difference needs the same questions on both sides, got {len(a)} and {len(b)}; "
            f"{len(odd)} have no partner{f', {odd[0]!r} among them' if odd else ''}: finish both runs first"
        )
    a_NM, b_NM = np.array([a[id] for id in a]), np.array([b[id] for id in a])
    return mean_intervals(a_NM - b_NM, level, resamples, seed)


def cluster_intervals(
    cluster_S: ArrayLike,
    statistic: Callable[[NDArray[np.int64]], Floats],
    level: float = LEVEL,
    resamples: int = 1_000,
    seed: int = 0,
) -> list[Interval]:
    """M statistics of rows that come in clusters, with BCa bootstrap intervals; clusters are resampled.

    The acceleration is the jackknife's: d = mean of the statistic without cluster i, minus it, for each i.
    Resamples in which a statistic is NaN tell nothing and are left out, of it alone.

    Args:
        cluster_S: The cluster of each of S rows.
        statistic: From the numbers of rows, which may come more than once, to M values.
        level: Coverage wanted, in (0, 1).
        resamples: Bootstrap resamples.
        seed: Of the resampling.

    Returns:
        One interval a statistic; without bounds if there is one cluster, or nothing to tell them from.
    """
    _, number_S = np.unique(np.asarray(cluster_S), return_inverse=True)
    rows = [np.flatnonzero(number_S == c) for c in range(int(number_S.max(initial=-1)) + 1)]
    value_M, n, rng = statistic(np.arange(len(number_S))), len(rows), np.random.default_rng(seed)
    if n < 2:
        return [Interval(float(value), None, None) for value in value_M]
    boot_BM = np.stack(
        [statistic(np.concatenate([rows[c] for c in rng.integers(n, size=n)])) for _ in range(resamples)]
    )
    left_NM = np.stack([statistic(np.concatenate([*rows[:c], *rows[c + 1 :]])) for c in range(n)])
    found = []
    for value, boot_B, left_N in zip(value_M, boot_BM.T, left_NM.T, strict=True):
        boot, left = boot_B[np.isfinite(boot_B)], left_N[np.isfinite(left_N)]
        if not (np.isfinite(value) and len(boot) and len(left)):
            found.append(Interval(float(value), None, None))
        else:
            tie = 1e-12 * float(np.abs(boot).max())
            found.append(_bca(float(value), left.mean() - left, boot, tie, level))
    return found


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points (cost, gain) that no other one beats, ordered by cost.

    A point is beaten by one that costs no more, gains no less and is not the same.
    """
    best = -math.inf
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[i][1] > best or (front and points[i] == points[front[-1]]):
            best = points[i][1]
            front.append(i)
    return front


def _bootstrap_means(x_NM: Floats, resamples: int, seed: int) -> Floats:
    """Means (B, M) of rows drawn with replacement."""
    n = len(x_NM)
    blocks = (counts_bN.astype(np.float64) @ x_NM / n for counts_bN in _counts(n, resamples, seed))
    return np.concatenate(list(blocks))


@lru_cache(maxsize=4)
def _counts(n: int, resamples: int, seed: int) -> tuple[NDArray[np.uint16], ...]:
    """How often each of n rows is drawn in each resample, in blocks (b, n); one report asks often."""
    rng, size = np.random.default_rng(seed), max(1, min(resamples, _BLOCK // n))
    blocks = []
    for start in range(0, resamples, size):
        b = min(size, resamples - start)
        drawn = rng.integers(n, size=(b, n)) + n * np.arange(b)[:, None]
        blocks.append(np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.uint16))
    return tuple(blocks)


def _bca(value: float, d_N: Floats, boot_B: Floats, tie: float, level: float) -> Interval:
    """The BCa interval of a statistic.

    Args:
        value: The statistic.
        d_N: By how much the observations push it up, up to a factor: deviations, or jackknife influences.
        boot_B: Its values in the resamples.
        tie: Values that were summed in another order differ by rounding: this much counts as equal.
        level: Coverage wanted.
    """
    if np.ptp(boot_B) <= tie and np.ptp(d_N) <= tie:
        return Interval(value, value, value)
    d_N = d_N / (np.abs(d_N).max() or 1.0)  # the scale does not matter, and its square may not underflow
    below, above = (boot_B < value - tie).mean(), (boot_B > value + tie).mean()
    share = (below + 1.0 - above) / 2
    z0 = _NORMAL.inv_cdf(min(max(share, 0.5 / len(boot_B)), 1 - 0.5 / len(boot_B)))
    a = float((d_N**3).sum() / (6 * (d_N**2).sum() ** 1.5)) if d_N.any() else 0.0
    tails = []
    for q in (_NORMAL.inv_cdf((1 - level) / 2), _NORMAL.inv_cdf((1 + level) / 2)):
        tails.append(_NORMAL.cdf(z0 + (z0 + q) / (1 - a * (z0 + q))))
    low, high = np.quantile(boot_B, tails)
    return Interval(value, float(low), float(high))
