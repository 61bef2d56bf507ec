"""How far estimators agree with the truth: ranks, signs, bias by round, and how much of them is chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from mempo_benchmarks.stats import Interval, cluster_intervals, mean_intervals
from mempo_trainers.credit.data import Flags, Floats, Ints

REFERENCE = "grpo"
"""The row that the others are compared with."""


class Sample(Struct, frozen=True, eq=False):
    """S memory operations with their true advantages and what the estimators say.

    Attributes:
        question_S: The question of each.
        round_S: Its round, from 2.
        truth_S: The measured advantage.
        se_S: Its standard error.
        values: For each row of the table its value of the operation, (S,); or (S, C) for a control that is
            drawn C times, whose measures are means over the C.
    """

    question_S: Ints
    round_S: Ints
    truth_S: Floats
    se_S: Floats
    values: Mapping[str, Floats]

    @property
    def values_SX(self) -> Floats:
        """The values as columns, X of them: one for each draw of each row."""
        return np.column_stack(list(self.values.values()))

    def by_row(self, measured_X: Floats) -> Floats:
        """The means (..., M) over the draws of each row, from (..., X)."""
        draws_M = np.array([1 if values.ndim == 1 else values.shape[1] for values in self.values.values()])
        mean_M: Floats = np.add.reduceat(measured_X, np.cumsum(draws_M) - draws_M, axis=-1) / draws_M
        return mean_M

    @property
    def signal(self) -> float:
        """The standard deviation of the true advantages, without what their measurement adds to it."""
        return _signal(self.truth_S, self.se_S)


def ranks(x_S: Floats) -> Floats:
    """Ranks from 1, the mean rank for equal values."""
    _, place, count = np.unique(x_S, return_inverse=True, return_counts=True)
    rank_S: Floats = (np.cumsum(count) - (count - 1) / 2)[place]
    return rank_S


def spearman(x_S: Floats, y_S: Floats) -> float:
    """Rank correlation, ties with their mean ranks; 0 where one side does not vary and so tells nothing."""
    x, y = (ranks(values) - (len(values) + 1) / 2 for values in (x_S, y_S))
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size else 0.0


def spearman_within(question_S: Ints, x_S: Floats, y_S: Floats) -> float:
    """The mean over questions of the rank correlation of each one's operations."""
    return float(np.mean([spearman(x_S[rows], y_S[rows]) for rows in _questions(question_S)]))


def rank_correlations(sample: Sample) -> tuple[list[Interval], list[Interval]]:
    """Of each row with the truth over all operations, and how much more it is than that of `grpo`."""
    values_SX, base = sample.values_SX, list(sample.values).index(REFERENCE)

    def statistic(rows: Ints) -> Floats:
        truth = sample.truth_S[rows]
        found_M = sample.by_row(np.array([spearman(values, truth) for values in values_SX[rows].T]))
        return np.concatenate([found_M, found_M - found_M[base]])

    found = cluster_intervals(sample.question_S, statistic)
    return found[: len(sample.values)], found[len(sample.values) :]


def rank_spreads(sample: Sample) -> list[float | None]:
    """The standard deviation of each row's rank correlation over its draws; None for a single one."""
    return [
        float(np.std([spearman(draw, sample.truth_S) for draw in values.T], ddof=1))
        if values.ndim > 1
        else None
        for values in sample.values.values()
    ]


def rank_correlations_within(sample: Sample) -> list[Interval]:
    """The mean over questions of each row's rank correlation with the truth within the question."""
    found_QX = [
        [spearman(values, sample.truth_S[rows]) for values in sample.values_SX[rows].T]
        for rows in _questions(sample.question_S)
    ]
    return mean_intervals(sample.by_row(np.array(found_QX)))


def known_sign(sample: Sample) -> Flags:
    """1 = the truth is more than two standard errors from 0, (S,)."""
    known_S: Flags = np.abs(sample.truth_S) > 2 * sample.se_S
    return known_S


def sign_errors(sample: Sample) -> list[Interval]:
    """The share of operations of known sign to which a row gives the other one; a value of 0 counts as half.

    A coin has 0.5. NaN where no sign is known.
    """
    known = known_sign(sample)
    agree_SX = np.sign(sample.values_SX) * np.sign(sample.truth_S)[:, None]
    wrong_SM = sample.by_row((1 - agree_SX) / 2)

    def statistic(rows: Ints) -> Floats:
        return _mean(wrong_SM[rows[known[rows]]])

    return cluster_intervals(sample.question_S, statistic)


