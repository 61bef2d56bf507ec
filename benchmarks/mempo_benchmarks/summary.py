"""From the rows of one run or several to the numbers of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from mempo_benchmarks.costs import Price, Spent, check_prices, spending
from mempo_benchmarks.results import FAILED, Arm, Plan, Row, differences, read_plan, read_rows
from mempo_benchmarks.run import CEILING, FLOORS
from mempo_benchmarks.stats import Interval, mean_intervals, minus, paired_differences, pareto_front, wilson
from mempo_env.errors import ResultsError, lookup
from mempo_env.types import Failure

RIGHT = "right"
"""What stands in place of a failure reason for an objective that was answered rightly."""

WITHOUT = "no_memory"
"""The agent that the gain of a memory is measured against."""

_FOUND = "Evidence recall: the share of the gold passages that searches brought up."
_KEPT = "The share of the gold facts that the prompt of the last call, or the memory bank, still held."
_DEPENDENCY = "Pairs of tokens that generation attended to (MEM1): the sum of (2 prompt + output) output / 2."
_INVALID = "Rounds of an episode whose action could not be read."
_FAILED = (
    "Episodes ended by an error of agent, model, memory or retriever, or a timeout; they count as wrong."
)


class Metric(Struct, frozen=True):
    """A figure of an episode, averaged over all of them.

    Attributes:
        key: Its name in data.
        label: Its name in tables.
        about: What it is, in a sentence.
        of: From a row to its value; None where it is undefined.
        share: Whether it lies in [0, 1].
    """

    key: str
    label: str
    about: str
    of: Callable[[Row], float | None]
    share: bool = False


METRICS = (
    Metric("em", "EM", "Exact match, the mean over an episode's questions.", lambda r: r.em, True),
    Metric("f1", "F1", "Overlap of words, the mean over an episode's questions.", lambda r: r.f1, True),
    Metric("em_relaxed", "EM relaxed", "EM with dashes and accents folded.", lambda r: r.em_relaxed, True),
    Metric("evidence_recall", "evidence found", _FOUND, lambda r: r.evidence_recall, True),
    Metric("evidence_kept", "evidence kept", _KEPT, lambda r: r.evidence_kept, True),
    Metric("rounds", "rounds", "Rounds of an episode.", lambda r: r.rounds),
    Metric("peak", "peak tokens", "The longest single call, prompt and output.", lambda r: r.peak),
    Metric("total", "total tokens", "Prompts and outputs of all calls.", lambda r: r.total),
    Metric("dependency", "dependency", _DEPENDENCY, lambda r: r.dependency),
    Metric("invalid_rounds", "invalid rounds", _INVALID, lambda r: r.invalid_rounds),
    Metric("failed", "failed", _FAILED, lambda r: float(r.stop_reason in FAILED), True),
)


class Point(Struct, frozen=True):
    """Prompt tokens of one round: episodes that came so far, their mean, 10th and 90th percentile."""

    round: int
    episodes: int
    mean: float
    low: float
    high: float


class ArmSummary(Struct, frozen=True, kw_only=True):
    """The figures of one agent in one run.

    Attributes:
        label: Its name in the report: the agent, and the run where several runs have that agent.
        agent: Its name.
        model: Name of the model behind it; "" if there is none.
        run: The folder of its run.
        role: "floor", "ceiling" or "".
        done: Episodes that have a result.
        planned: Episodes that should have.
        masked: Episodes that failed by no fault of the agent; they are among the failed ones.
        env_kwargs: What it sets in the environment.
        metrics: By key; None where nothing is known. Over all episodes that have a result.
        outcomes: "right" or the failure reason: share of the objectives; empty without results.
        prompts: Prompt tokens by round.
        spent: What it cost, by key of `COSTS`; those that are known.
        several: By question, where all episodes have the same number, above 1; None without results, too.
    """

    label: str
    agent: str
    model: str
    run: str
    role: str
    done: int
    planned: int
    masked: int
    env_kwargs: dict[str, Any]
    metrics: dict[str, Interval | None]
    outcomes: dict[str, float]
    prompts: tuple[Point, ...]
    spent: dict[str, Spent]
    several: Several | None

    @property
    def complete(self) -> bool:
        """Whether every planned episode has a result."""
        return self.done == self.planned

    @property
    def steady(self) -> tuple[Point, ...]:
        """Prompt tokens of the rounds from the second on that at least half of the episodes came to."""
        return tuple(point for point in self.prompts[1:] if 2 * point.episodes >= self.done)


class Several(Struct, frozen=True, kw_only=True):
    """How an agent did on episodes of several questions (MEM1's protocol, 2506.15841).

    Attributes:
        em: EM summed over the questions of an episode, the mean over episodes; like
        f1: F1.
        positions: Of the question in each place, the share of episodes that answered it rightly.
        answered: For 0, 1, ... all: the share of episodes that gave so many answers.
    """

    em: Interval
    f1: Interval
    positions: tuple[Interval, ...]
    answered: tuple[float, ...]


class Pair(Struct, frozen=True):
    """Paired differences a - b of two complete arms over the same questions, by metric."""

    a: str
    b: str
    metrics: dict[str, Interval]


class Comparison(Struct, frozen=True, kw_only=True):
    """All numbers of a report.

    Attributes:
        runs: Folder and plan of each run.
        differing: What differs between the runs, "name first / other" for each.
        arms: In the order of the plans.
        pairs: Of complete arms over the same questions, each pair once.
        front: Labels of the arms that no other beats in EM and peak tokens, without the ceiling.
        baseline: Label of the arm that differences are shown against.
    """

    runs: tuple[tuple[str, Plan], ...]
    differing: tuple[str, ...]
    arms: tuple[ArmSummary, ...]
    pairs: tuple[Pair, ...]
    front: tuple[str, ...]
    baseline: str

    def gain(self, arm: ArmSummary) -> dict[str, Interval] | None:
        """The memory-isolated gain of an arm: its paired differences to `no_memory` with the same model.

        What a strong reader does without a memory is taken off (MemGym, 2605.20833). None for `no_memory`
        itself, for agents without a model, and where there is nothing to pair with.
        """
        same = [a.label for a in self.arms if (a.agent, a.model) == (WITHOUT, arm.model)]
        known = arm.model and arm.agent != WITHOUT and len(same) == 1
        return self.difference(arm.label, same[0]) if known else None

    def difference(self, a: str, b: str) -> dict[str, Interval] | None:
        """Of arm a to arm b, by metric; None where they can't be paired."""
        for pair in self.pairs:
            if (pair.a, pair.b) == (a, b):
                return pair.metrics
            if (pair.a, pair.b) == (b, a):
                return {key: minus(interval) for key, interval in pair.metrics.items()}
        return None


def compare(
    runs: Sequence[Path],
    baseline: str = "random",
    allow_different: bool = False,
    prices: Mapping[str, Price] | None = None,
) -> Comparison:
    """Read runs and compute all that a report shows.

    Args:
        runs: Their folders.
        baseline: Label of the arm that differences are shown against.
        allow_different: Whether runs that differ may share a table.
        prices: By the name of the model; they decide nothing but the dollars.

    Raises:
        ResultsError: if a run is missing, was changed by hand, or differs from the others; says in what.
        ConfigError: if there is no such baseline, or the prices are for none of the models.
    """
    plans = {str(run): read_plan(run) for run in dict.fromkeys(runs)}
    differing = _differing(plans)
    if differing and not allow_different:
        raise ResultsError(
            f"wanted runs of one data set, index, scorer, code and settings, got runs that differ: "
            f"{'; '.join(differing)}; report them one by one, or pass --allow-different"
        )
    prices = prices or {}
    check_prices(prices, {arm.model for plan in plans.values() for arm in plan.arms})
    names = Counter(arm.agent for plan in plans.values() for arm in plan.arms)
    arms: list[ArmSummary] = []
    rows: dict[str, list[Row]] = {}
    for run, plan in plans.items():
        played: dict[str, list[Row]] = {arm.agent: [] for arm in plan.arms}
        for row in read_rows(Path(run), plan, Row):
            played[row.agent].append(row)
        for arm in plan.arms:
            label = arm.agent if names[arm.agent] == 1 else f"{arm.agent} ({Path(run).name})"
            label = label if label not in rows else f"{arm.agent} ({run})"
            rows[label] = sorted(played[arm.agent], key=lambda row: row.index)
            arms.append(_summary(label, run, plan, arm, rows[label], prices.get(arm.model)))
    chosen = lookup(
        {arm.agent: arm.label for arm in reversed(arms)} | {a: a for a in rows}, baseline, "baseline"
    )
    return Comparison(
        runs=tuple(plans.items()),
        differing=tuple(differing),
        arms=tuple(arms),
        pairs=tuple(_pairs([arm for arm in arms if arm.complete], rows)),
        front=tuple(_front(arms)),
        baseline=chosen,
    )


def _differing(plans: dict[str, Plan]) -> list[str]:
    """What differs between the first run and any other."""
    (first, plan), *others = plans.items()
    return [
        f"{difference} ({Path(first).name} / {Path(run).name})"
        for run, other in others
        for difference in differences(plan.common(), other.common())
    ]


def _summary(
    label: str, run: str, plan: Plan, arm: Arm, rows: Sequence[Row], price: Price | None
) -> ArmSummary:
    reasons = Counter(reason or RIGHT for row in rows for reason in row.failure)
    objectives = sum(reasons.values())
    return ArmSummary(
        label=label,
        agent=arm.agent,
        model=arm.model,
        run=run,
        role="floor" if arm.agent in FLOORS else "ceiling" if arm.agent == CEILING else "",
        done=len(rows),
        planned=len(plan.questions),
        masked=sum(row.masked for row in rows),
        env_kwargs=arm.env_kwargs,
        metrics=_intervals(rows),
        outcomes={reason: reasons[reason] / objectives for reason in (RIGHT, *Failure) if reasons[reason]},
        prompts=tuple(_prompts(rows)),
        spent=spending(rows, price),
        several=_several(rows),
    )


def _several(rows: Sequence[Row]) -> Several | None:
    n = len(rows[0].failure) if rows else 1
    if n == 1 or any(len(row.failure) != n for row in rows):
        return None
    em, f1 = mean_intervals(np.array([[n * row.em, n * row.f1] for row in rows]))
    right_RN = np.array([[reason is None for reason in row.failure] for row in rows])
    counts = Counter(row.answered for row in rows)
    return Several(
        em=em,
        f1=f1,
        positions=tuple(wilson(int(right), len(rows)) for right in right_RN.sum(0)),
        answered=tuple(counts[k] / len(rows) for k in range(n + 1)),
    )


def _intervals(rows: Sequence[Row]) -> dict[str, Interval | None]:
    """Means over the rows where they are defined: Wilson's interval for shares of yes and no, else BCa's."""
    found: dict[str, Interval | None] = {metric.key: None for metric in METRICS}
    columns: dict[int, dict[str, list[float]]] = {}  # of equal length, so that they share the resamples
    for metric in METRICS:
        values = [value for row in rows if (value := metric.of(row)) is not None]
        if values and metric.share and set(values) <= {0.0, 1.0}:
            found[metric.key] = wilson(round(sum(values)), len(values))
        elif values:
            columns.setdefault(len(values), {})[metric.key] = values
    for several in columns.values():
        found |= zip(several, mean_intervals(np.column_stack(list(several.values()))), strict=True)
    return found


def _prompts(rows: Sequence[Row]) -> list[Point]:
    longest = max((row.rounds for row in rows), default=0)
    points = []
    for i in range(longest):
        tokens = [row.prompt_tokens[i] for row in rows if row.rounds > i]
        low, high = np.quantile(tokens, (0.1, 0.9))
        points.append(Point(i + 1, len(tokens), float(np.mean(tokens)), float(low), float(high)))
    return points


def _pairs(arms: Sequence[ArmSummary], rows: dict[str, list[Row]]) -> list[Pair]:
    """Pairs of arms that answered the same questions, over the metrics that are defined for all of them."""
    pairs = []
    for i, a in enumerate(arms):
        for b in arms[i + 1 :]:
            if [row.question_id for row in rows[a.label]] != [row.question_id for row in rows[b.label]]:
                continue
            defined = [
                m for m in METRICS if all(m.of(row) is not None for arm in (a, b) for row in rows[arm.label])
            ]
            values = [
                {r.question_id: [m.of(r) or 0.0 for m in defined] for r in rows[x.label]} for x in (a, b)
            ]
            found = paired_differences(values[0], values[1])
            pairs.append(Pair(a.label, b.label, dict(zip([m.key for m in defined], found, strict=True))))
    return pairs


def _front(arms: Sequence[ArmSummary]) -> list[str]:
    able = [
        (arm.label, peak.value, em.value)
        for arm in arms
        if arm.complete
        and arm.role != "ceiling"
        and (peak := arm.metrics["peak"])
        and (em := arm.metrics["em"])
    ]
    return [able[i][0] for i in pareto_front([(peak, em) for _, peak, em in able])]
