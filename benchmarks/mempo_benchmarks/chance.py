"""Whether a difference is beyond chance: an exact test of pairs. Pure; the draws come from a seed alone."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mempo_benchmarks.figures import figure
from mempo_benchmarks.stats import Floats

BEYOND = 0.05
"""The p-value below which a difference is said to be beyond chance."""
FLIPS = 9_999
"""Draws of signs where there are too many sums of differences to tell them all."""
_SIZES, _SUMS = 16, 2**16  # different differences, and sums of them, up to which all are told
_BLOCK = 2**22  # signs that become floats at a time


def sign_flips(differences_NM: ArrayLike, flips: int = FLIPS, seed: int = 0) -> list[float]:
    """The two-sided p-value of each column of paired differences: the sign-flip (Fisher-Pitman) test.

    If the sides of a pair might as well be exchanged, each difference had the other sign as likely:

        p = the share of all 2^N choices of signs with |sum of +-d| >= |sum of d|

    Of differences of -1, 0 and 1 it is McNemar's exact test. Where the sums are few (equal differences, or
    few that are not 0) the share is exact; else that among the observed signs and `flips` draws of them,
    (1 + hits) / (1 + flips), which is below a level as rarely (Phipson and Smyth 2010, SAGMB 9(1), 39).

    Source: Fisher (1935), The Design of Experiments; Pitman (1937), Suppl. J. R. Stat. Soc. 4(1), 119-130.

    Args:
        differences_NM: N pairs (at least 1) of M quantities, finite.
        flips: Draws where it takes them, the same for all columns.
        seed: Of the draws.

    Returns:
        A p-value in (0, 1] for each column; 1.0 where no difference is other than 0.
    """
    d_NM = np.asarray(differences_NM, dtype=np.float64)
    if d_NM.ndim != 2 or len(d_NM) == 0 or not np.isfinite(d_NM).all():
        raise ValueError(f"wanted finite values of shape (N, M) with N of at least 1, got {d_NM.shape}")
    exact = [_flipped_exactly(d_N) for d_N in d_NM.T]
    many = [m for m, p in enumerate(exact) if p is None]
    drawn = dict(zip(many, _flipped_by_chance(d_NM[:, many], flips, seed), strict=True)) if many else {}
    return [drawn[m] if p is None else p for m, p in enumerate(exact)]


def p_told(p: float) -> str:
    """A p-value as text: 0.25, 0.049, <0.001; cut below 0.1, so that none below `BEYOND` reads like it."""
    return "<0.001" if p < 0.001 else f"{math.floor(1000 * p) / 1000:g}" if p < 0.1 else figure(p, 2)


def _flipped_exactly(d_N: Floats) -> float | None:
    """The share of all choices of signs; None where they have too many sums."""
    sums, shares = np.zeros(1), np.ones(1)
    sizes, counts = np.unique(np.abs(d_N[d_N != 0]), return_counts=True)
    if len(sizes) > _SIZES:
        return None
    for size, count in zip(sizes, counts.tolist(), strict=True):
        if len(sums) * (count + 1) > _SUMS:
            return None
        chances = np.exp([_log_binomial(count, k) for k in range(count + 1)])
        sums = (sums[:, None] + size * (2 * np.arange(count + 1) - count)).ravel()
        shares = (shares[:, None] * chances).ravel()
        order = np.argsort(sums)
        first = np.flatnonzero(np.diff(sums[order], prepend=-np.inf) > _tie(d_N))
        sums, shares = sums[order][first], np.add.reduceat(shares[order], first)
    share = shares[np.abs(sums) >= _least(d_N)].sum()
    return min(1.0, float(f"{share:.12g}"))  # without the last digits, which are lgamma's


def _log_binomial(n: int, k: int) -> float:
    """Of n fair coins k fall on one side."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)


def _flipped_by_chance(d_NM: Floats, flips: int, seed: int) -> list[float]:
    """The share of drawn signs, the observed ones among them."""
    least_M = np.array([_least(d_N) for d_N in d_NM.T])
    hits_M = sum(
        (np.abs(signs_bN.astype(np.float64) @ d_NM) >= least_M).sum(axis=0)
        for signs_bN in _signs(len(d_NM), flips, seed)
    )
    return [float(p) for p in (1 + np.asarray(hits_M)) / (1 + flips)]


def _tie(d_N: Floats) -> float:
    """By how much sums of the same differences may differ through rounding."""
    return 1e-10 * float(np.abs(d_N).sum())


def _least(d_N: Floats) -> float:
    """The sum from which on signs count as far out as the observed ones."""
    return abs(float(d_N.sum())) - _tie(d_N)


@lru_cache(maxsize=4)
def _signs(n: int, flips: int, seed: int) -> tuple[NDArray[np.int8], ...]:
    """Draws of n signs in blocks (b, n); one report asks often."""
    rng, size = np.random.default_rng(seed), max(1, min(flips, _BLOCK // n))
    sizes = [min(size, flips - start) for start in range(0, flips, size)]
    return tuple(2 * rng.integers(2, size=(b, n), dtype=np.int8) - 1 for b in sizes)