def scales(sample: Sample) -> Floats:
    """What brings each draw of each row to the spread of the truth, (X,); 0 for one that does not vary."""
    return _scales(sample.values_SX, sample.signal)


def bias_by_round(sample: Sample, rounds: Sequence[int]) -> list[list[Interval]]:
    """For each row and round the mean of its scaled value minus the truth.

    Scaled by one factor a row, so that its standard deviation over all operations is that of the true
    advantages: advantages have no unit, but they are added up over rounds. NaN for a round without any.
    """
    values_SX = sample.values_SX

    def statistic(rows: Ints) -> Floats:
        truth, se = sample.truth_S[rows], sample.se_S[rows]
        scaled_SX = values_SX[rows] * _scales(values_SX[rows], _signal(truth, se))
        error_SM = sample.by_row(scaled_SX) - truth[:, None]
        round_S = sample.round_S[rows]
        return np.stack([_mean(error_SM[round_S == number]) for number in rounds], axis=1).ravel()

    found = cluster_intervals(sample.question_S, statistic)
    wide = len(rounds)
    return [found[i : i + wide] for i in range(0, len(found), wide)]


def noise(question_F: Ints, values: Mapping[str, Floats]) -> list[Interval]:
    """How much of a row's variance is chance: the same operation gets other values in other groups.

        noise = W / (W + B),  W the mean variance of an operation's value over groups drawn anew,
                B the variance of the operations' mean values, less W / copies, at least 0

    Args:
        question_F: The question of each of F operations.
        values: For each row the values (F, copies) from `replicas`.

    Returns:
        One interval a row, in [0, 1]: 0 for a function of the operation, 1 for a lottery; NaN for a row that
        never varies.
    """
    values_FCM = np.stack(list(values.values()), axis=-1)
    within_FM, mean_FM = values_FCM.var(axis=1, ddof=1), values_FCM.mean(axis=1)

    def statistic(rows: Ints) -> Floats:
        w_M = within_FM[rows].mean(axis=0)
        b_M = np.maximum(mean_FM[rows].var(axis=0, ddof=1) - w_M / values_FCM.shape[1], 0)
        with np.errstate(invalid="ignore"):
            return w_M / (w_M + b_M)  # type: ignore[no-any-return]

    return cluster_intervals(question_F, statistic)


def effects(
    question_C: Ints, kept_C: Flags, effect_C: Floats, values: Mapping[str, Floats]
) -> tuple[Interval, list[tuple[float, float, Interval]]]:
    """The mean true effect of keeping a gold fact, and what each row says.

    Args:
        question_C: The question of each of C gold facts that could be kept and could be dropped.
        kept_C: Whether it was kept.
        effect_C: The true effect.
        values: For each row the scaled advantage of the token that decided, (C,).

    Returns:
        The effect; and for each row the mean where it was kept, where it was dropped, and their difference:
        NaN where nothing was.
    """
    columns_CM = np.stack([effect_C, *values.values()], axis=1)

    def statistic(rows: Ints) -> Floats:
        kept_M, dropped_M = (_mean(columns_CM[rows[kept_C[rows] == kind]])[1:] for kind in (True, False))
        return np.concatenate([_mean(columns_CM[rows, :1]), kept_M, dropped_M, kept_M - dropped_M])

    effect, *rest = cluster_intervals(question_C, statistic)
    wide = len(values)
    told = zip(rest[:wide], rest[wide : 2 * wide], rest[2 * wide :], strict=True)
    return effect, [(kept.value, dropped.value, difference) for kept, dropped, difference in told]


def agreement(sample: Sample) -> Mapping[str, Callable[[Floats, Floats], float]]:
    """The two kinds of rank correlation, of two measurements of the truth: for its reliability."""
    return {
        "all": spearman,
        "within": lambda x_S, y_S: spearman_within(sample.question_S, x_S, y_S),
    }


def _questions(question_S: Ints) -> list[Ints]:
    return [np.flatnonzero(question_S == question) for question in np.unique(question_S)]


def _mean(x_XM: Floats) -> Floats:
    """Of each column; NaN where there are no rows."""
    mean_M: Floats = x_XM.mean(axis=0) if len(x_XM) else np.full(x_XM.shape[1], np.nan)
    return mean_M


def _signal(truth_S: Floats, se_S: Floats) -> float:
    return math.sqrt(max(float(truth_S.var() - (se_S**2).mean()), 0.0))


def _scales(values_SX: Floats, signal: float) -> Floats:
    spread_X = values_SX.std(axis=0)
    scale_X: Floats = np.where(spread_X > 0, signal / np.where(spread_X > 0, spread_X, 1.0), 0.0)
    return scale_X
