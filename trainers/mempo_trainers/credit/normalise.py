"""Statistics within groups: means, deviations and ties, of all groups at once and in any order."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mempo_env.errors import ConfigError
from mempo_trainers.credit.data import Flags, Floats, Ints

S = TypeVar("S", bound=np.generic)

EPS = 1e-6
"""Added to a std before it divides: verl's value (TRL's is 1e-4)."""

FLOOR = 1e-4
"""Below this std a pool of probabilities holds nothing but noise of float32 arithmetic."""


class Statistics(Struct, frozen=True, eq=False):
    """Of X values in G groups; a value that was left out has zeros and belongs to no group.

    Attributes:
        centred_X: Value minus the mean of its group; exactly 0 in a tied group.
        std_X: Std of its group, 0 in a tied one.
        count_X: Size of its group.
        std_G: Std of each group, in the order of the groups' numbers.
        tied_G: 1 = all values of the group are exactly equal, as those of a group of one are.
    """

    centred_X: Floats
    std_X: Floats
    count_X: Ints
    std_G: Floats
    tied_G: Flags


def statistics(values_X: Floats, group_X: Ints, keep_X: Flags, ddof: int = 1) -> Statistics:
    """Mean, deviations and std of each group.

        std^2 = sum (x - mean)^2 / (n - ddof), over the n values of the group that are kept

    Ties are found by exact equality, not by a small std: the mean of three times 0.1 is not 0.1 in floats.

    Args:
        values_X: Values; those left out may be anything, NaN too.
        group_X: The group's number of each.
        keep_X: 1 = takes part.
        ddof: 1 (unbiased, verl's) or 0.
    """
    if ddof not in (0, 1):
        raise ConfigError(f"ddof: wanted 0 or 1, got {ddof!r}")
    kept = np.flatnonzero(keep_X)
    order = kept[np.argsort(group_X[kept], kind="stable")]
    values, group = values_X[order].astype(np.float64), group_X[order]
    first = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    count = np.diff(first, append=len(order))
    tied = np.maximum.reduceat(values, first) == np.minimum.reduceat(values, first)
    mean = np.add.reduceat(values, first) / count
    centred = np.where(tied.repeat(count), 0.0, values - mean.repeat(count))
    std = np.sqrt(np.add.reduceat(centred * centred, first) / np.maximum(count - ddof, 1))
    return Statistics(
        centred_X=_back(centred, order, len(values_X)),
        std_X=_back(std.repeat(count), order, len(values_X)),
        count_X=_back(count.repeat(count), order, len(values_X)),
        std_G=std,
        tied_G=tied,
    )


def standardise(found: Statistics, eps: float = EPS, floor: float = 0.0) -> Floats:
    """(x - mean) / (std + eps); 0 in a tied group, whatever eps, and where the std is below the floor."""
    flat_X = (found.std_X == 0) | (found.std_X < floor)
    out_X = np.zeros_like(found.centred_X)
    return np.divide(found.centred_X, found.std_X + eps, out=out_X, where=~flat_X)


def joint(*columns_X: Ints) -> Ints:
    """One number for each different row of some columns, from 0."""
    number = np.zeros(len(columns_X[0]), np.int64)
    for column in columns_X:
        distinct, inverse = np.unique(column, return_inverse=True)
        number = number * len(distinct) + inverse
    return number


def whiten(values_X: Floats, weight_X: NDArray[np.int64] | None = None) -> Floats:
    """(x - mean) / sqrt(var + 1e-8) over all values, ddof 1 as in verl's `masked_whiten`; 0 if all are equal.

    Args:
        values_X: Values; those that never occur may be anything, NaN too.
        weight_X: How often each occurs; None: once.
    """
    weight = np.ones(len(values_X)) if weight_X is None else weight_X
    values_X = np.where(weight > 0, values_X, 0.0)
    seen = values_X[weight > 0]
    if not seen.size or seen.min() == seen.max():
        return np.zeros_like(values_X)
    centred = values_X - np.average(values_X, weights=weight)
    variance = (weight * centred * centred).sum() / max(weight.sum() - 1, 1)
    return centred / np.sqrt(variance + 1e-8)  # type: ignore[no-any-return]


def _back(values: NDArray[S], order: Ints, size: int) -> NDArray[S]:
    """Put values back to where they came from, zeros elsewhere."""
    out = np.zeros(size, values.dtype)
    out[order] = values
    return out
