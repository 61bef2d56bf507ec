"""Paired differences of agents over the same questions, and what a memory is worth by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from mempo_benchmarks.chance import sign_flips
from mempo_benchmarks.costs import answered
from mempo_benchmarks.metrics import METRICS, units
from mempo_benchmarks.results import WITHOUT, Plan, Row, differences
from mempo_benchmarks.stats import Interval, bounded, mean_intervals, minus

if TYPE_CHECKING:
    from mempo_benchmarks.summary import ArmSummary


class Pair(Struct, frozen=True):
    """Paired differences a - b of two arms over the same questions.

    Attributes:
        a: Label of an arm.
        b: Label of another.
        metrics: By key; those that are defined for all pairs, and of tokens only where both have one unit.
        p: By key, of the same: how likely chance alone had made as great a difference (`sign_flips`).
        p_cost: Likewise, of the tokens for a right answer; None where units differ or nobody is right.
        episodes: Pairs of episodes.
        left_out: Further ones, of which one failed by no fault of its agent: it tells nothing of the agent.
    """

    a: str
    b: str
    metrics: dict[str, Interval]
    p: dict[str, float]
    p_cost: float | None
    episodes: int
    left_out: int


def paired(rows: Mapping[str, Sequence[Row]]) -> list[Pair]:
    """The pairs of arms that answered the same questions, and have an episode to compare.

    Args:
        rows: Of each arm by its label, in the order of the episodes.
    """
    pairs = []
    for a, b in combinations(rows, 2):
        if _asked(rows[a]) != _asked(rows[b]):
            continue
        kept = [(p, q) for p, q in zip(rows[a], rows[b], strict=True) if not (p.masked or q.masked)]
        if kept:
            one_unit = len(units(row for both in kept for row in both)) <= 1
            alike = [metric for metric in METRICS if one_unit or not metric.tokens]
            defined = [m for m in alike if all(m.of(row) is not None for both in kept for row in both)]
            of_a, of_b = (np.array([[m.of(both[i]) for m in defined] for both in kept]) for i in (0, 1))
            found = {
                metric.key: bounded(interval, len(kept), -1, 1) if metric.share else interval
                for metric, interval in zip(defined, mean_intervals(of_a - of_b), strict=True)
            }
            p = dict(zip(found, sign_flips(of_a - of_b), strict=True))
            p_cost = _cost(kept) if one_unit else None
            pairs.append(Pair(a, b, found, p, p_cost, len(kept), len(rows[a]) - len(kept)))
    return pairs


def _cost(kept: Sequence[tuple[Row, Row]]) -> float | None:
    """The p-value of a difference in tokens for each right answer; None if no answer is right.

    A side's tokens less what all answers of both cost on average for as many right ones: it costs more than
    that where their sum is above 0. To exchange a pair turns the sign of its difference, not the average.
    """
    tokens_N2 = np.array([[row.total for row in both] for both in kept], dtype=np.float64)
    right_N2 = np.array([[answered(row) for row in both] for both in kept])
    if not right_N2.any():
        return None
    excess_N2 = tokens_N2 - tokens_N2.sum() / right_N2.sum() * right_N2
    return sign_flips(excess_N2[:, :1] - excess_N2[:, 1:])[0]


def _asked(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The questions of an arm; data sets that number theirs have the same ids for different ones."""
    return [(row.fingerprints.data, row.question_id) for row in rows]


def between(pairs: Iterable[Pair], a: str, b: str) -> Pair | None:
    """The differences of arm a to arm b; None if they are no pair."""
    for pair in pairs:
        if (pair.a, pair.b) == (a, b):
            return pair
        if (pair.a, pair.b) == (b, a):
            turned = {key: minus(interval) for key, interval in pair.metrics.items()}
            return replace(pair, a=a, b=b, metrics=turned)
    return None


def memory_gains(
    arms: Sequence[ArmSummary], plans: Mapping[str, Plan], pairs: Sequence[Pair]
) -> tuple[list[Pair], list[str]]:
    """The gain of each arm to `no_memory` with the same model, and why others have none.

    The same model is one that is identified in the same way, not by its name alone; settings and questions of
    both runs are the same. Where its own run has such an arm, that is the one.

    Args:
        arms: All of them.
        plans: Of their runs.
        pairs: Those of arms that compare.
    """
    gains: list[Pair] = []
    without: dict[str, list[str]] = {}  # reason -> labels
    for arm in arms:
        if arm.model and arm.agent != WITHOUT and arm.compares:
            other, reason = _baseline(arm, arms, plans)
            pair = between(pairs, arm.label, other.label) if other is not None else None
            if pair is not None:
                gains.append(pair)
            else:
                without.setdefault(reason, []).append(arm.label)
    told = [f"no gain over {WITHOUT} for {', '.join(labels)}: {reason}" for reason, labels in without.items()]
    return gains, told


def _baseline(
    arm: ArmSummary, arms: Sequence[ArmSummary], plans: Mapping[str, Plan]
) -> tuple[ArmSummary | None, str]:
    """(the arm to compare with, why there is no gain if it is no pair)."""
    named = [other for other in arms if (other.agent, other.model) == (WITHOUT, arm.model)]
    same = [other for other in named if other.asks == arm.asks and (arm.asks or other.run == arm.run)]
    alike = [(other, differences(plans[other.run].common(), plans[arm.run].common())) for other in same]
    found = sorted((other for other, changes in alike if not changes), key=lambda other: other.run != arm.run)
    for other in found:
        if other.compares:
            return other, f"no episode of {other.label} can be paired with one of it"
    if found:
        return None, f"{found[0].label} has no part in differences"
    if alike:
        other, changes = alike[0]
        return None, f"{other.label} has other settings or questions ({'; '.join(changes)})"
    if named:
        labels = ", ".join(other.label for other in named)
        return None, f"of {labels} only the name of the model is the same, not weights, sampling or server"
    return None, f"it was not run with the model {arm.model}"
